"""What each setting is: the comment beside its field in the source, so that it is written down once."""

import ast
import inspect
import io
import tokenize
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from xcmodels.methods.settings import Settings


def explained(settings: Settings) -> dict[str, str]:
    """Return what every setting is, by the key that overrides it; "" where its field has no comment."""
    return {key.removeprefix("method."): text for key, text in _walk(settings, "", "")}


def _walk(value: Any, key: str, text: str) -> list[tuple[str, str]]:
    if not is_dataclass(value):
        return [(key, text)]
    told = {name: text for kind in inspect.getmro(type(value))[::-1] if is_dataclass(kind)
            for name, text in _comments(kind).items()}
    return [pair for each in fields(value)
            for pair in _walk(getattr(value, each.name), f"{key}.{each.name}".lstrip("."), told.get(each.name, ""))]


@cache
def _comments(kind: type) -> dict[str, str]:
    """Return the comments at the ends of a dataclass's own fields, by the names of these."""
    source = inspect.getsource(kind)
    at = {token.start[0]: token.string.lstrip("# ") for token in tokenize.generate_tokens(io.StringIO(source).readline)
          if token.type == tokenize.COMMENT}
    made = ast.parse(source).body[0]
    assert isinstance(made, ast.ClassDef)
    return {each.target.id: at[each.end_lineno] for each in made.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.end_lineno in at}
