"""Presets of UniDEC, of DEPSL, and of the dual encoders that are settings of its parts."""

from dataclasses import replace

from xcmodels.corpus import PrepareConfig
from xcmodels.methods.unidec import UnidecConfig
from xcmodels.presets.settings import BOOSTED, Preset, Settings, learned
from xcmodels.tokens import MINILM
from xcmodels.trunks import EncoderConfig

HUB = "distilbert/distilbert-base-uncased"


def _cpu(**changed: object) -> Settings:
    config = UnidecConfig(epochs=10, batch_size=1024, lr=5e-3, token_lr=2e-3, label_lr=2e-3, warmup=50, refresh_from=3,
                          refresh_every=3, double_every=3, cluster_size=8, cluster_max=32, negatives=0,
                          decay="linear", unit=False, fusion=BOOSTED)
    return Settings(PrepareConfig(), replace(config, **changed))  # type: ignore[arg-type]


def _paper(source: str, dim: int, epochs: int, **changed: object) -> Settings:
    """The settings of section 4 and Table 2 for LF-Amazon-131K; the paper leaves the number of epochs open."""
    config = UnidecConfig(epochs=epochs, batch_size=576, lr=1e-4, token_lr=0.0, label_lr=1e-3, warmup=1000,
                          refresh_from=5, double_every=25, cluster_size=8,
                          cluster_max=64, head="tanh", dim=dim, bce=0.1,
                          encoder=EncoderConfig(kind="transformer", source=source, tied=True, batch=256))
    return Settings(PrepareConfig(tokenizer=source), replace(config, **changed))  # type: ignore[arg-type]


_DEPSL: dict[str, object] = {"balance": 1.0, "serve": "encoder"}
_DPR: dict[str, object] = {**_DEPSL, "positives": 1, "symmetric": 0.0, "cluster_size": 0, "negatives": 0}
_TAS: dict[str, object] = {**_DPR, "cluster_size": 8, "refresh_every": 10_000}
_ANCE: dict[str, object] = {**_DPR, "negatives": 6}
_DEXML: dict[str, object] = {**_DPR, "every_label": True}


def _presets(about: str, **changed: object) -> dict[str, Preset]:
    return {
        "cpu": Preset(f"{about}; bag of tokens started from MiniLM's, two cores, minutes", lambda: _cpu(**changed)),
        "cpu-learned": Preset(f"{about}; bag of tokens from scratch on a vocabulary learned from the data",
                              lambda: learned(_cpu(**changed))),
        "minilm": Preset(f"{about}; the packaged MiniLM transformer, one GPU",
                         lambda: _paper(MINILM, 384, 60, **({"bce": 0.0} | changed))),
        "paper": Preset(f"{about}; DistilBERT from the hub, a GPU",
                        lambda: _paper(HUB, 384, 100, **(changed | {"fused": False}))),
    }


UNIDEC = _presets("dual encoder and classifier together, pick-some-labels", fused=True)
DEPSL = _presets("UniDEC's dual encoder alone", **_DEPSL)
DPR = _presets("dual encoder, random batches, one positive a query (DPR)", **_DPR)
TAS = _presets("DPR with batches clustered once (TAS)", **_TAS)
ANCE = _presets("DPR with hard negatives mined over label embeddings (ANCE)", **_ANCE)
DEXML = _presets("decoupled softmax over every label (DEXML)", **_DEXML)
