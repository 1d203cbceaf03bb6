"""Transformers as backbones, texts of similar length padded together."""

from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from xcmodels import checks
from xcmodels.data.frozen_states import FrozenStates
from xcmodels.data.tokens import MINILM, Tokens, join, minilm_folder, open_backend
from xcmodels.nn import distributed
from xcmodels.nn.devices import keep_kernels
from xcmodels.nn.encoder_config import QUERY, Backbone, EncoderConfig
from xcmodels.nn.layers import beginning_at, states_below, top_layers
from xcmodels.nn.text_layout import PaddedPart, RowLayout, padded_parts

ROWS = 512              # rows of texts that a GPU encodes at once outside training
PLACED = ("bert", "distilbert")    # types of models whose tokens can be told their positions, from 0 on
_LONGEST = 1 << 30      # tokens of a text that has no limit


class Transformer(Backbone):
    """Any encoder that `transformers` loads: the mean of its last hidden states; its embeddings are trained densely."""

    def __init__(self, model: nn.Module, special: tuple[int, int], config: EncoderConfig) -> None:
        super().__init__()
        self.model, (self.first, self.last) = model, special
        self.dim = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.places_tokens = model.config.model_type in PLACED  # type: ignore[union-attr, operator]
        self.most_tokens = _most_tokens(model)
        self.batch, self.lr_share, self.max_tokens, self.bf16 = (
            config.batch, config.lr_share, config.max_tokens, config.bf16)
        self.dropping: list[nn.Module] = [model] if config.drops else []
        self.top = config.trained_layers if config.keeps_states else 0    # layers that frozen ones' states are for
        if config.trained_layers >= 0:
            model.requires_grad_(False)
            top = top_layers(model, config.trained_layers, frozen=config.keeps_states)
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
        if not self.training or distributed.count() == 1:
            return self._encoded(tokens)
        sizes = self.state_counts(tokens.host_offsets.diff().numpy())
        return distributed.by_shares(sizes, lambda texts: self._encoded(tokens.take(texts)))

    def groups(self, *texts: tuple[Tokens, str]) -> list[torch.Tensor]:
        """Return the vectors of several groups of texts, encoded together."""
        if len(texts) == 1:
            return [self(*texts[0])]
        vectors = self(join(*(tokens for tokens, _ in texts)), QUERY)
        return list(vectors.split([len(tokens) for tokens, _ in texts]))

    def _encoded(self, tokens: Tokens) -> torch.Tensor:
        """Return (n, dim) vectors; texts of similar length are padded together."""
        if len(tokens) == 0:
            return torch.empty(0, self.dim, device=tokens.offsets.device)
        lengths, host_lengths = self._lengths(tokens)
        kind = lengths.device.type
        with self._precision(kind):
            if kind == "cuda" and self.places_tokens:
                return self._in_rows(tokens, lengths, host_lengths)
            order = lengths.argsort(stable=True)
            parts = [self._padded(tokens, part.texts, lengths[part.texts], part.width)[:part.count]
                     for part in self._parts(order, host_lengths)]
            return torch.cat(parts)[order.argsort()]

    def frozen_states(self, tokens: Tokens) -> torch.Tensor:
        """Return the states (S, dim) that the frozen layers make of texts, one text after another (`state_counts`)."""
        lengths, host_lengths = self._lengths(tokens)
        sizes, device = lengths + 2, lengths.device
        starts = sizes.cumsum(0) - sizes
        states = torch.empty(int((host_lengths + 2).sum()), self.dim, device=device)
        with self._precision(device.type):
            for part in self._parts(lengths.argsort(stable=True), host_lengths):
                texts, width = part.texts, part.width
                mask = _mask(lengths[texts], width)
                made = states_below(self.model, self.top, attention_mask=mask.long(),
                                    input_ids=self._marked(tokens, texts, lengths[texts], width))[:part.count]
                mask, places = mask[:part.count], starts[texts[:part.count], None] + torch.arange(width, device=device)
                states[places[mask]] = made[mask].float()
        return states

    def state_counts(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many states texts of these lengths have: one for each token that is read, and for two marks."""
        return np.minimum(lengths, self.max_tokens or _LONGEST) + 2

    def _lengths(self, tokens: Tokens) -> tuple[torch.Tensor, np.ndarray]:
        """Return how many tokens of each text are read, (n,), on the device and in the host's memory.

        The host has its own: asked for them, a GPU would first have to finish all that it was given.
        """
        lengths, on_host = (offsets.diff().clamp(max=self.max_tokens or _LONGEST) for offsets in (
            tokens.offsets, tokens.host_offsets))
        host_lengths = on_host.numpy()
        width = int(host_lengths.max()) + 2
        if width > (most := self.most_tokens or width):
            raise ValueError(f"a text has {width} tokens with its marks, the encoder takes {most}; "
                             "lower prepare.max_title, prepare.max_content or encoder.max_tokens")
        return lengths, host_lengths

    def _parts(self, order: torch.Tensor, lengths: np.ndarray) -> list[PaddedPart]:
        kind = order.device.type
        return padded_parts(order, lengths + 2, compiled=kind == "cuda" or (self.bf16 and multiplies_bf16(kind)))

    def _precision(self, kind: str) -> torch.autocast:
        return torch.autocast(kind, torch.bfloat16, enabled=self.bf16 and multiplies_bf16(kind))

    def _in_rows(self, tokens: Tokens, lengths: torch.Tensor, host_lengths: np.ndarray) -> torch.Tensor:
        """Return what `_padded` does for texts of any lengths, one after another in rows of the same width.

        Padding each to the longest, a GPU would compute twice as much for titles, and every batch would be of a shape
        for which no product was ever chosen.
        """
        layout, device = RowLayout.of(host_lengths + 2), lengths.device
        cells = layout.begins.to(device, non_blocking=True)
        text = torch.arange(len(lengths), device=device).repeat_interleave(lengths + 2, output_size=layout.tokens)
        ends = F.pad((lengths + 2).cumsum(0), (1, 0))
        position = torch.arange(layout.tokens, device=device) - ends[text]
        cell = cells[text] + position

        def in_cells(values: torch.Tensor, others: int) -> torch.Tensor:
            filled = values.new_full((layout.rows * layout.width, *values.shape[1:]), others)
            return filled.index_copy_(0, cell, values).unflatten(0, (layout.rows, layout.width))

        if (states := self._states(tokens)) is None:
            marked = torch.where((position > 0) & (position <= lengths[text]),
                                 _ids_at(tokens, tokens.offsets[text] + position - 1), self.last)
            given = in_cells(torch.where(position == 0, self.first, marked), self.last)
        else:
            given = in_cells(torch.from_numpy(states.read(np.arange(len(tokens)))).to(device), 0)
        inputs = given, in_cells(position, 0), in_cells(text, -1)
        parts = zip(*(each.split(layout.rows if self.training else ROWS) for each in inputs), strict=True)
        in_bf16 = self.training and torch.is_autocast_enabled(device.type)
        last = [self._last_states(part, owners[:, None, :, None] == owners[:, None, None, :], in_bf16, places)
                for part, places, owners in parts]
        in_order = torch.cat(last).flatten(0, 1).index_select(0, cell)
        # unsafe: no check of the offsets, for which the host would wait
        return torch.segment_reduce(in_order.float(), "mean", offsets=ends, unsafe=True)

    def _padded(self, tokens: Tokens, rows: torch.Tensor, lengths: torch.Tensor, width: int) -> torch.Tensor:
        """Return the vectors of some of the texts, padded to `width` with marks."""
        mask, states = _mask(lengths, width), self._states(tokens)
        given = self._marked(tokens, rows, lengths, width) if states is None else torch.from_numpy(
            states.padded(rows.cpu().numpy(), width)).to(rows.device)
        masked = self._last_states(given, mask.long()).float() * mask[:, :, None]
        return masked.sum(1) / mask.sum(1, keepdim=True)

    def _states(self, tokens: Tokens) -> FrozenStates | None:
        """Return what the frozen layers made of texts, if that is known, and of use to this transformer."""
        return tokens.states if self.top else None

    def _marked(self, tokens: Tokens, rows: torch.Tensor, lengths: torch.Tensor, width: int) -> torch.Tensor:
        """Return the ids (rows, width) of some of the texts, between marks and padded with them."""
        position = torch.arange(width, device=lengths.device)
        marked = torch.where((position > 0) & (position <= lengths[:, None]),
                             _ids_at(tokens, tokens.offsets[rows][:, None] + position - 1), self.last)
        marked[:, 0] = self.first
        return marked

    def _last_states(self, given: torch.Tensor, mask: torch.Tensor, in_bf16: bool = False,
                     positions: torch.Tensor | None = None) -> torch.Tensor:
        """Return the last hidden states (n, width, dim) of ids (n, width), or of what frozen layers made of them.

        in_bf16: compute all in it, with copies of the weights: by autocast, sums and normalisations would be in single
        precision, and every layer would convert its values back and forth. That is faster on a GPU, not on a CPU.
        """
        if has_states := given.is_floating_point():
            given = given.bfloat16() if in_bf16 else given.float()
        # beside states any ids will do: what they embed to is not read
        ids = given.new_zeros(given.shape[:2], dtype=torch.long) if has_states else given
        inputs = {"input_ids": ids, "attention_mask": mask}
        if positions is not None:
            inputs["position_ids"] = positions
        with beginning_at(self.model, self.top, given) if has_states else nullcontext():
            if not in_bf16:
                return self.model(**inputs).last_hidden_state
            weights = {name: value.to(torch.bfloat16) for name, value in self.model.named_parameters()}
            with torch.autocast(given.device.type, enabled=False):
                return torch.func.functional_call(self.model, weights, (), inputs).last_hidden_state


@cache
def multiplies_bf16(device: str) -> bool:
    """Return whether the processor or GPU multiplies bf16, which then is faster than single precision."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported()
    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def _most_tokens(model: Any) -> int:
    """Return how many tokens of a text a model takes, its marks among them; 0 = any number.

    RoBERTa and its kin count positions from behind that of padding on, so that a table of 514 is for 512 tokens.
    """
    rows = getattr(model.config, "max_position_embeddings", 0)
    paddings = [table.padding_idx for name, table in model.named_modules()
                if name.endswith("position_embeddings") and isinstance(table, nn.Embedding)]
    return rows and rows - max((padding + 1 for padding in paddings if padding is not None), default=0)


def _ids_at(tokens: Tokens, places: torch.Tensor) -> torch.Tensor:
    """Return the ids at places; any id where a place is outside."""
    ids = tokens.ids if len(tokens.ids) else tokens.ids.new_zeros(1)
    return ids[places.clamp(0, len(ids) - 1)]


def _mask(lengths: torch.Tensor, width: int) -> torch.Tensor:
    """Return whether a place of a padded text is its token or mark, (rows, width) bool."""
    return torch.arange(width, device=lengths.device) <= lengths[:, None] + 1


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
        # many are stored in half precision, in which Adam's steps of trained weights would be lost, or not be finite
        return AutoModel.from_pretrained(str(name), local_files_only=Path(name).exists(), trust_remote_code=False,
                                         dtype=torch.float32, **attention_options())
    except (OSError, ValueError) as error:    # ValueError: a folder without a model
        raise checks.Unusable(f"encoder.source {source!r} is neither a folder of a model nor one that can be fetched: "
                              f"{str(error).splitlines()[0]}") from error


def build_transformer(config: EncoderConfig, idf: np.ndarray) -> Transformer:
    """Build the transformer that `config` names; raise ValueError where the tokenizer has more tokens than it."""
    keep_kernels()
    model = load_transformer(config.source)
    facts = model.config
    if len(idf) // 2 > facts.vocab_size:
        raise ValueError(f"encoder.source {config.source!r} embeds {facts.vocab_size} tokens but prepare.tokenizer has "
                         f"{len(idf) // 2}; use the same for both")
    return Transformer(model, _marks(config.source, facts), config)


def _marks(source: str, config: Any) -> tuple[int, int]:
    """Return the token ids before and after a text: the model's configuration's, else its tokenizer's, else BERT's.

    BERT's configurations name none, and its vocabularies of other languages than English have them at other ids.
    """
    named = [next((value for name in names if (value := getattr(config, name, None)) is not None), None)
             for names in (("cls_token_id", "bos_token_id"), ("sep_token_id", "eos_token_id"))]
    others = [101, 102]
    if None in named:
        with suppress(checks.Unusable):
            backend = open_backend(source)
            backend.no_padding()
            around_nothing = backend.encode("").ids
            others = around_nothing if len(around_nothing) == 2 else others
    first, last = (other if value is None else value for value, other in zip(named, others, strict=True))
    return first, last
