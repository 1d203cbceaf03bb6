"""Range checks of settings, whose errors name the setting, its range and its value.

`Unusable` is what other modules raise for something that cannot be used here.
"""

from math import isfinite
from typing import Any


class Unusable(ValueError):
    """Something that was named or kept and cannot be used here, with a remedy; no fault of the program."""


def at_least(config: Any, least: float, *names: str) -> None:
    """Raise ValueError unless each named setting is finite and at least `least`."""
    for name in names:
        if not least <= (value := getattr(config, name)) < float("inf"):
            finite = "" if isfinite(value) else "a finite number, "
            raise ValueError(f"{name} must be {finite}{f'at least {least}' if least else '0 or more'}, got {value}")


def share(config: Any, *names: str, whole: bool = True) -> None:
    """Raise ValueError unless each named setting is between 0 and 1; below 1 where `whole` is false."""
    for name in names:
        value = getattr(config, name)
        if not (0 <= value <= 1 if whole else 0 <= value < 1):
            limits = "between 0 and 1" if whole else "at least 0 and below 1"
            raise ValueError(f"{name} must be {limits}, got {value}")


def one_of(config: Any, **known: tuple[str, ...]) -> None:
    """Raise ValueError unless each named setting is one of its known values."""
    for name, values in known.items():
        if getattr(config, name) not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, got {getattr(config, name)!r}")
