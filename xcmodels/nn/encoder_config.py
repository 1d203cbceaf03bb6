"""The settings of an encoder, and the interface of its backbone."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from xcmodels import checks
from xcmodels.data.tokens import MINILM, Tokens
from xcmodels.nn.row_table import Model

QUERY, LABEL = "query", "label"     # the sides that a text can be encoded for


@dataclass(frozen=True)
class EncoderConfig:
    """The kind of encoder and what it is initialised from."""

    kind: str = "bag"           # bag | transformer | both: a learned vector a token, summed; a language model
    source: str = MINILM        # minilm | random (bag only) | a folder | a hub id
    dim: int = 384              # of a bag started at random; otherwise the source decides
    tied: bool = False          # both sides share all weights (Siamese to the letter), or token embeddings alone (bag)
    token_dropout: float = 0.0  # share of a text's tokens left out in training (bag)
    idf_power: float = 0.0      # a token weighs idf^power, times a learned weight of its place (bag)
    places: int = 24            # of a field that have a weight of their own, the rest share the last; 0 = none (bag)
    sums: int = 2               # of a text's tokens, each with weights of places of its own (bag)
    batch: int = 4096           # texts encoded at once outside training
    trained_layers: int = -1    # the top ones; -1 = all, and the token embeddings (transformer)
    cache_frozen: bool = False  # what the layers below trained ones make of texts is computed once (transformer)
    lr_share: float = 1.0       # learning rate of its weights, as a share of other dense parameters' (transformer)
    max_tokens: int = 0         # of a text that are read, its first; 0 = all (transformer)
    drops: bool = True          # layers that are trained drop out as their source says (transformer)
    bf16: bool = True           # products in bf16 where the processor or the GPU multiplies it (transformer)

    def __post_init__(self) -> None:
        checks.one_of(self, kind=("bag", "transformer", "both"))
        checks.at_least(self, 1, "dim", "sums", "batch")
        checks.at_least(self, 0, "idf_power", "places", "lr_share", "max_tokens")
        checks.at_least(self, -1, "trained_layers")
        checks.share(self, "token_dropout", whole=False)
        if self.kind != "bag" and self.source == "random":
            raise ValueError(f"source must name a folder or a hub id where kind is {self.kind}, got 'random'")
        if self.kind != "transformer" and self.sums > 1 and not self.places:
            raise ValueError(f"sums must be 1 where places is 0, got {self.sums}: nothing else tells them apart")

    @property
    def keeps_states(self) -> bool:
        """Whether the states that frozen layers make of texts are kept; only those below trained layers are frozen."""
        return self.cache_frozen and self.kind != "bag" and self.trained_layers > 0

    @property
    def settings_of_states(self) -> dict[str, object]:
        """The settings that these states depend on, by name."""
        return {name: getattr(self, name) for name in ("source", "trained_layers", "max_tokens", "batch", "bf16")}


class Backbone(Model):
    """Encodes a text as `sums` concatenated vectors of length `dim`; `batch` texts at once outside training."""

    dim: int
    sums = 1
    bases: tuple[int, ...] = (0,)    # those of the `sums` whose sum a residual head begins as
    batch: int

    def forward(self, tokens: Tokens, side: str) -> torch.Tensor:
        """Return (n, sums * dim) vectors of texts on `side`, "query" or "label"; not normalised."""
        return self.groups((tokens, side))[0]

    def groups(self, *texts: tuple[Tokens, str]) -> list[torch.Tensor]:
        """Return such vectors of several groups of texts, each with its side."""
        raise NotImplementedError

    def in_numpy(self, side: str) -> Callable[[Tokens], np.ndarray] | None:
        """Return a function to encode one text on `side` as (1, sums * dim) by numpy alone; None if there is none."""
        return None
