"""Options from xc.toml, and the source of each option's value.

A value comes from the command line, else an `XC_*` variable, else xc.toml, else the option's default. An empty
variable is as one that is not set, unless the option may be empty: `XC_STORE=` is no store. xc.toml in the current
folder holds options that most commands of a project share, and the settings of `--set`:

    home = "/data/xc"
    method = "unidec"
    [set]
    epochs = 6
"""

import difflib
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from cyclopts import Token

from data_contracts.errors import UsageError
from flows.config import SHARED
from tasks.core.wording import leaves

FILE, TABLE = "xc.toml", "set"
SECRETS = ("token", "password", "secret", "auth")


class Given:
    """Fills in options from xc.toml that neither a flag nor a variable sets, and records the source of each value.

    sources: option -> "flag", a variable such as "XC_HOME", or "xc.toml", for this call. settings: the same for each
    setting of `--set`. untyped: the words to type for the values that were not typed.
    """

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.untyped: list[str] = []

    def __call__(self, app: Any, commands: tuple[str, ...], arguments: Any) -> None:
        """Complete the arguments of a command; cyclopts calls this once it has read the words and the environment."""
        options, settings = read(Path(FILE))
        self.sources, self.settings, self.untyped = {}, {}, []
        for argument in arguments:
            name = argument.name.removeprefix("--")
            if name == TABLE:
                self._set(argument, settings)
                continue
            _need_whole(argument)
            if argument.field_info.default != "":    # else empty is a value, as of --store
                argument.tokens[:] = [token for token in argument.tokens if token.value or token.source != "env"]
            if name in options and not argument.tokens and _is_shared(name, argument):
                argument.tokens.append(Token(keyword=name, value=options[name], source=FILE))
            for token in argument.tokens[:1]:
                self.sources[name] = {"env": token.keyword, FILE: FILE}.get(token.source, "flag")
                if self.sources[name] != "flag":
                    self.untyped += [f"--{name}", token.value]

    def _set(self, argument: Any, settings: Mapping[str, str]) -> None:
        typed = {token.value.partition("=")[0] for token in argument.tokens}
        rest = {key: value for key, value in settings.items() if key not in typed}
        argument.tokens[:0] = [Token(keyword=TABLE, value=f"{key}={value}", source=FILE) for key, value in rest.items()]
        self.untyped += [word for key, value in rest.items() for word in ("--set", f"{key}={value}")]
        self.settings = dict.fromkeys(rest, FILE) | dict.fromkeys(typed, "flag")


GIVEN = Given()


def _need_whole(argument: Any) -> None:
    """Raise UsageError for a value that is no whole number where one is wanted; cyclopts would round 2.5."""
    if argument.hint is int or int in get_args(argument.hint):
        for token in argument.tokens:
            with suppress(ValueError):
                if not float(token.value).is_integer():
                    raise UsageError(f"{argument.name} must be a whole number, got {token.value!r}")


def _is_shared(name: str, argument: Any) -> bool:
    """Whether it is the option that xc.toml means, and not another of the same name, as --workers of xc serve."""
    return any(option in SHARED[name] for option in get_args(argument.field_info.annotation))


def read(file: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options and the settings in xc.toml, as texts; empty where there is no file.

    Raises UsageError for a file that cannot be read, and for an unknown key, with the nearest option.
    """
    try:
        values = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        return {}, {}
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not TOML: {error}", where=str(file), hint='a line is: preset = "cpu"') from error
    table = values.pop(TABLE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{TABLE} must be a table of settings", where=str(file), hint=f"[{TABLE}]")
    return {key: _option(file, key, value) for key, value in values.items()}, {
        key: _text(file, f"{TABLE}.{key}", value) for key, value in leaves(table).items()}


def _option(file: Path, key: str, value: Any) -> str:
    if any(word in key.lower() for word in SECRETS):
        raise UsageError(f"{key!r}: secrets are not read from here", where=str(file),
                         hint="keep it in a file that only you can read: xc serve --token-file FILE")
    if key not in SHARED:
        near = difflib.get_close_matches(key, (*sorted(SHARED), TABLE), n=1, cutoff=0.6)
        raise UsageError(f"there is no option {key!r}{f', did you mean {near[0]!r}?' if near else ''}",
                         where=str(file), hint=f"known: {', '.join(sorted(SHARED))}, and the table [{TABLE}]")
    text = _text(file, key, value)
    if key == "mlflow" and urlsplit(text).password:
        raise UsageError("'mlflow' holds a password", where=str(file),
                         hint="keep it in the environment: XC_MLFLOW, or MLFLOW_TRACKING_USERNAME and _PASSWORD")
    return text


def _text(file: Path, key: str, value: Any) -> str:
    """Return a value as it would be typed."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise UsageError(f"{key} must be a text or a number, got {value!r}"[:200], where=str(file))
    return str(value)
