"""Encoders: texts to vectors on the unit sphere, for queries and labels alike."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from xcmodels import seeds
from xcmodels.corpus import Side
from xcmodels.method import Model
from xcmodels.tables import RowTable
from xcmodels.tokens import MINILM, Tokens, join, minilm_folder

QUERY, LABEL = "query", "label"


@dataclass(frozen=True)
class EncoderConfig:
    """Which encoder and what it starts from."""

    kind: str = "bag"           # bag | transformer
    source: str = MINILM        # minilm | random (bag only) | a folder | a hub id
    dim: int = 384              # of a bag started at random; otherwise the source decides
    tied: bool = False          # one residual layer for both sides (Siamese to the letter), or one a side
    token_dropout: float = 0.0  # share of a text's tokens left out in training (bag)
    idf_power: float = 1.0      # a token weighs idf^power (bag)
    batch: int = 4096           # texts encoded at once outside training


class Residual(nn.Module):
    """v -> normalise(v + U gelu(W v + b)), the identity at the start since U = 0."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inner = nn.Linear(dim, dim)
        self.outer = nn.Linear(dim, dim, bias=False)
        nn.init.normal_(self.inner.weight, std=0.1)
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.weight)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        unit = F.normalize(vectors, dim=1)
        return F.normalize(unit + self.outer(F.gelu(self.inner(unit))), dim=1)


class Encoder(Model):
    """Texts to vectors on the unit sphere; `dim` long, `batch` texts at once outside training."""

    dim: int
    batch: int

    def forward(self, tokens: Tokens, side: str) -> torch.Tensor:
        """Return (n, dim) unit vectors of texts on `side`, "query" or "label"."""
        raise NotImplementedError

    def both(self, queries: Tokens, labels: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the vectors of queries and of labels."""
        return self(queries, QUERY), self(labels, LABEL)


class BagOfTokens(Encoder):
    """The idf-weighted sum of a text's token embeddings, then a residual layer.

    A token has one embedding in titles and another in contents, equal at the start: which field a word stands
    in says much about what it says. `tied=False` gives queries and labels a residual layer each, so that a
    relation may have a direction ("dog" -> "canine" and not back); the token embeddings are always shared.
    """

    def __init__(self, embeddings: torch.Tensor, idf: torch.Tensor, config: EncoderConfig) -> None:
        super().__init__()
        self.vocabulary, self.dim = embeddings.shape
        self.table = RowTable(embeddings.repeat(2, 1))
        self.register_buffer("idf", idf)
        self.dropout, self.batch = config.token_dropout, config.batch
        sides = (QUERY,) if config.tied else (QUERY, LABEL)
        self.heads = nn.ModuleDict({side: Residual(self.dim) for side in sides})

    idf: torch.Tensor

    def tables(self) -> dict[str, RowTable]:
        """The matrices that are trained by rows."""
        return {"tokens": self.table}

    def forward(self, tokens: Tokens, side: str) -> torch.Tensor:
        """Return (n, dim) unit vectors; a text without a token is the head's image of the origin."""
        return self.head(self.bag(tokens), side)

    def both(self, queries: Tokens, labels: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the vectors of queries and of labels, summed in one go so that shared rows are gathered once."""
        sums = self.bag(join(queries, labels))
        return self.head(sums[:len(queries)], QUERY), self.head(sums[len(queries):], LABEL)

    def bag(self, tokens: Tokens) -> torch.Tensor:
        """Return (n, dim) weighted sums of token embeddings."""
        ids = tokens.ids + self.vocabulary * (~tokens.in_title())
        weights = self.idf[ids]
        if self.training and self.dropout:
            weights = weights * (torch.rand_like(weights) >= self.dropout)
        rows, place = self.table.gather(ids)
        return F.embedding_bag(place, rows, tokens.offsets, mode="sum", per_sample_weights=weights,
                               include_last_offset=True)

    def head(self, sums: torch.Tensor, side: str) -> torch.Tensor:
        """Return the unit vectors of (n, dim) sums on `side`, "query" or "label"."""
        return self.heads[side if side in self.heads else QUERY](sums)


class Transformer(Encoder):
    """Any encoder that `transformers` loads: mean of the last hidden states, on the unit sphere."""

    def __init__(self, model: nn.Module, special: tuple[int, int], batch: int) -> None:
        super().__init__()
        self.model, (self.first, self.last), self.batch = model, special, batch
        self.dim = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]

    def tables(self) -> dict[str, RowTable]:
        """A transformer's embeddings are trained densely."""
        return {}

    def forward(self, tokens: Tokens, side: str) -> torch.Tensor:
        """Return (n, dim) unit vectors; padded to the longest text of the batch and no further."""
        if len(tokens) == 0:
            return torch.empty(0, self.dim, device=tokens.offsets.device)
        lengths = tokens.offsets.diff()
        width = int(lengths.max()) + 2
        if width > (most := getattr(self.model.config, "max_position_embeddings", width)):
            raise ValueError(f"a text has {width} tokens with its marks, the encoder takes {most}; "
                             "lower prepare.max_title or prepare.max_content")
        place = torch.arange(width, device=lengths.device).expand(len(tokens), width)
        ids = torch.full((len(tokens), width), self.last, device=lengths.device)
        ids[:, 0] = self.first
        ids[(place > 0) & (place <= lengths[:, None])] = tokens.ids
        mask = place <= lengths[:, None] + 1
        bf16 = lengths.device.type == "cuda" and torch.cuda.is_bf16_supported()
        with torch.autocast(lengths.device.type, torch.bfloat16, enabled=bf16):
            hidden = self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        kept = hidden.float() * mask[:, :, None]
        return F.normalize(kept.sum(1) / mask.sum(1, keepdim=True), dim=1)


def build_encoder(config: EncoderConfig, idf: np.ndarray, seed: int) -> Encoder:
    """Build the encoder that `config` names; `idf` (2 * vocabulary,) weighs title then content tokens.

    Raises ValueError for an unknown kind or a source whose vocabulary is not the tokenizer's.
    """
    if config.kind not in _BUILDERS:
        raise ValueError(f"encoder.kind must be one of {', '.join(_BUILDERS)}, got {config.kind!r}")
    seeds.seed_torch(seed, "initial weights")
    return _BUILDERS[config.kind](config, idf)


def _build_bag(config: EncoderConfig, idf: np.ndarray) -> BagOfTokens:
    vocabulary = len(idf) // 2
    if config.source == "random":
        embeddings = torch.randn(vocabulary, config.dim) * config.dim**-0.5
    else:
        embeddings = _token_embeddings(config.source)
        if len(embeddings) != vocabulary:
            raise ValueError(f"encoder.source {config.source!r} embeds {len(embeddings)} tokens but prepare.tokenizer "
                             f"has {vocabulary}; use the same for both, or encoder.source=random")
    return BagOfTokens(embeddings, torch.from_numpy(np.asarray(idf, dtype=np.float32) ** config.idf_power), config)


def _token_embeddings(source: str) -> torch.Tensor:
    """Return the token embeddings of a transformer, centred, of unit mean square norm."""
    weight = _load(source).get_input_embeddings().weight.detach().float()
    weight = weight - weight.mean(0)
    return weight / weight.square().sum(1).mean().sqrt()


def _build_transformer(config: EncoderConfig, idf: np.ndarray) -> Transformer:
    if config.source == "random":
        raise ValueError("encoder.source=random is for encoder.kind=bag; name a folder or a hub id")
    model = _load(config.source)
    kept = model.config
    if len(idf) // 2 > kept.vocab_size:
        raise ValueError(f"encoder.source {config.source!r} embeds {kept.vocab_size} tokens but prepare.tokenizer has "
                         f"{len(idf) // 2}; use the same for both")
    return Transformer(model, (_special(kept, ("cls_token_id", "bos_token_id"), 101),
                               _special(kept, ("sep_token_id", "eos_token_id"), 102)), config.batch)


def _special(config: Any, names: tuple[str, ...], default: int) -> int:
    """Return the first special token id that the model's configuration names, else BERT's."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), default)


def _load(source: str) -> Any:
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    place = minilm_folder() if source == MINILM else source
    return AutoModel.from_pretrained(str(place), local_files_only=Path(place).exists(), trust_remote_code=False)


_BUILDERS: dict[str, Callable[[EncoderConfig, np.ndarray], Encoder]] = {
    "bag": _build_bag, "transformer": _build_transformer}


def save_encoder(encoder: Encoder, config: EncoderConfig, folder: Path) -> None:
    """Write an encoder's tensors and configuration to `folder`."""
    folder.mkdir(parents=True)
    if isinstance(encoder, Transformer):
        encoder.model.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
    facts = {"config": asdict(config), "vocabulary": getattr(encoder, "vocabulary", 0), "dim": encoder.dim,
             "special": [encoder.first, encoder.last] if isinstance(encoder, Transformer) else []}
    (folder / "encoder.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    save_file({name: value.contiguous() for name, value in encoder.state_dict().items()}, folder / "model.safetensors")


def load_encoder(folder: Path) -> Encoder:
    """Read what `save_encoder` wrote, needing nothing but the folder; the tensors are mapped, not copied."""
    facts = json.loads((folder / "encoder.json").read_text())
    config = EncoderConfig(**facts["config"])
    if config.kind == "bag":
        with torch.device("meta"):
            empty: Encoder = BagOfTokens(torch.empty(facts["vocabulary"], facts["dim"]),
                                         torch.empty(2 * facts["vocabulary"]), config)
    else:
        from transformers import AutoConfig, AutoModel

        # Not on the meta device: a transformer's position ids are computed when it is made, not saved.
        empty = Transformer(AutoModel.from_config(AutoConfig.from_pretrained(folder)), tuple(facts["special"]),
                            config.batch)
    empty.load_state_dict(load_file(folder / "model.safetensors"), assign=True)
    return empty


@torch.no_grad()
def encode_all(encoder: Encoder, corpus_side: Side, side: str, rows: np.ndarray | None = None) -> np.ndarray:
    """Encode a whole side of a corpus, or `rows` of it, (n, dim) float32, `encoder.batch` texts at a time."""
    encoder.eval()
    batch = encoder.batch
    rows = np.arange(len(corpus_side)) if rows is None else rows
    device = next(encoder.parameters()).device
    out = np.empty((len(rows), encoder.dim), dtype=np.float32)
    for start in range(0, len(rows), batch):
        part = rows[start:start + batch]
        out[start:start + len(part)] = encoder(corpus_side.tokens(part).to(device), side).cpu().numpy()
    return out
