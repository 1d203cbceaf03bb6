"""The model card of an exported encoder: README.md, with the metadata that model hubs read."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import yaml

from tasks.export.label_vectors import NAMES, VECTORS, LabelVectors
from tasks.export.xcflow_encoder import TOKENIZERS
from tasks.registry.tags import METRICS, Version
from xcmodels.data.tokens import MINILM
from xcmodels.metrics import SHOWN, name_of
from xcmodels.nn.encoders import LABEL, QUERY
from xcmodels.retrieval.retriever import Retriever

_MINILM = "sentence-transformers/all-MiniLM-L6-v2"    # on the hub
_SENTENCES = """\
```python
import json

import numpy as np
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("."{trust})    # this folder
query = model.encode_query(["a large wild cat"])
vectors = load_file("{vectors}")["{name}"]
labels = [json.loads(line) for line in open("{names}", encoding="utf-8")]
best = np.argsort(-query[:, {first}:{end}] @ vectors.T)[0, :10]
print([labels[place]["text"] for place in best])
```

`encode_query` encodes a text to be tagged, as `encode` does; {document}. {contents}"""
_ONNX = """\
```python
import json

import numpy as np
import onnxruntime
from safetensors.numpy import load_file
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("{tokenizer}")
ids = np.array([tokenizer.encode("a large wild cat", add_special_tokens=False).ids])
graph = onnxruntime.InferenceSession("query.onnx")
tokens = {{"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.{types}_like(ids)}}
query = graph.run(["vectors"], tokens)[0]
vectors = load_file("{vectors}")["{name}"]
labels = [json.loads(line) for line in open("{names}", encoding="utf-8")]
best = np.argsort(-query[:, {first}:{end}] @ vectors.T)[0, :10]
print([labels[place]["text"] for place in best])
```

All inputs are int64, a row a text. `attention_mask` is 0 for padding, which stands behind a text's tokens;
`token_type_ids` is 1 for tokens of a content, which follow those of its title. {contents}"""


def card(retriever: Retriever, version: Version, named: Mapping[str, LabelVectors], to: str, plain: bool) -> str:
    """Return the text of README.md.

    named: the label vectors beside it. to: sentence-transformers | onnx. plain: whether no code comes with the folder.
    """
    name, metrics = f"{version.name}/{version.version}", json.loads(version.tags.get(METRICS, "{}"))
    facts, width = metadata(retriever, version, metrics, to, plain), retriever.encoder.width(QUERY)
    rows = [f"| `{key}` | {each.vectors.shape[1]} | `query[:, {each.span[0]}:{each.span[1]}]` |"
            for key, each in named.items()]
    return "\n".join([
        "---", yaml.safe_dump(facts, sort_keys=False, allow_unicode=True) + "---", "", f"# {name}: encoder", "",
        f"The encoder of {name}, trained by xcflow {version_of('xcflow')} with the method {retriever.facts['method']} "
        f"on {retriever.facts['data']}: it maps a text to {width} numbers, in single precision.",
        _code(plain, to), "## How to use it", "", _usage(retriever, named, to, plain), "", "## Labels", "",
        f"`{VECTORS}` has vectors of {len(retriever):,} labels, `{NAMES}` their ids, uids and texts in the same order.",
        "", "| vectors | length | multiply with |", "|---|---|---|", *rows, "",
        "A product is the score by that part alone. What else the version ranks by (sums, trees, words) is not in this",
        "folder: `xc predict` and `xc serve` rank by all of it, and the metrics below are of that.", "",
        *_demoted(version.description or ""), ""])


def metadata(retriever: Retriever, version: Version, metrics: Mapping[str, float], to: str,
             plain: bool) -> dict[str, Any]:
    """Return the metadata that model hubs read; metrics: the version's, in percent."""
    source, data = retriever.encoder.config.source, retriever.facts["data"]
    source = _MINILM if source == MINILM else source
    base = {"base_model": source} if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not Path(source).exists() else {}
    shown = [{"type": name_of(key), "name": name_of(key), "value": round(metrics[key], 2)}
             for key in SHOWN if key in metrics]
    result = {"task": {"type": "text-classification", "name": "extreme multi-label classification"},
              "dataset": {"type": data, "name": data}, "metrics": shown}
    return {"library_name": to, "pipeline_tag": "feature-extraction",
            "tags": [to, "feature-extraction", "extreme-classification", "xcflow", *([] if plain else ["custom_code"])],
            **base, **({"model-index": [{"name": version.name, "results": [result]}]} if shown else {})}


def _code(plain: bool, to: str) -> str:
    return "" if plain or to == "onnx" else (
        "Its code is `xcflow_encoder.py`, to be read before `trust_remote_code=True` lets it run.\n")


def _usage(retriever: Retriever, named: Mapping[str, LabelVectors], to: str, plain: bool) -> str:
    name, first = next(iter(named.items()))
    document = ("`encode_document` encodes a label's text" if LABEL in retriever.encoder.layout.views
                else "labels have no encoder of their own")
    tokenizer, types = (TOKENIZERS[1], "ones") if retriever.untitled else (TOKENIZERS[0], "zeros")
    return (_ONNX if to == "onnx" else _SENTENCES).format(
        name=name, first=first.span[0], end=first.span[1], vectors=VECTORS, names=NAMES, document=document,
        trust="" if plain else ", trust_remote_code=True", tokenizer=tokenizer, types=types,
        contents=_contents(retriever, to, plain))


def _contents(retriever: Retriever, to: str, plain: bool) -> str:
    tokenizer, untitled = retriever.tokenizer, retriever.untitled
    title, content = f"the first {tokenizer.max_title} tokens of a title", f"{tokenizer.max_content} of a content"
    if to == "onnx":
        also = f", `tokenizer_content.json` {content}" if tokenizer.max_content else ""
        return f"`tokenizer.json` keeps {title}{also}." + untitled * " A query alone is a content."
    if plain and untitled:
        return f"It reads the first {tokenizer.max_content} tokens of a text, which is a content."
    if plain or not tokenizer.max_content:
        return f"It reads {title}, and no contents."
    alone = "a content to `encode` and `encode_query`, else a title" if untitled else "a title"
    return f"A text alone is {alone}; a pair is title and content. It reads {title} and {content}."


def _demoted(description: str) -> Sequence[str]:
    """Return the lines of a description in Markdown, each heading one level lower."""
    return [f"#{line}" if line.startswith("#") else line for line in description.splitlines()]
