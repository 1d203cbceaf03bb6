"""Encoders of queries and labels: a backbone with heads, unit-length vectors.

The backbone turns a text into one or several vectors, and heads turn these into the vectors that a method scores with:
one head shared or one per side (Siamese encoders), or one for the dual encoder and one for the classifier (UniDEC).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from xcmodels.data import seeds
from xcmodels.data.batching import BatchSide
from xcmodels.data.corpus import Side
from xcmodels.data.tokens import Tokens
from xcmodels.nn.autograd import V, dropout, normalise
from xcmodels.nn.backbones import build_backbone, empty_backbone, save_backbone
from xcmodels.nn.devices import device
from xcmodels.nn.encoder_config import LABEL, QUERY, Backbone, EncoderConfig
from xcmodels.nn.row_table import DTYPES, Model

M = TypeVar("M", bound=Model)
Map = Callable[[V], V]    # of n texts by torch, or of one by numpy alone outside training


@dataclass(frozen=True)
class HeadConfig:
    """One head of an encoder."""

    kind: str               # unit | gelu | residual | tanh | linear
    dim: int = 0            # of what it returns; 0 = as the backbone (always so for unit, gelu and residual)
    dropout: float = 0.0    # on what it returns (tanh, linear), on what it adds (residual)
    over: str = ""          # the head whose vectors, at unit length, it reads; "" = it reads the backbone's


@dataclass(frozen=True)
class Layout:
    """The heads of an encoder by name, and its views: the names of the heads whose vectors a view concatenates."""

    heads: Mapping[str, HeadConfig]
    views: Mapping[str, tuple[str, ...]]


def siamese(config: EncoderConfig, head: HeadConfig | None = None) -> Layout:
    """Return one head for both sides, or one per side; by default a residual layer, none on a tied transformer."""
    head = head or HeadConfig("unit" if config.kind == "transformer" and config.tied else "residual")
    if config.tied or head.kind in ("unit", "gelu"):    # neither has anything to learn
        return Layout({QUERY: head}, {QUERY: (QUERY,), LABEL: (QUERY,)})
    return Layout({QUERY: head, LABEL: head}, {QUERY: (QUERY,), LABEL: (LABEL,)})


class Layer(nn.Linear):
    """v -> dropout(activation(W v + b))."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, kind: str = "linear",
                 dropout: float = 0.0) -> None:
        super().__init__(inputs, outputs, bias)
        self.kind, self.dropout = kind, dropout

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return dropout(_activated(super().forward(vectors), self.kind), self.dropout, self.training)

    def in_numpy(self) -> Map[np.ndarray]:
        """Return `forward` outside training by numpy alone."""
        weight, bias = self.weight.detach().numpy().T, None if self.bias is None else self.bias.detach().numpy()[None]
        return lambda vectors: _activated(vectors @ weight if bias is None else vectors @ weight + bias, self.kind)


class Head(nn.Module):
    """Maps the backbone's vectors of texts (n, sums * d) to one vector each, by its layers."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.formula(vectors, *self.children())

    def in_numpy(self) -> Map[np.ndarray]:
        """Return `forward` outside training for one text, by numpy alone."""
        layers = [cast(Layer, layer).in_numpy() for layer in self.children()]
        return lambda vectors: self.formula(vectors, *layers)

    def formula(self, vectors: V, *layers: Map[V]) -> V:
        """Return a vector of each text."""
        raise NotImplementedError


class UnitHead(Head):
    """v -> normalise(v), or normalise(gelu(v)): SiameseXML's intermediate embedding (section 4).

    v is the backbone's first vector of a text, or the sum of several, `bases`, each at unit length.
    """

    def __init__(self, dim: int, kind: str, sums: int, bases: tuple[int, ...]) -> None:
        super().__init__()
        self.dim, self.kind, self.sums, self.bases = dim, kind, sums, bases

    def formula(self, vectors: V, *layers: Map[V]) -> V:
        several = len(self.bases) > 1
        base = _sum_of(self.bases, _each_normalised(vectors, self.sums), self.dim) if several else vectors[:, :self.dim]
        return normalise(_activated(base, self.kind))


class ResidualHead(Head):
    """v, v' -> normalise(v + U dropout(gelu(W [v, v'] + b))), the identity on v at the start since U = 0.

    v is the backbone's first vector of a text, or the sum of several, `bases`; v' are all others; each at unit length.
    """

    def __init__(self, dim: int, sums: int, dropout: float, bases: tuple[int, ...] = (0,)) -> None:
        super().__init__()
        self.dim, self.sums, self.bases = dim, sums, bases
        self.inner = Layer(sums * dim, dim, kind="gelu", dropout=dropout)
        self.outer = Layer(dim, dim, bias=False)
        nn.init.normal_(self.inner.weight, std=0.1 / sums**0.5)
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.weight)

    def formula(self, vectors: V, *layers: Map[V]) -> V:
        (inner, outer), units = layers, _each_normalised(vectors, self.sums)
        return normalise(_sum_of(self.bases, units, self.dim) + outer(inner(units)))


class ProjectionHead(Head):
    """v -> dropout(tanh(W v + b)) of v at mean square 1, or dropout(W v + b) of unit v: UniDEC's g1, g2 (section 4.3).

    v is the backbone's vector of a text, or several, each at unit length. W v starts as the sum of the `bases` among
    them, as a residual head does, over the root of their number, so that it stays about as long; cut to the size of W.
    """

    def __init__(self, dim: int, sums: int, config: HeadConfig, bases: tuple[int, ...] = (0,)) -> None:
        super().__init__()
        self.linear = Layer(sums * dim, config.dim or dim, kind=config.kind, dropout=config.dropout)
        self.sums, self.scale = sums, dim**0.5 if config.kind == "tanh" else 1.0
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        with torch.no_grad():
            for base in bases:
                nn.init.eye_(self.linear.weight[:, base * dim:(base + 1) * dim]).div_(len(bases)**0.5)

    def formula(self, vectors: V, *layers: Map[V]) -> V:
        return layers[0](_each_normalised(vectors, self.sums) * self.scale)


def _sum_of(bases: tuple[int, ...], vectors: V, dim: int) -> V:
    """Return the sum of some of the concatenated vectors of each text, (n, dim)."""
    first, *others = (vectors[:, base * dim:(base + 1) * dim] for base in bases)
    for other in others:
        first = first + other
    return first


def _activated(values: V, kind: str) -> V:
    """Return gelu or tanh of values where `kind` names one, else the values."""
    if kind not in ("gelu", "tanh"):
        return values
    if isinstance(values, torch.Tensor):
        return F.gelu(values) if kind == "gelu" else torch.tanh(values)
    if kind == "tanh":
        return np.tanh(values)
    from scipy.special import erf

    return values * (np.float32(0.5) * (1 + erf(np.float32(0.5**0.5) * values)))


def _each_normalised(vectors: V, sums: int) -> V:
    """Return the `sums` vectors of each row at unit length."""
    return normalise(vectors.reshape(-1, sums, vectors.shape[1] // sums)).reshape(vectors.shape)


class Encoder(Model):
    """A backbone with heads; a view of a text is the concatenation of some heads' vectors, each of unit length."""

    def __init__(self, backbone: Backbone, config: EncoderConfig, layout: Layout) -> None:
        super().__init__()
        self.backbone, self.config, self.layout = backbone, config, layout
        self.heads = nn.ModuleDict({name: _head(backbone, head) for name, head in layout.heads.items()})

    def forward(self, tokens: Tokens, view: str) -> torch.Tensor:
        """Return (n, width(view)) vectors of texts in `view`: "query", "label" or another of the layout's.

        A view whose name starts with "label" encodes texts as labels.
        """
        return self.view(self.backbone(tokens, LABEL if view.startswith(LABEL) else QUERY), view)

    def in_numpy(self, view: str) -> Callable[[Tokens], np.ndarray] | None:
        """Return a function to encode one text, (1, width(view)), by numpy alone; None where the backbone cannot.

        Up to the last digits its result is that of `forward` outside training, with the current weights. For one text
        `forward` is fifty small calls into torch, whose checks of devices, types and gradients take most of the time:
        four times as long.
        """
        backbone = self.backbone.in_numpy(LABEL if view.startswith(LABEL) else QUERY)
        if backbone is None:
            return None
        heads = {name: cast(Head, head).in_numpy() for name, head in self.heads.items()}
        return lambda tokens: self._by_heads(heads.__getitem__, backbone(tokens), view)

    def pool(self, sides: Mapping[str, BatchSide], queries: tuple[str, ...] = ("queries",)) -> dict[str, torch.Tensor]:
        """Return (n, sums * dim) vectors of each side with tokens, in one pass; sides not in `queries` are labels."""
        texts = {name: (side.tokens, QUERY if name in queries else LABEL)
                 for name, side in sides.items() if side.tokens is not None}
        return dict(zip(texts, self.backbone.groups(*texts.values()), strict=True))

    def view(self, pooled: torch.Tensor, view: str) -> torch.Tensor:
        """Return a view's vectors, (n, width(view)), from the backbone's, (n, sums * dim)."""
        return self._by_heads(self.heads.__getitem__, pooled, view)

    def _by_heads(self, head: Callable[[str], Map[V]], pooled: V, view: str) -> V:
        """Return a view's vectors by the heads that `head` returns, each over another head where its layout says so."""
        def vectors(name: str) -> V:
            over = self.layout.heads[name].over
            return normalise(head(name)(vectors(over) if over else pooled))

        parts = [vectors(name) for name in self.layout.views[view]]
        return torch.cat(parts, 1) if isinstance(pooled, torch.Tensor) else np.concatenate(parts, 1)

    def width(self, view: str) -> int:
        """Return the length of a vector of `view`."""
        return sum(map(self.head_width, self.layout.views[view]))

    def head_width(self, name: str) -> int:
        return self.layout.heads[name].dim or self.backbone.dim


def _head(backbone: Backbone, config: HeadConfig) -> Head:
    sums = 1 if config.over else backbone.sums
    bases = backbone.bases if sums > 1 else (0,)
    if config.kind in ("tanh", "linear"):
        return ProjectionHead(backbone.dim, sums, config, bases)
    if config.kind == "residual":
        return ResidualHead(backbone.dim, sums, config.dropout, bases)
    return UnitHead(backbone.dim, config.kind, sums, bases)


def build_encoder(config: EncoderConfig, idf: np.ndarray, seed: int, layout: Layout | None = None,
                  table_dtype: str = "float32") -> Encoder:
    """Build the encoder that `config` names with the heads of `layout`, by default a Siamese encoder's.

    idf (2 * vocabulary,) weighs title then content tokens; table_dtype: of token embeddings (bag).
    Raises ValueError as `build_backbone` does.
    """
    seeds.seed_torch(seed, "initial weights")
    encoder = Encoder(build_backbone(config, idf), config, layout or siamese(config))
    for table in encoder.tables().values():
        table.weight = table.weight.to(DTYPES[table_dtype])
    return encoder


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write an encoder's tensors, token embeddings held in bfloat16 as float32, and configuration to `folder`."""
    folder.mkdir(parents=True)
    facts = {"config": asdict(encoder.config), "layout": asdict(encoder.layout),
             "backbone": save_backbone(encoder.backbone, folder)}
    (folder / "encoder.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    # With empty metadata, as in a checkpoint, so that the bytes are the same and stored once.
    held = {name: value.float() if value.dtype == torch.bfloat16 else value
            for name, value in encoder.state_dict().items()}
    save_file({name: value.contiguous() for name, value in held.items()}, folder / "model.safetensors", metadata={})


def load_encoder(folder: Path) -> Encoder:
    """Read what `save_encoder` wrote; the tensors are mapped, not copied."""
    facts = json.loads((folder / "encoder.json").read_text())
    config, layout = EncoderConfig(**facts["config"]), facts["layout"]
    heads = {name: HeadConfig(**head) for name, head in layout["heads"].items()}
    layers = Layout(heads, {view: tuple(names) for view, names in layout["views"].items()})
    with torch.random.fork_rng(devices=()):    # its heads draw their first weights, which are replaced
        encoder = Encoder(empty_backbone(config, folder, facts["backbone"]), config, layers)
    encoder.load_state_dict(load_file(folder / "model.safetensors"), assign=True)
    return encoder


def encoders_on_device(model: M) -> M:
    """Move what encodes in a model to the device; its label tables, which GPUs may have shared, stay on the CPU."""
    for module in model.modules():
        if isinstance(module, Encoder):
            module.to(device())
    return model


@torch.no_grad()
def encode_all(encoder: Encoder, side: Side, view: str, rows: np.ndarray | None = None) -> np.ndarray:
    """Encode a whole side of a corpus, or `rows` of it, (n, width(view)) float32, `backbone.batch` texts at a time."""
    encoder.eval()
    batch = encoder.backbone.batch
    rows = np.arange(len(side)) if rows is None else rows
    on = next(chain(encoder.parameters(), encoder.buffers())).device
    out = np.empty((len(rows), encoder.width(view)), dtype=np.float32)
    for start in range(0, len(rows), batch):
        part = rows[start:start + batch]
        out[start:start + len(part)] = encoder(side.tokens(part).to(on), view).cpu().numpy()
    return out
