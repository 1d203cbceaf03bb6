"""Settings: the presets of each method as functions, and `key=value` overrides on top of them."""

import difflib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

from xcmodels.data.corpus import PrepareConfig
from xcmodels.methods.registry import METHODS
from xcmodels.methods.settings import Preset, Settings
from xcmodels.methods.settings_help import explained

PRESETS: dict[str, Mapping[str, Preset]] = {name: entry.presets for name, entry in METHODS.items()}


def resolve(method: str, preset: str, overrides: Mapping[str, str]) -> Settings:
    """Return a preset's settings with `overrides` applied, `{"m1.epochs": "5", "prepare.augment": "true"}`.

    Raises ValueError that names the nearest key for an unknown one, and the type for a value that does not fit.
    """
    _one_of("method", method, list(METHODS))
    if not PRESETS[method]:
        raise ValueError(f"method {method!r} has no preset; add one in its folder's presets.py")
    _one_of("preset", preset, list(PRESETS[method]))
    found = PRESETS[method][preset].settings()
    for key in overrides:
        _known(key, list(flat(found)))
    paths = {tuple((key if key.startswith("prepare.") else f"method.{key}").split(".")): (key, value)
             for key, value in overrides.items()}
    settings: Settings = _changed(found, paths)
    return settings


def _known(key: str, keys: list[str]) -> None:
    """Raise ValueError for what is no setting, with the nearest of all, else with what there is beside it."""
    if key in keys:
        return
    groups = dict.fromkeys(name.rpartition(".")[0] for name in keys if "." in name)
    if key in groups:
        raise ValueError(f"no setting {key!r}: it is a group; known: "
                         f"{', '.join(name for name in keys if name.startswith(f'{key}.'))}")
    group = key.rpartition(".")[0]
    beside = [name for name in keys if name.startswith(f"{group}.")] if group in groups else \
        list(dict.fromkeys(name.partition(".")[0] for name in keys))
    close = [*difflib.get_close_matches(key, beside, n=1), *difflib.get_close_matches(key, keys, n=1)]
    raise ValueError(f"no setting {key!r}{nearest(key, close or beside)}; see them with: xc presets --method NAME")


def flat(settings: Settings) -> dict[str, Any]:
    """Return every setting by the key that overrides it."""
    return {key.removeprefix("method."): value for key, value in _walk(settings, "")}


def _walk(value: Any, prefix: str) -> list[tuple[str, Any]]:
    if not is_dataclass(value):
        return [(prefix, value)]
    return [pair for each in fields(value)
            for pair in _walk(getattr(value, each.name), f"{prefix}.{each.name}" if prefix else each.name)]


def _changed(value: Any, texts: Mapping[tuple[str, ...], tuple[str, str]]) -> Any:
    """Return the dataclass `value` with every (path below it -> (key, text)) applied at once."""
    changes, direct = {}, []
    for name in dict.fromkeys(path[0] for path in texts):
        below = {path[1:]: told for path, told in texts.items() if path[0] == name}
        (rest, (key, text)) = next(iter(below.items()))
        if rest:
            changes[name] = _changed(getattr(value, name), below)
        else:
            changes[name] = _parse(key, text, get_type_hints(type(value))[name])
            direct.append(key)
    try:
        return replace(value, **changes)
    except ValueError as error:
        raise ValueError(f"{', '.join(direct)}: {error}") from None


def _parse(key: str, text: str, kind: type) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        wanted = "true or false" if kind is bool else f"a number ({kind.__name__})"
        raise ValueError(f"{key} must be {wanted}, got {text!r}") from None


def nearest(word: str, options: list[str]) -> str:
    """Return ", did you mean 'x'?" for the option most like `word`, or all of them where none is alike."""
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else f"; known: {', '.join(options)}"


def _one_of(what: str, value: str, options: list[str]) -> None:
    if value not in options:
        raise ValueError(f"no {what} {value!r}{nearest(value, options)}")


__all__ = ["PRESETS", "PrepareConfig", "Preset", "Settings", "explained", "flat", "nearest", "resolve"]
