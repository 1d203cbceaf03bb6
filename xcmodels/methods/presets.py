"""Presets, overridden by `key=value`, and the comment that explains each setting."""

import ast
import difflib
import inspect
import io
import tokenize
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, get_type_hints

from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.preset_parts import Preset, Settings

PRESETS: dict[str, Mapping[str, Preset]] = {name: entry.presets for name, entry in METHODS.items()}


def resolve(method: str, preset: str, overrides: Mapping[str, str]) -> Settings:
    """Return a preset's settings with `overrides` applied, `{"m1.epochs": "5", "prepare.augment": "true"}`.

    Raises ValueError that suggests the nearest key for an unknown one, or names the type that a value must have.
    """
    _one_of("method", method, list(METHODS))
    if not PRESETS[method]:
        raise ValueError(f"method {method!r} has no preset; add one in its folder's presets.py")
    _one_of("preset", preset, list(PRESETS[method]))
    base = PRESETS[method][preset].settings()
    for key in overrides:
        _check_key(key, list(flat(base)))
    paths = {tuple((key if key.startswith("prepare.") else f"method.{key}").split(".")): (key, value)
             for key, value in overrides.items()}
    return _overridden(base, paths)


def ends_before_mining(method: str, preset: str, overrides: Mapping[str, str]) -> list[str]:
    """Return the keys of settings `refresh_from` that leave a stage without the clusters or negatives it would mine."""
    values = flat(resolve(method, preset, overrides))
    late = [key for key, value in values.items() if key.rpartition(".")[2] == "refresh_from"
            and value >= values[f"{key.removesuffix('refresh_from')}epochs"]]
    return [key for key in late if _mining_rounds(method, preset, {**overrides, key: "0"})
            > _mining_rounds(method, preset, overrides)]


def _mining_rounds(method: str, preset: str, overrides: Mapping[str, str]) -> int:
    settings = resolve(method, preset, overrides)
    return sum(round_.mines for round_ in METHODS[method].make(settings.method).rounds)


def _check_key(key: str, keys: list[str]) -> None:
    """Raise ValueError for an unknown key, with the nearest keys, or all keys of its group where none is near."""
    if key in keys:
        return
    groups = dict.fromkeys(name.rpartition(".")[0] for name in keys if "." in name)
    if key in groups:
        raise ValueError(f"no setting {key!r}: it is a group; known: "
                         f"{', '.join(name for name in keys if name.startswith(f'{key}.'))}")
    group = key.rpartition(".")[0]
    siblings = [name for name in keys if name.startswith(f"{group}.")] if group in groups else \
        list(dict.fromkeys(name.partition(".")[0] for name in keys))
    close = [*difflib.get_close_matches(key, siblings, n=1), *difflib.get_close_matches(key, keys, n=1)]
    raise ValueError(f"no setting {key!r}{nearest(key, close or siblings)}")


def flat(settings: Settings) -> dict[str, Any]:
    """Return every setting by the key that overrides it."""
    return {key: value for key, value, _ in _walk(settings, "", object)}


def explained(settings: Settings) -> dict[str, str]:
    """Return the comment beside each setting's field in the source, by the key that overrides it; "" without one."""
    return {key: _comments(owner).get(key.rpartition(".")[2], "") for key, _, owner in _walk(settings, "", object)}


def _walk(value: Any, key: str, owner: type) -> list[tuple[str, Any, type]]:
    """Return key, value and dataclass of every setting; a group that a preset lacks is None and has none."""
    if value is None:
        return []
    if not is_dataclass(value):
        return [(key.removeprefix("method."), value, owner)]
    return [leaf for field in fields(value)
            for leaf in _walk(getattr(value, field.name), f"{key}.{field.name}".lstrip("."), type(value))]


@cache
def _comments(kind: type) -> dict[str, str]:
    """Return the trailing comments of a dataclass's fields, inherited ones too, by field name."""
    found: dict[str, str] = {}
    for base in filter(is_dataclass, kind.__mro__[::-1]):
        source = inspect.getsource(base)
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
        definition = ast.parse(source).body[0]
        assert isinstance(definition, ast.ClassDef)
        found |= {node.target.id: comments[node.end_lineno] for node in definition.body if node.end_lineno in comments
                  and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    return found


def _overridden(value: Any, texts: Mapping[tuple[str, ...], tuple[str, str]]) -> Any:
    """Return the dataclass `value` with overrides applied at once; texts: path below `value` -> (key, text)."""
    changes, direct = {}, {}    # direct: the key of each override of a field of `value` itself -> the field
    for name in dict.fromkeys(path[0] for path in texts):
        below = {path[1:]: override for path, override in texts.items() if path[0] == name}
        (rest, (key, text)) = next(iter(below.items()))
        if rest:
            changes[name] = _overridden(getattr(value, name), below)
        else:
            changes[name] = _parse(key, text, get_type_hints(type(value))[name])
            direct[key] = name
    try:
        return replace(value, **changes)
    except ValueError as error:
        told = str(error)
        alone = [key for key, name in direct.items() if told == _refusal(value, {name: changes[name]})]
        raise ValueError(f"{', '.join(alone or direct or [key for key, _ in texts.values()])}: {told}") from None


def _refusal(value: Any, changes: Mapping[str, Any]) -> str:
    """Return why the dataclass `value` refuses changes, "" where it does not."""
    try:
        replace(value, **changes)
    except ValueError as error:
        return str(error)
    return ""


def _parse(key: str, text: str, kind: type) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        expected = "true or false" if kind is bool else "a whole number" if kind is int else "a number"
        raise ValueError(f"{key} must be {expected}, got {text!r}") from None


def nearest(word: str, options: list[str]) -> str:
    """Return ", did you mean 'x'?" for the option nearest to `word`, or all options where none is near."""
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else f"; known: {', '.join(options)}"


def _one_of(what: str, value: str, options: list[str]) -> None:
    if value not in options:
        raise ValueError(f"no {what} {value!r}{nearest(value, options)}")


__all__ = ["PRESETS", "Preset", "Settings", "ends_before_mining", "explained", "flat", "nearest", "resolve"]
