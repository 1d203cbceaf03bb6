"""Settings: the presets as functions, and `key=value` overrides on top of them."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, get_type_hints

from xcmodels.corpus import PrepareConfig
from xcmodels.encoders import EncoderConfig
from xcmodels.methods.ngame import ModuleConfig, NgameConfig
from xcmodels.tokens import LEARNED, MINILM


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run, beside the data."""

    prepare: PrepareConfig
    method: NgameConfig

    @property
    def seed(self) -> int:
        """The seed that every draw of the run is keyed by."""
        return self.method.seed


@dataclass(frozen=True)
class Preset:
    """A named set of settings and what it is for."""

    method: str
    about: str
    settings: Callable[[], Settings] = field(repr=False)


def _cpu() -> Settings:
    return Settings(PrepareConfig(), NgameConfig(
        m1=ModuleConfig(epochs=8, batch_size=1024, lr=5e-3, table_lr=2e-3, warmup=50, cluster_from=3,
                        refresh_every=3, double_every=3, cluster_size=8, cluster_max=32, negatives=50),
        m2=ModuleConfig(epochs=12, batch_size=1024, lr=0.0, table_lr=1e-3, warmup=50, cluster_from=6, refresh_every=6,
                        double_every=6, cluster_size=8, cluster_max=32, positives=3, negatives=30, dropout=0.5)))


def _cpu_learned() -> Settings:
    base = _cpu()
    return Settings(replace(base.prepare, tokenizer=LEARNED),
                    replace(base.method, encoder=EncoderConfig(source="random")))


def _paper(encoder: str, epochs: int, prepare: PrepareConfig) -> Settings:
    """The hyper-parameters of NGAME's Table 9 for short texts, on the encoder named.

    What the paper leaves open is as in the authors' release: warm-ups, M2's batch size, epochs, dropout and pairs,
    and that clusters start at epoch 10.
    """
    return Settings(prepare, NgameConfig(
        encoder=EncoderConfig(kind="transformer", source=encoder, tied=True, batch=256),
        m1=ModuleConfig(epochs=epochs, batch_size=1600, lr=1e-4, table_lr=0.0, warmup=100, cluster_from=10,
                        refresh_every=5, double_every=25, cluster_size=2, cluster_max=512, temperature=0.0),
        m2=ModuleConfig(epochs=100, batch_size=2048, lr=0.0, table_lr=1e-3, warmup=500, cluster_from=0,
                        refresh_every=5, double_every=25, cluster_size=2, cluster_max=32, positives=3, negatives=5,
                        temperature=0.0, dropout=0.5)))


PRESETS: dict[str, Preset] = {
    "cpu": Preset("ngame", "bag of tokens started from MiniLM's token embeddings; two cores, minutes", _cpu),
    "cpu-learned": Preset("ngame", "bag of tokens from scratch on a vocabulary learned from the data: any language",
                          _cpu_learned),
    "minilm": Preset("ngame", "the paper's schedule on the packaged MiniLM transformer; one GPU",
                     lambda: _paper(MINILM, 100, PrepareConfig())),
    "paper": Preset("ngame", "the paper's set-up: msmarco-distilbert from the hub, 300 epochs; GPUs",
                    lambda: _paper("sentence-transformers/msmarco-distilbert-base-v4", 300, PrepareConfig(
                        tokenizer="sentence-transformers/msmarco-distilbert-base-v4"))),
}


def resolve(method: str, preset: str, overrides: Mapping[str, str]) -> Settings:
    """Return a preset's settings with `overrides` applied, `{"m1.epochs": "5", "prepare.augment": "true"}`.

    Raises ValueError that names the nearest key for an unknown one, and the type for a value that does not fit.
    """
    from xcmodels.methods import METHODS

    _one_of("method", method, list(METHODS))
    _one_of("preset", preset, [name for name, each in PRESETS.items() if each.method == method])
    settings = PRESETS[preset].settings()
    for key, value in overrides.items():
        path = key if key.startswith("prepare.") else f"method.{key}"
        settings = _with(settings, path.split("."), key, value)
    return settings


def flat(settings: Settings) -> dict[str, Any]:
    """Return every setting by the key that overrides it."""
    return {key.removeprefix("method."): value for key, value in _walk(settings, "")}


def _walk(value: Any, prefix: str) -> list[tuple[str, Any]]:
    if not is_dataclass(value):
        return [(prefix, value)]
    return [pair for each in fields(value)
            for pair in _walk(getattr(value, each.name), f"{prefix}.{each.name}" if prefix else each.name)]


def _with(value: Any, path: list[str], key: str, text: str) -> Any:
    name, rest = path[0], path[1:]
    known = [each.name for each in fields(value)] if is_dataclass(value) else []
    if name not in known or (not rest and is_dataclass(getattr(value, name))):
        prefix = key[: len(key) - len(".".join(path))]
        options = [prefix + option for option in known]
        raise ValueError(f"no setting {key!r}{nearest(key, options)}; see them with: xc presets --json")
    if rest:
        return replace(value, **{name: _with(getattr(value, name), rest, key, text)})
    parsed = _parse(key, text, get_type_hints(type(value))[name])
    try:
        return replace(value, **{name: parsed})
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _parse(key: str, text: str, kind: type) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        wanted = "true or false" if kind is bool else f"a number ({kind.__name__})"
        raise ValueError(f"{key} must be {wanted}, got {text!r}") from None


def nearest(word: str, options: list[str]) -> str:
    """Return ", did you mean 'x'?" for the option most like `word`, or nothing where none is alike."""
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else f"; known: {', '.join(options)}"


def _one_of(what: str, value: str, options: list[str]) -> None:
    if value not in options:
        raise ValueError(f"no {what} {value!r}{nearest(value, options)}")


__all__ = ["PRESETS", "PrepareConfig", "Preset", "Settings", "flat", "nearest", "resolve"]
