"""Backbones of encoders: a bag of token embeddings, a transformer, or both side by side."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

from xcmodels.data.tokens import MINILM, Tokens, join, minilm_folder
from xcmodels.nn.autograd import weighted_sums
from xcmodels.nn.encoder_config import LABEL, QUERY, Backbone, EncoderConfig
from xcmodels.nn.row_table import RowTable
from xcmodels.nn.transformer import Transformer, attention_options, build_transformer, load_transformer

BOTH = ("bag", "transformer")
_EMBEDDINGS = ("word_embeddings.weight", "embed_tokens.weight", "wte.weight")    # in BERT, LLaMA, GPT-2


class BagOfTokens(Backbone):
    """Sums of a text's token embeddings, weighted by position in the field and by a power of idf.

    The power is 0 by default: a rare token is the least trained and would weigh the most, and embeddings learn their
    weight. A token has one embedding in titles and another in contents, equal at the start, since the field matters for
    its meaning. So does the position, differently for queries and labels: the weights of positions (`places`) are
    learned for each side, or for both together where the encoder is tied. They start at 1; those of further sums decay
    from the first position on, so that a head can tell the beginning of a text from the rest.
    """

    def __init__(self, embeddings: torch.Tensor, idf: torch.Tensor, config: EncoderConfig) -> None:
        super().__init__()
        self.vocabulary, self.dim = embeddings.shape
        self.table = RowTable(embeddings.repeat(2, 1))
        self.register_buffer("idf", idf)
        self.sides = {QUERY: 0, LABEL: 0 if config.tied else 1}
        self.sums, sides = config.sums, len(set(self.sides.values()))
        reach = torch.tensor([torch.inf, *(4.0**k for k in range(1, config.sums))])
        places = torch.exp(-torch.arange(config.places) / reach[:, None])[:, None, None].repeat(1, sides, 2, 1)
        self.places = nn.Parameter(places) if config.places else None
        self.dropout, self.batch = config.token_dropout, config.batch

    idf: torch.Tensor

    def groups(self, *texts: tuple[Tokens, str]) -> list[torch.Tensor]:
        """Return the vectors of several groups of texts, summed together so that a shared row is gathered once.

        A text without tokens gets zeros.
        """
        if len(texts) == 1:
            ((tokens, side),) = texts
            return [self._sums(tokens, self.sides[side])]
        joined = join(*(tokens for tokens, _ in texts))
        sides = torch.tensor([self.sides[side] for _, side in texts], device=joined.ids.device)
        token_sides = sides.repeat_interleave(torch.tensor([len(tokens.ids) for tokens, _ in texts],
                                                           device=sides.device), output_size=len(joined.ids))
        return list(self._sums(joined, token_sides).split([len(tokens) for tokens, _ in texts]))

    def _sums(self, tokens: Tokens, sides: torch.Tensor | int) -> torch.Tensor:
        """Return the sums of each text; sides: of all tokens, or of each token."""
        in_title, position = tokens.fields()
        ids = tokens.ids + self.vocabulary * (~in_title)
        weights = self.idf[ids]
        if self.training and self.dropout:
            weights = weights * (torch.rand_like(weights) >= self.dropout)
        sum_weights = weights[:, None]
        if self.places is not None:
            n = self.places.shape[3]
            weight_ids = (2 * sides + (~in_title).long()) * n + position.clamp(max=n - 1)
            # Not self.places[...]: the gradient of indexing is summed in random order by several threads.
            sum_weights = sum_weights * F.embedding(weight_ids, self.places.view(self.sums, -1).T)
        rows, inverse = self.table.gather(ids)
        return weighted_sums(rows, sum_weights.T.contiguous(), inverse, tokens.offsets)

    def in_numpy(self, side: str) -> Callable[[Tokens], np.ndarray]:
        """Return a function to encode one text as (1, sums * dim) by numpy, with the weights of `forward`."""
        table, idf, vocabulary = self.table.weight.to(self.table.dtype).numpy(), self.idf.numpy(), self.vocabulary
        places = None if self.places is None else self.places.detach().numpy()[:, self.sides[side]]

        def sums(tokens: Tokens) -> np.ndarray:
            ids, titles = tokens.ids.numpy(), int(tokens.titles[0])
            content = np.arange(len(ids)) >= titles
            ids = ids + vocabulary * content
            weights = idf[ids][None]
            if places is not None:
                position = np.arange(len(ids)) - titles * content
                weights = weights * places[:, content.view(np.int8), np.minimum(position, places.shape[2] - 1)]
            return (weights @ table[ids]).reshape(1, -1)

        return sums


class BagAndTransformer(Backbone):
    """A bag's sums of a text, then a transformer's vector of it: words as they are, and what they mean together."""

    def __init__(self, bag: BagOfTokens, transformer: Transformer) -> None:
        super().__init__()
        if bag.dim != transformer.dim:
            raise ValueError(f"encoder.source has embeddings of {bag.dim} and hidden states of {transformer.dim}: they "
                             "must be as wide where encoder.kind is both")
        self.bag, self.transformer = bag, transformer
        self.dim, self.sums, self.bases, self.batch = bag.dim, bag.sums + 1, (0, bag.sums), transformer.batch

    def groups(self, *texts: tuple[Tokens, str]) -> list[torch.Tensor]:
        """Return the vectors of several groups of texts; texts of all groups are padded together."""
        vectors = self.transformer(join(*(tokens for tokens, _ in texts)), QUERY)
        parts = vectors.split([len(tokens) for tokens, _ in texts])
        return [torch.cat([sums, part], 1) for sums, part in zip(self.bag.groups(*texts), parts, strict=True)]


def build_backbone(config: EncoderConfig, idf: np.ndarray) -> Backbone:
    """Build the backbone that `config` names; `idf` (2 * vocabulary,) weighs title then content tokens.

    Raises ValueError for a source that cannot be opened, or whose vocabulary is not the tokenizer's.
    """
    if config.kind == "both":
        return BagAndTransformer(_build_bag(config, idf), build_transformer(config, idf))
    return (_build_bag if config.kind == "bag" else build_transformer)(config, idf)


def save_backbone(backbone: Backbone, folder: Path) -> dict[str, Any]:
    """Write the files that `empty_backbone` reads to `folder`, and return its argument `facts`."""
    if isinstance(backbone, BagAndTransformer):
        return save_backbone(backbone.bag, folder) | save_backbone(backbone.transformer, folder)
    if isinstance(backbone, Transformer):
        backbone.model.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
        return {"special": [backbone.first, backbone.last]}
    assert isinstance(backbone, BagOfTokens)
    return {"vocabulary": backbone.vocabulary, "dim": backbone.dim}


def empty_backbone(config: EncoderConfig, folder: Path, facts: dict[str, Any]) -> Backbone:
    """Return a backbone whose tensors are yet to be loaded."""
    if config.kind == "both":
        bag, transformer = (empty_backbone(replace(config, kind=part), folder, facts) for part in BOTH)
        assert isinstance(bag, BagOfTokens) and isinstance(transformer, Transformer)
        return BagAndTransformer(bag, transformer)
    if config.kind == "bag":
        embeddings, idf = (torch.empty(*shape, device="meta") for shape in (
            (facts["vocabulary"], facts["dim"]), (2 * facts["vocabulary"],)))
        return BagOfTokens(embeddings, idf, config)
    from transformers import AutoConfig, AutoModel

    # Not on the meta device: a transformer computes its position ids at construction and does not save them.
    model_config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return Transformer(AutoModel.from_config(model_config, **attention_options()), tuple(facts["special"]), config)


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
    weight = _stored_embeddings(source)
    if weight is None:
        weight = load_transformer(source).get_input_embeddings().weight.detach()
    weight = weight.float()
    weight = weight - weight.mean(0)
    return weight / weight.square().sum(1).mean().sqrt()


def _stored_embeddings(source: str) -> torch.Tensor | None:
    """Return the token embeddings in a model folder's safetensors file; None without that file or a known name.

    `transformers` would find them in any model, but takes five seconds to import.
    """
    file = (minilm_folder() if source == MINILM else Path(source)) / "model.safetensors"
    if not file.exists():
        return None
    with safe_open(file, "pt") as tensors:
        names = [name for name in tensors.keys() if name.endswith(_EMBEDDINGS)]  # noqa: SIM118
        return tensors.get_tensor(names[0]) if len(names) == 1 else None
