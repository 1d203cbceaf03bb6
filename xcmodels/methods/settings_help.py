"""Descriptions of settings, read from the comments beside their fields in the source."""

import ast
import inspect
import io
import tokenize
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from xcmodels.methods.settings import Settings


def explained(settings: Settings) -> dict[str, str]:
    """Return the description of every setting, by the key that overrides it; "" where its field has no comment."""
    return {key.removeprefix("method."): text for key, text in _walk(settings, "", "")}


def _walk(value: Any, key: str, text: str) -> list[tuple[str, str]]:
    if not is_dataclass(value):
        return [(key, text)]
    comments = {name: text for kind in inspect.getmro(type(value))[::-1] if is_dataclass(kind)
            for name, text in _comments(kind).items()}
    return [pair for name in (field.name for field in fields(value))
            for pair in _walk(getattr(value, name), f"{key}.{name}".lstrip("."), comments.get(name, ""))]


@cache
def _comments(kind: type) -> dict[str, str]:
    """Return the trailing comments of a dataclass's own fields, by field name."""
    source = inspect.getsource(kind)
    comments = {token.start[0]: token.string.lstrip("# ")
                for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT}
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)
    return {node.target.id: comments[node.end_lineno] for node in definition.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno in comments}
