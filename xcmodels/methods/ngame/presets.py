"""NGAME's presets."""

from dataclasses import replace

from xcmodels.data.prepare_config import PrepareConfig
from xcmodels.data.tokens import MINILM
from xcmodels.methods.ngame.config import ClassifierModuleConfig, NgameConfig
from xcmodels.methods.ngame.method import ngame
from xcmodels.methods.ngame_m1 import EncoderModuleConfig
from xcmodels.methods.preset_parts import BAG, BOOSTED, M1, MethodEntry, Preset, Settings, boosted, fine_tuned, learned
from xcmodels.nn.encoder_config import EncoderConfig

HUB = "sentence-transformers/msmarco-distilbert-base-v4"


def _cpu_method() -> NgameConfig:
    # The release's three positives of a query are the rarest of its labels, where it has many: classifiers of frequent
    # labels then learn from negatives alone (docs/ngame.md).
    return NgameConfig(
        m1=M1,
        m2=ClassifierModuleConfig(epochs=12, batch_size=1024, table_lr=3e-3, warmup=50, refresh_from=6, refresh_every=6,
                        double_every=6, cluster_size=8, cluster_max=32, positives=30, negatives=100, dropout=0.5),
        fusion=BOOSTED)


def _cpu() -> Settings:
    return Settings(BAG, _cpu_method())


def _quick() -> Settings:
    """`_cpu` by fewer epochs, M1's on random batches, and fewer steps of the linear classifiers."""
    method = _cpu_method()
    return Settings(BAG, replace(
        method, m1=replace(method.m1, epochs=3, cluster_size=0),
        m2=replace(method.m2, epochs=3, refresh_from=2, refresh_every=2, double_every=2),
        fusion=replace(BOOSTED, sparse=replace(BOOSTED.sparse, steps=20))))


def _paper(source: str = HUB, *, batch: int, epochs: int = 300, length: int = 32) -> Settings:
    """A row of NGAME's Table 9, on the encoder `source`; length: tokens of a text, title included.

    What the paper leaves open is as in the authors' release: warm-ups, M2's batch size, epochs, dropout and pairs,
    that clusters start at epoch 10, and that none is larger than a batch.
    """
    return Settings(PrepareConfig(tokenizer=source, max_content=length - 32 if length > 32 else 64), NgameConfig(
        encoder=EncoderConfig(kind="transformer", source=source, tied=True, batch=1024),
        m1=EncoderModuleConfig(epochs=epochs, batch_size=batch, lr=1e-4, table_lr=0.0, warmup=100, refresh_from=10,
                        refresh_every=5, double_every=25, cluster_size=2, temperature=0.0,
                        cluster_max=512 if batch >= 512 else 256),
        m2=ClassifierModuleConfig(epochs=100, batch_size=2048, table_lr=1e-3, warmup=500, refresh_from=0,
                        refresh_every=5, double_every=25, cluster_size=2, cluster_max=32, positives=3, negatives=5,
                        temperature=0.0, dropout=0.5)))


_TABLE = {
    "lf-amazontitles-131k": lambda: _paper(batch=1600),
    "lf-amazontitles-1.3m": lambda: _paper(batch=1600),
    "lf-amazon-131k": lambda: _paper(batch=350, length=128),
    "lf-wikiseealso-320k": lambda: _paper(batch=350, length=128),
    "lf-wikipedia-500k": lambda: _paper(batch=256, epochs=40, length=256),
}

NGAME = {
    "cpu": Preset("bag of tokens started from MiniLM's token embeddings; two cores, minutes", _cpu),
    "cpu-quick": Preset("cpu with 6 epochs instead of 20: a first model, to see what the data can give", _quick),
    "cpu-learned": Preset("bag of tokens from scratch on a vocabulary learned from the data: any language",
                          lambda: learned(_cpu(), "m1.table_lr")),
    "cpu-minilm": Preset("cpu with MiniLM fine-tuned beside the bag; two cores",
                         lambda: fine_tuned(_cpu(), "m1")),
    "minilm": Preset("the packaged MiniLM transformer with the paper's rates and refreshes, 100 epochs instead of 300, "
                     "fused as cpu is; one GPU",
                     lambda: boosted(_paper(MINILM, batch=1600, epochs=100))),
    **{name: Preset(f"Table 9's row for {name}: msmarco-distilbert from the hub; GPUs", settings)
       for name, settings in _TABLE.items()},
}

METHODS = {"ngame": MethodEntry(ngame, NGAME)}
