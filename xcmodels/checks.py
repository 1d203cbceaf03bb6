"""What a setting may be: each check names the setting, its range and the value that was given."""

from typing import Any


def at_least(config: Any, least: float, *names: str) -> None:
    """Raise ValueError unless each of these settings is a finite number of at least `least`."""
    for name in names:
        if not least <= getattr(config, name) < float("inf"):
            raise ValueError(f"{name} must be {f'at least {least}' if least else '0 or more'}, "
                             f"got {getattr(config, name)}")


def share(config: Any, *names: str, whole: bool = True) -> None:
    """Raise ValueError unless each of these settings lies between 0 and 1, below 1 where `whole` is false."""
    for name in names:
        value = getattr(config, name)
        if not (0 <= value <= 1 if whole else 0 <= value < 1):
            limits = "between 0 and 1" if whole else "at least 0 and below 1"
            raise ValueError(f"{name} must be {limits}, got {value}")


def one_of(config: Any, **known: tuple[str, ...]) -> None:
    """Raise ValueError unless each named setting is one of those known."""
    for name, values in known.items():
        if getattr(config, name) not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, got {getattr(config, name)!r}")
