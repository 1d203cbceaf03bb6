"""Presets of ASTRA, and of Renee, which scores every label for every query."""

from dataclasses import replace

from xcmodels.data.prepare_config import PrepareConfig
from xcmodels.data.tokens import MINILM
from xcmodels.methods.astra.config import AstraConfig
from xcmodels.methods.astra.method import astra
from xcmodels.methods.preset_parts import (
    BAG,
    BOOSTED_WEIGHT_2,
    M1,
    MIN_STEPS_PER_EPOCH,
    MethodEntry,
    Preset,
    Settings,
    fine_tuned,
    learned,
)
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.retrieval.serving_config import CLASSIFIER, FUSED

HUB = "distilbert/distilbert-base-uncased"
_NUMBERED: dict[str, object] = {"start": "random", "scale": 10.0, "serve": CLASSIFIER, "lr": 2e-3, "token_lr": 2e-3,
                                "label_lr": 5e-3}
_RENEE: dict[str, object] = {"every_label": True, "negatives": "random"}


def _cpu(**changed: object) -> Settings:
    # On two cores mining does not overlap training, so there is no reason to mine with an older model. Tokens stay as
    # M1 has trained them: moved, label texts are no longer read as M1's head learned to (docs/astra.md).
    config = AstraConfig(epochs=10, batch_size=512, lr=2e-4, token_lr=0.0, label_lr=0.03, warmup=50, refresh_from=4,
                         refresh_every=3, least_steps=2 * MIN_STEPS_PER_EPOCH, ahead=0, positives=20, hard=50,
                         uniform=1600, start="encoder", m1=M1, serve=FUSED, fusion=BOOSTED_WEIGHT_2)
    return Settings(BAG, replace(config, **changed))  # type: ignore[arg-type]


def _paper(source: str = HUB, *, positives: int, decay: float, texts: bool = True, **settings: float) -> Settings:
    """A row of Table 11 with its batch, k_p, k_h and k_r, totals over 16 devices, on one device; tau_s = tau_r = 5.

    texts: the data has label texts, which are added as training points; classifiers start near zero in either case.
    The rates of classifiers are about those of Renee's release, whose loss is a sum over the batch. decay: as that
    release's SGD takes it, to which momentum .9 adds up; here a step takes it all at once.
    """
    config = AstraConfig(
        token_lr=0.0, refresh_from=5, refresh_every=5, positives=positives, start="random", scale=1.0, summed=True,
        weight_decay=decay / (1 - AstraConfig.momentum),
        encoder=EncoderConfig(kind="transformer", source=source, tied=True, batch=1024), **settings)  # type: ignore[arg-type]
    return Settings(PrepareConfig(tokenizer=source, augment=texts), config)


def _presets(about: str, **changed: object) -> dict[str, Preset]:
    return {
        "cpu": Preset(f"{about}; bag of tokens started from MiniLM's, two cores, minutes", lambda: _cpu(**changed)),
        "cpu-learned": Preset(f"{about}; bag of tokens from scratch on a vocabulary learned from the data",
                              lambda: learned(_cpu(**changed), "m1.table_lr")),
        "cpu-minilm": Preset(f"{about}; cpu with MiniLM fine-tuned beside the bag, two cores",
                             lambda: fine_tuned(_cpu(**changed), "m1", "")),
        "cpu-numbered": Preset(f"{about}; bag of tokens started from MiniLM's, for labels that have no texts",
                               lambda: _cpu(**{**_NUMBERED, **changed})),
    }


_TABLE = {
    "lf-amazontitles-131k": lambda: _paper(
        positives=112, batch_size=512, epochs=75, lr=1e-5, label_lr=0.05, dropout=0.85, warmup=3000, decay=1e-4,
        uniform=6400, hard=800),
    "lf-amazon-131k": lambda: _paper(
        positives=112, batch_size=512, epochs=100, lr=1e-4, label_lr=0.05, dropout=0.75, warmup=5000, decay=1e-4,
        uniform=1600, hard=240),
    "lf-wikipedia-500k": lambda: _paper(
        positives=208, batch_size=2048, epochs=40, lr=1e-4, label_lr=0.002, dropout=0.7, warmup=2500, decay=1e-3,
        uniform=3200, hard=480),
    "lf-amazontitles-1.3m": lambda: _paper(
        positives=1264, batch_size=1024, epochs=100, lr=3e-6, label_lr=0.01, dropout=0.75, warmup=5000, decay=1e-4,
        uniform=1600, hard=240),
    "amazon-670k": lambda: _paper(
        positives=112, texts=False, batch_size=256, epochs=70, lr=4e-5, label_lr=0.01, dropout=0.8, warmup=10_000,
        decay=1e-3, uniform=6400, hard=800),
    "amazon-3m": lambda: _paper(
        positives=800, texts=False, batch_size=256, epochs=60, lr=4e-5, label_lr=0.01, dropout=0.75, warmup=10_000,
        decay=1e-3, uniform=6400, hard=800),
}

ASTRA = {**_presets("classifiers on stale hard and uniform negatives"),
         "minilm": Preset("the packaged MiniLM transformer, by batches and negatives of Table 11's first row; one GPU",
                          lambda: _paper(MINILM, positives=20, batch_size=512, epochs=75, lr=1e-4, label_lr=0.05,
                                         dropout=0.5, warmup=3000, decay=1e-5, uniform=6400, hard=800)),
         **{name: Preset(f"Table 11's row for {name}: DistilBERT from the hub; GPUs", settings)
            for name, settings in _TABLE.items()}}
RENEE = _presets("every label for every query (Renee)", **_RENEE)

METHODS = {"astra": MethodEntry(astra, ASTRA), "renee": MethodEntry(astra, RENEE)}
