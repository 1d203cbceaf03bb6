"""NGAME's presets."""

from xcmodels.corpus import PrepareConfig
from xcmodels.methods.ngame import ModuleConfig, NgameConfig
from xcmodels.presets.settings import BOOSTED, Preset, Settings, learned
from xcmodels.tokens import MINILM
from xcmodels.trunks import EncoderConfig


def _cpu() -> Settings:
    return Settings(PrepareConfig(), NgameConfig(
        m1=ModuleConfig(epochs=8, batch_size=1024, lr=5e-3, table_lr=2e-3, warmup=50, refresh_from=3,
                        refresh_every=3, double_every=3, cluster_size=8, cluster_max=32, negatives=50),
        m2=ModuleConfig(epochs=12, batch_size=1024, lr=0.0, table_lr=1e-3, warmup=50, refresh_from=6, refresh_every=6,
                        double_every=6, cluster_size=8, cluster_max=32, positives=3, negatives=30, dropout=0.5),
        fusion=BOOSTED))


def _paper(encoder: str, epochs: int, prepare: PrepareConfig) -> Settings:
    """The hyper-parameters of NGAME's Table 9 for short texts, on the encoder named.

    What the paper leaves open is as in the authors' release: warm-ups, M2's batch size, epochs, dropout and pairs,
    and that clusters start at epoch 10.
    """
    return Settings(prepare, NgameConfig(
        encoder=EncoderConfig(kind="transformer", source=encoder, tied=True, batch=256),
        m1=ModuleConfig(epochs=epochs, batch_size=1600, lr=1e-4, table_lr=0.0, warmup=100, refresh_from=10,
                        refresh_every=5, double_every=25, cluster_size=2, cluster_max=512, temperature=0.0),
        m2=ModuleConfig(epochs=100, batch_size=2048, lr=0.0, table_lr=1e-3, warmup=500, refresh_from=0,
                        refresh_every=5, double_every=25, cluster_size=2, cluster_max=32, positives=3, negatives=5,
                        temperature=0.0, dropout=0.5)))


NGAME = {
    "cpu": Preset("bag of tokens started from MiniLM's token embeddings; two cores, minutes", _cpu),
    "cpu-learned": Preset("bag of tokens from scratch on a vocabulary learned from the data: any language",
                          lambda: learned(_cpu())),
    "minilm": Preset("the paper's schedule on the packaged MiniLM transformer; one GPU",
                     lambda: _paper(MINILM, 100, PrepareConfig())),
    "paper": Preset("the paper's set-up: msmarco-distilbert from the hub, 300 epochs; GPUs",
                    lambda: _paper("sentence-transformers/msmarco-distilbert-base-v4", 300, PrepareConfig(
                        tokenizer="sentence-transformers/msmarco-distilbert-base-v4"))),
}
