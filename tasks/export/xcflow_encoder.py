"""An encoder that xcflow trained, as a module of sentence-transformers; exported folders hold a copy of this file.

`SentenceTransformer(FOLDER, trust_remote_code=True)` runs it. It needs nothing of xcflow.
"""

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import InputModule
from sentence_transformers.util import load_file_path
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModel

FACTS, WEIGHTS, TOKENIZERS = "encoder.json", "model.safetensors", ("tokenizer.json", "tokenizer_content.json")
_PLACE = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
_SURROGATE = re.compile("[\ud800-\udfff]")    # which is no character, and no tokenizer takes


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors (..., d) at unit length; zeros stay zeros."""
    return F.normalize(vectors, dim=-1)


class Bag(nn.Module):
    """Sums of a text's token embeddings, weighted by idf and by position in title or content."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__()
        config, self.vocabulary = facts["config"], facts["vocabulary"]
        shape = config["sums"], 1 if config["tied"] else 2, 2, config["places"]    # sums, sides, title or content
        self.table = nn.Embedding(2 * self.vocabulary, facts["dim"])
        self.register_buffer("idf", torch.empty(2 * self.vocabulary))
        self.places = nn.Parameter(torch.empty(shape)) if config["places"] else None

    idf: torch.Tensor

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor, label: bool) -> torch.Tensor:
        """Return the sums (n, sums, d)."""
        rows = ids + self.vocabulary * types
        weights = (self.idf[rows] * mask)[:, None]
        if self.places is not None:
            sums, sides, _, n = self.places.shape
            titles = (mask * (1 - types)).sum(1, keepdim=True)
            position = torch.arange(ids.shape[1], device=ids.device) - titles * types
            place = position.clamp(max=n - 1) + n * (types + 2 * (label and sides > 1))
            weights = weights * F.embedding(place, self.places.reshape(sums, -1).T).transpose(1, 2)
        return weights @ self.table(rows)


class Transformer(nn.Module):
    """The mean of a transformer's last hidden states over the tokens between a first and a last one, these included."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__()
        config = AutoConfig.for_model(**facts["transformer"])
        self.model = AutoModel.from_config(config, attn_implementation="eager")
        self.max_tokens, (self.first, self.last) = facts["config"]["max_tokens"], facts["special"]

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor, label: bool) -> torch.Tensor:
        """Return the means (n, 1, d)."""
        if self.max_tokens:
            ids, mask = ids[:, :self.max_tokens], mask[:, :self.max_tokens]
        lengths = mask.sum(1, keepdim=True)
        place = torch.arange(ids.shape[1] + 2, device=ids.device)
        ids = torch.where(place > lengths, self.last, F.pad(ids, (1, 1), value=self.first))
        inside = (place <= lengths + 1).long()
        states = self.model(input_ids=ids, attention_mask=inside).last_hidden_state
        return (states * inside[:, :, None]).sum(1, keepdim=True) / inside.sum(1)[:, None, None]


class Head(nn.Module):
    """Maps the backbone's vectors of texts (n, sums, d) to one each, by the formula of its kind."""

    def __init__(self, facts: dict[str, Any], head: dict[str, Any]) -> None:
        super().__init__()
        self.kind, dim, sums = head["kind"], facts["dim"], 1 if head["over"] else facts["sums"]
        self.two_bases = sums > 1 and facts["config"]["kind"] == "both"
        if self.kind == "residual":
            self.inner, self.outer = nn.Linear(sums * dim, dim), nn.Linear(dim, dim, bias=False)
        elif self.kind in ("linear", "tanh"):
            self.linear = nn.Linear(sums * dim, head["dim"] or dim)
            self.scale = dim**0.5 if self.kind == "tanh" else 1.0

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the vectors (n, d) at unit length."""
        units = unit(vectors)
        start = units[:, 0] + units[:, -1] if self.two_bases else units[:, 0]
        if self.kind in ("unit", "gelu"):
            base = start if self.two_bases else vectors[:, 0]
            return unit(F.gelu(base) if self.kind == "gelu" else base)
        if self.kind == "residual":
            return unit(start + self.outer(F.gelu(self.inner(units.flatten(1)))))
        projected = self.linear(units.flatten(1) * self.scale)
        return unit(torch.tanh(projected) if self.kind == "tanh" else projected)


class Encoder(nn.Module):
    """A bag of tokens, a transformer or both, with heads; facts: the contents of encoder.json."""

    def __init__(self, facts: dict[str, Any]) -> None:
        super().__init__()
        self.facts, kind = facts, facts["config"]["kind"]
        self.bag = Bag(facts) if kind in ("bag", "both") else None
        self.transformer = Transformer(facts) if kind in ("transformer", "both") else None
        self.heads = nn.ModuleDict({name: Head(facts, head) for name, head in facts["heads"].items()})

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor, view: str) -> torch.Tensor:
        """Return the vectors (n, d) of n texts in a view, of each of its heads at unit length.

        ids, mask, types: (n, w) int64. Token ids without special tokens, those of the title first; 1 for a token and 0
        for the padding behind it; 0 for a token of the title and 1 for one of the content.
        """
        label = view.startswith("label")
        parts = [part for part in (self.bag, self.transformer) if part is not None]
        pooled = torch.cat([part(ids, mask, types, label) for part in parts], 1)
        return torch.cat([self._by_head(name, pooled) for name in self.facts["views"][view]], 1)

    def _by_head(self, name: str, pooled: torch.Tensor) -> torch.Tensor:
        over = self.facts["heads"][name]["over"]
        return self.heads[name](self._by_head(over, pooled)[:, None] if over else pooled)


class XcflowEncoder(InputModule):
    """Encodes texts, or pairs (title, content): queries, or labels for the task "document".

    A text alone is a title; a query is a content where the training texts had no titles.
    """

    forward_kwargs = {"task"}  # noqa: RUF012

    def __init__(self, encoder: Encoder, tokenizers: list[Tokenizer]) -> None:
        super().__init__()
        self.encoder, self.tokenizers = encoder, tokenizers
        self.tokenizer = tokenizers[0]

    def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return the tokens of texts, padded; prompt is put in front of each."""
        pairs = [(text, "") if isinstance(text, str) else text for text in inputs]
        pairs = [((prompt or "") + title, content) for title, content in pairs]
        if self.encoder.facts.get("untitled") and kwargs.get("task") != "document":    # as its training texts were read
            pairs = [(title, content) if content else ("", title) for title, content in pairs]
        fields = [[encoding.ids for encoding in tokenizer.encode_batch_fast(
            [_SURROGATE.sub("\ufffd", pair[place]) for pair in pairs],
            add_special_tokens=False)] for place, tokenizer in enumerate(self.tokenizers)]
        rows = [list(chain(*parts)) for parts in zip(*fields, strict=True)]
        width = max(map(len, rows), default=0)
        titles = torch.tensor([len(title) for title in fields[0]])[:, None]
        lengths, place = torch.tensor([len(row) for row in rows])[:, None], torch.arange(width)
        mask = place < lengths
        return {"input_ids": torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.int64),
                "attention_mask": mask.long(), "token_type_ids": (mask & (place >= titles)).long()}

    def forward(self, features: dict[str, Any], task: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Add the vectors as "sentence_embedding"."""
        view = "label" if task == "document" and "label" in self.encoder.facts["views"] else "query"
        tokens = (features[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
        return {**features, "sentence_embedding": self.encoder(*tokens, view)}

    def get_embedding_dimension(self) -> int:
        """Return the length of a query's vector."""
        facts = self.encoder.facts
        return sum(facts["heads"][name]["dim"] or facts["dim"] for name in facts["views"]["query"])

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write the files that `load` reads."""
        folder = Path(output_path)
        (folder / FACTS).write_text(json.dumps(self.encoder.facts, indent=1, sort_keys=True) + "\n")
        save_file({name: value.contiguous() for name, value in self.encoder.state_dict().items()}, folder / WEIGHTS)
        for tokenizer, name in zip(self.tokenizers, TOKENIZERS, strict=False):
            tokenizer.save(str(folder / name))

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> "XcflowEncoder":
        """Read what `save` wrote, from a folder or from a hub."""
        place = {name: value for name, value in kwargs.items() if name in _PLACE}

        def found(name: str) -> Any:
            return load_file_path(model_name_or_path, name, *args, **place)

        encoder = Encoder(json.loads(Path(found(FACTS)).read_text()))
        encoder.load_state_dict(load_file(found(WEIGHTS)))
        paths = [found(name) for name in TOKENIZERS[:1 + bool(encoder.facts["max_content"])]]
        return cls(encoder.eval(), [Tokenizer.from_file(path) for path in paths])
