"""Encoders as folders that `sentence_transformers.SentenceTransformer` loads.

A transformer whose views have one head each is written as modules of sentence-transformers alone. Any other encoder
is the one module of xcflow_encoder.py, which comes with it and runs where `trust_remote_code=True` allows it.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from tasks.export import xcflow_encoder
from tasks.export.portable_tokenizer import portable
from xcmodels.data.tokens import Tokenizer
from xcmodels.nn import transformer
from xcmodels.nn.encoders import LABEL, QUERY, Encoder, ProjectionHead, ResidualHead

_FILE = Path(xcflow_encoder.__file__)


def write_folder(encoder: Encoder, tokenizer: Tokenizer, untitled: bool, folder: Path) -> None:
    """Write an encoder and its tokenizer to `folder`, which exists; untitled: a query alone is a content."""
    logging.disable_progress_bar()
    if plain := is_plain(encoder):
        modules = plain_modules(encoder, tokenizer, untitled)
    else:
        made = portable_encoder(encoder, tokenizer, untitled)
        modules = [xcflow_encoder.XcflowEncoder(made, tokenizers(tokenizer))]
    model = SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="dot")
    model.save(str(folder), create_model_card=False)
    if not plain:
        shutil.copy(_FILE, folder)
        listing = folder / "modules.json"
        listing.write_text(listing.read_text().replace(xcflow_encoder.__name__, _FILE.stem))


def is_plain(encoder: Encoder) -> bool:
    """Return whether modules of sentence-transformers alone compute the encoder's query and label views."""
    return encoder.config.kind == "transformer" and all(
        len(heads) == 1 for view, heads in encoder.layout.views.items() if view in (QUERY, LABEL))


def portable_encoder(encoder: Encoder, tokenizer: Tokenizer, untitled: bool) -> xcflow_encoder.Encoder:
    """Return the encoder as a module that needs nothing of xcflow, with the same tensors."""
    backbone, layout = encoder.backbone, encoder.layout
    parts = {"bag": getattr(backbone, "bag", backbone), "transformer": getattr(backbone, "transformer", backbone)}
    facts: dict[str, Any] = {
        "config": asdict(encoder.config), "heads": {name: asdict(head) for name, head in layout.heads.items()},
        "views": {view: list(heads) for view, heads in layout.views.items()}, "dim": backbone.dim,
        "sums": backbone.sums, "max_title": tokenizer.max_title, "max_content": tokenizer.max_content,
        "untitled": untitled}
    if encoder.config.kind != "transformer":
        facts["vocabulary"] = parts["bag"].vocabulary
    if encoder.config.kind != "bag":
        own: Any = parts["transformer"]
        facts |= {"special": [own.first, own.last], "transformer": json.loads(own.model.config.to_json_string(False))}
    made = xcflow_encoder.Encoder(facts)
    prefix = "" if encoder.config.kind == "both" else f"{encoder.config.kind}."
    made.load_state_dict({name.replace("backbone.", prefix, 1): value for name, value in encoder.state_dict().items()})
    return made.eval()


def tokenizers(tokenizer: Tokenizer) -> list[Any]:
    """Return the portable tokenizer of titles, and that of contents where any of them is read."""
    return [portable(tokenizer, limit) for limit in (tokenizer.max_title, tokenizer.max_content) if limit]


def write_tokenizers(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizers` to `folder`."""
    for made, name in zip(tokenizers(tokenizer), xcflow_encoder.TOKENIZERS, strict=False):
        made.save(str(folder / name))


def plain_modules(encoder: Encoder, tokenizer: Tokenizer, untitled: bool) -> list[nn.Module]:
    """Return the modules of an encoder of which `is_plain`, with routes to its query and label views if they differ.

    They have one limit: that of titles or, where training texts have none, that of contents.
    """
    own = encoder.backbone
    assert isinstance(own, transformer.Transformer)
    most = tokenizer.max_content if untitled else tokenizer.max_title
    limit = min(most, own.max_tokens or most)
    backend = portable(tokenizer, most, (own.first, own.last))    # of as many characters as are read for `most` tokens
    backend.enable_truncation(limit + 2)
    with tempfile.TemporaryDirectory() as folder:
        own.model.save_pretrained(folder)  # type: ignore[operator]
        PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=_pad_token(backend, own.last), padding_side="right",
                                model_max_length=limit + 2).save_pretrained(folder)
        read = [Transformer(folder, max_seq_length=limit + 2), Pooling(own.dim, "mean")]
    views = encoder.layout.views
    query, label = ([*read, *_head_modules(encoder, *views.get(view, views[QUERY]))] for view in (QUERY, LABEL))
    if views.get(LABEL, views[QUERY]) == views[QUERY]:
        return query
    return [Router.for_query_document(query, label, default_route="query")]


def _pad_token(backend: Any, last: int) -> str:
    """Return a token to pad with, which is masked: if it can be, one that is a special token already."""
    special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    return str(min(special, key=lambda token: "pad" not in token.lower(), default=backend.id_to_token(last)))


def _head_modules(encoder: Encoder, name: str) -> Iterator[nn.Module]:
    """Yield the modules of a head, and before them those of the head that it reads, from a text's vector on."""
    config, head = encoder.layout.heads[name], encoder.heads[name]
    if config.over:
        yield from _head_modules(encoder, config.over)
    dim = encoder.backbone.dim
    if config.kind == "gelu":
        yield Dense(dim, dim, bias=False, activation_function=nn.GELU(), init_weight=torch.eye(dim))
    elif config.kind != "unit":
        yield Normalize()
    if isinstance(head, ResidualHead):
        yield from _residual(head)
    elif isinstance(head, ProjectionHead):
        weight, kind = head.linear.weight.detach() * head.scale, nn.Tanh() if config.kind == "tanh" else nn.Identity()
        yield Dense(weight.shape[1], weight.shape[0], activation_function=kind, init_weight=weight,
                    init_bias=head.linear.bias.detach())
    yield Normalize()


def _residual(head: ResidualHead) -> Iterator[nn.Module]:
    """Yield v -> (v, gelu(W v + b)), then (v, h) -> v + U h."""
    eye, zero = torch.eye(head.dim), torch.zeros(head.dim, head.dim)
    weight, bias, outer = (value.detach() for value in (head.inner.weight, head.inner.bias, head.outer.weight))
    both = Dense(head.dim, 2 * head.dim, activation_function=nn.GELU(), use_residual=True,
                 init_weight=torch.cat([zero, weight]), init_bias=torch.cat([torch.zeros(head.dim), bias]))
    both.residual.weight = nn.Parameter(torch.cat([eye, zero]))    # gelu(0) = 0 is added to v, 0 to gelu(W v + b)
    yield both
    yield Dense(2 * head.dim, head.dim, bias=False, activation_function=nn.Identity(),
                init_weight=torch.cat([eye, outer], 1))
