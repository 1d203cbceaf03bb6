"""Presets of UniDEC and of its dual encoders: DEPSL, DPR, TAS, ANCE, DEXML."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from xcmodels.data.prepare_config import PrepareConfig
from xcmodels.data.tokens import MINILM
from xcmodels.methods.preset_parts import (
    BAG,
    BOOSTED,
    BOOSTED_WEIGHT_2,
    MIN_STEPS_PER_EPOCH,
    MethodEntry,
    Preset,
    Settings,
    boosted,
    fine_tuned,
    learned,
)
from xcmodels.methods.unidec.config import UnidecConfig
from xcmodels.methods.unidec.method import unidec
from xcmodels.nn.encoder_config import EncoderConfig

HUB = "distilbert/distilbert-base-uncased"


def _cpu(**changed: object) -> Settings:
    config = UnidecConfig(epochs=10, batch_size=1024, lr=5e-3, token_lr=4e-3, label_lr=2e-3, warmup=50, refresh_from=3,
                          refresh_every=3, least_steps=MIN_STEPS_PER_EPOCH, double_every=3, cluster_size=8,
                          cluster_max=32, negatives=6, decay="linear", unit=False, serve="sum", fusion=BOOSTED)
    return Settings(BAG, replace(config, **changed))  # type: ignore[arg-type]


def _cpu_minilm(**changed: object) -> Settings:
    """`_cpu` with MiniLM, by eight epochs and one negative: six make UniDEC encode 7,500 texts a step on WordNet."""
    base = _cpu(**changed)
    return fine_tuned(replace(base, method=replace(base.method, epochs=8, negatives=min(base.method.negatives, 1))), "")


def _paper(source: str, batch: int, epochs: int, **changed: object) -> Settings:
    """The settings of section 4, the same for every data set but the batch (Table 2), which is a cluster (Algorithm 1).

    The paper leaves the number of epochs and the weight of the binary cross-entropy open.
    """
    config = UnidecConfig(epochs=epochs, batch_size=batch, lr=1e-4, token_lr=0.0, label_lr=1e-3, warmup=1000,
                          refresh_from=4, double_every=25, cluster_size=batch, cluster_max=batch, head="tanh", dim=384,
                          bce=0.1, encoder=EncoderConfig(
                              kind="transformer", source=source, tied=True, batch=1024))
    return Settings(PrepareConfig(tokenizer=source), replace(config, **changed))  # type: ignore[arg-type]


# What the figures of "minilm" in docs/performance.md were measured with.
_MINILM: dict[str, object] = {"bce": 0.0, "cluster_size": 8, "cluster_max": 64}
_DEPSL: dict[str, object] = {"balance": 1.0, "serve": "encoder"}
_DPR: dict[str, object] = {**_DEPSL, "positives": 1, "pooled": False, "symmetric": 0.0, "cluster_size": 0,
                           "negatives": 0}
_TAS: dict[str, object] = {**_DPR, "cluster_size": 576, "cluster_max": 576, "refresh_from": 0, "refresh_every": 10_000}
_ANCE: dict[str, object] = {**_DPR, "negatives": 6}
_DEXML: dict[str, object] = {**_DPR, "pooled": True, "every_label": True}


def _presets(about: str, batches: Mapping[str, int], small: Mapping[str, object] | None = None, /,
             **changed: object) -> dict[str, Preset]:
    papers = {**changed, "serve": "sum"} if changed.get("serve") == "fused" else changed
    cpu = changed | dict(small or {})
    return {
        "cpu": Preset(f"{about}; bag of tokens started from MiniLM's, two cores, minutes", lambda: _cpu(**cpu)),
        "cpu-learned": Preset(f"{about}; bag of tokens from scratch on a vocabulary learned from the data",
                              lambda: learned(_cpu(**cpu), "token_lr")),
        "cpu-minilm": Preset(f"{about}; cpu with 8 epochs and MiniLM fine-tuned beside the bag, two cores",
                             lambda: _cpu_minilm(**cpu)),
        "minilm": Preset(f"{about}; the packaged MiniLM transformer, one GPU",
                         lambda: boosted(_paper(MINILM, 576, 60, **(_MINILM | changed)))),
        **{name: Preset(f"{about}; Table 2's batch for {name}, DistilBERT from the hub, a GPU",
                        partial(_paper, HUB, batch, 100, **papers, **_OWN.get((name, batch), {})))
           for name, batch in batches.items()},
    }


# Queries of a batch, Table 2. It lists none for the baselines, which take UniDEC's first.
_ROWS = {"lf-amazon-131k": 576, "lf-wikiseealso-320k": 677, "lf-amazontitles-1.3m": 1098}
_OWN: dict[tuple[str, int], dict[str, object]] = {    # what a row has of its own, by its data set and batch
    ("lf-amazontitles-1.3m", 1098): {"dim": 256},        # Table 1: UniDEC searches 512 there, a half each
    ("lf-amazontitles-1.3m", 2200): {"symmetric": 0.0}}    # Tables 1 and 5: DEPSL's row is without the dual loss
_FIRST = {"lf-amazon-131k": 576}
UNIDEC = _presets("dual encoder and classifier together, pick-some-labels", _ROWS,
                  {"loss": "supcon"}, serve="fused")
DEPSL = _presets("UniDEC's dual encoder alone", {"lf-wikipedia-500k": 221, "lf-amazontitles-1.3m": 2200},
                 {"serve": "fused", "fusion": BOOSTED_WEIGHT_2}, **_DEPSL)
DPR = _presets("dual encoder, random batches, one positive a query (DPR)", _FIRST, **_DPR)
TAS = _presets("DPR whose batches are clusters of queries by the embeddings before training (TAS)", _FIRST,
               {"cluster_size": 1024, "cluster_max": 1024}, **_TAS)
ANCE = _presets("DPR with hard negatives mined over label embeddings (ANCE)", _FIRST, **_ANCE)
DEXML = _presets("decoupled softmax over every label (DEXML)",
                 {"lf-wikipedia-500k": 2048, "lf-amazontitles-1.3m": 8192}, **_DEXML)

METHODS = {name: MethodEntry(partial(unidec, name=name), presets) for name, presets in {
    "unidec": UNIDEC, "depsl": DEPSL, "dpr": DPR, "tas": TAS, "ance": ANCE, "dexml": DEXML}.items()}
