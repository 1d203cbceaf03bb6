"""Transformers as backbones, texts of similar length padded together."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from xcmodels import checks
from xcmodels.data.tokens import MINILM, Tokens, minilm_folder
from xcmodels.nn import distributed
from xcmodels.nn.encoder_config import Backbone, EncoderConfig

# Tokens, padding included, of the texts that are encoded at once. On two cores a step of MiniLM's two top layers on
# 1,950 texts of 14 tokens takes 2.6 s by 2,048, 3.1 by 4,096, 3.8 by 16,384 and 2.7 to 3.0 by 1,024 and 512.
TOGETHER = {"cpu": 2048, "cuda": 65_536}
_LONGEST = 1 << 30    # tokens of a text that has no limit


class Transformer(Backbone):
    """Any encoder that `transformers` loads: the mean of its last hidden states; its embeddings are trained densely."""

    def __init__(self, model: nn.Module, special: tuple[int, int], config: EncoderConfig) -> None:
        super().__init__()
        self.model, (self.first, self.last) = model, special
        self.dim = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.batch, self.lr_share, self.max_tokens, self.bf16 = (
            config.batch, config.lr_share, config.max_tokens, config.bf16)
        self.dropping: list[nn.Module] = [model] if config.drops else []
        if config.trained_layers >= 0:
            model.requires_grad_(False)
            top = _top_layers(model, config.trained_layers)
            for layer in top:
                layer.requires_grad_(True)
            self.dropping = top if config.drops else []

    def train(self, mode: bool = True) -> "Transformer":
        """Set the mode; what does not drop out stays as outside training: drawing takes a quarter of a CPU's step."""
        super().train(mode)
        self.model.eval()
        for module in self.dropping:
            module.train(mode)
        return self

    def forward(self, tokens: Tokens, side: str) -> torch.Tensor:
        """Return (n, dim) vectors, the same on both sides; distributed training splits the texts over processes."""
        if self.training:
            return distributed.by_shards(len(tokens), lambda part: self._encoded(tokens.part(part)))
        return self._encoded(tokens)

    def _encoded(self, tokens: Tokens) -> torch.Tensor:
        """Return (n, dim) vectors; texts of similar length are padded together."""
        if len(tokens) == 0:
            return torch.empty(0, self.dim, device=tokens.offsets.device)
        # Widths are computed on the host: asked for them, a GPU would first have to finish all that it was given.
        lengths, known = (offsets.diff().clamp(max=self.max_tokens or _LONGEST) for offsets in (
            tokens.offsets, tokens.host_offsets))
        longest, ended = known.sort().values.tolist(), F.pad(tokens.ids, (0, 1))
        if (width := longest[-1] + 2) > (most := getattr(self.model.config, "max_position_embeddings", width)):
            raise ValueError(f"a text has {width} tokens with its marks, the encoder takes {most}; "
                             "lower prepare.max_title, prepare.max_content or encoder.max_tokens")
        order = lengths.argsort(stable=True)
        kind = lengths.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self.bf16 and multiplies_bf16(kind)):
            parts, end = [], 0
            for rows in _packed(order, longest, TOGETHER[kind]):
                end += len(rows)
                parts.append(self._padded(ended, tokens.offsets[rows], lengths[rows], longest[end - 1] + 2))
        return torch.cat(parts)[order.argsort()]

    def _padded(self, ids: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, width: int) -> torch.Tensor:
        """Return the vectors of the tokens of texts that begin at `starts` in `ids`, padded to `width` with marks.

        ids (T + 1,): of all texts, and one more, so that an index beyond a text's end is valid.
        """
        position = torch.arange(width, device=lengths.device).expand(len(starts), width)
        inside = (position > 0) & (position <= lengths[:, None])
        ids = torch.where(inside, ids[(starts[:, None] + position - 1).clamp(0, len(ids) - 1)], self.last)
        ids[:, 0] = self.first
        mask = position <= lengths[:, None] + 1
        hidden = self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        masked = hidden.float() * mask[:, :, None]
        return masked.sum(1) / mask.sum(1, keepdim=True)


@cache
def multiplies_bf16(device: str) -> bool:
    """Return whether the processor or GPU multiplies bf16, which then is faster than single precision."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported()
    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def _packed(order: torch.Tensor, lengths: list[int], most: int) -> list[torch.Tensor]:
    """Return `order` in parts of similar lengths, sorted, each of at most `most` tokens with padding, or one text."""
    edges = [0]
    for i, length in enumerate(lengths):
        if (i + 1 - edges[-1]) * (length + 2) > most and i > edges[-1]:
            edges.append(i)
    return list(order.tensor_split(edges[1:]))


def _top_layers(model: nn.Module, count: int) -> list[nn.Module]:
    """Return the `count` top layers of a model: the last of its longest list of modules."""
    layers = max((module for module in model.modules() if isinstance(module, nn.ModuleList)), key=len)
    if count > len(layers):
        raise ValueError(f"encoder.trained_layers must be at most {len(layers)}, the encoder's layers, got {count}")
    return list(layers)[len(layers) - count:]


def attention_options() -> dict[str, str]:
    """Return how attention is computed, for `transformers`.

    On a CPU torch's fused attention takes 1.2 of the 4.0 s of a step on short texts, plain products .2 of 3.1.
    """
    return {} if torch.cuda.is_available() else {"attn_implementation": "eager"}


def load_transformer(source: str) -> Any:
    """Return the model that `source` names; raise Unusable where there is none."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    name = minilm_folder() if source == MINILM else source
    try:
        return AutoModel.from_pretrained(str(name), local_files_only=Path(name).exists(), trust_remote_code=False,
                                         **attention_options())
    except (OSError, ValueError) as error:    # ValueError: a folder without a model
        raise checks.Unusable(f"encoder.source {source!r} is neither a folder of a model nor one that can be fetched: "
                              f"{str(error).splitlines()[0]}") from error


def build_transformer(config: EncoderConfig, idf: np.ndarray) -> Transformer:
    """Build the transformer that `config` names; raise ValueError where the tokenizer has more tokens than it."""
    model = load_transformer(config.source)
    facts = model.config
    if len(idf) // 2 > facts.vocab_size:
        raise ValueError(f"encoder.source {config.source!r} embeds {facts.vocab_size} tokens but prepare.tokenizer has "
                         f"{len(idf) // 2}; use the same for both")
    return Transformer(model, (_special(facts, ("cls_token_id", "bos_token_id"), 101),
                               _special(facts, ("sep_token_id", "eos_token_id"), 102)), config)


def _special(config: Any, names: tuple[str, ...], default: int) -> int:
    """Return the first special token id that the model's configuration names, else BERT's."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), default)
