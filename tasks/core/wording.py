"""Formatting of texts, numbers and durations for people."""

import re
from collections.abc import Mapping
from math import ceil
from numbers import Integral
from typing import Any

from data_contracts.verdict import escape_text, plural  # noqa: F401  plural is imported from here

JOINERS = re.compile("([\u200c\u200d])")     # zero-width, but Persian, Hindi and emoji are wrong without them


def one_line(value: object, limit: int = 240) -> str:
    """Return a text on one line of at most `limit` characters, with unprintable characters spelt out."""
    text = " ".join(str(value)[:4 * limit].split())
    text = text if len(text) <= limit else text[:limit - 1] + "…"
    return "".join(part if JOINERS.fullmatch(part) else escape_text(part, limit) for part in JOINERS.split(text))


def version_name(version: object) -> str:
    """Return a version's display name: v3 for a number, else its name."""
    text = one_line(version, 40)
    return f"v{text}" if text.isdigit() else text


def signed(value: float) -> str:
    """Return a difference with its sign, or ±0.0."""
    text = f"{value:+.1f}".replace("-", "−")
    return "±0.0" if text in ("+0.0", "−0.0") else text


def with_separators(value: object) -> str:
    """Return a number with thousands separators, anything else as text."""
    return f"{value:,}" if isinstance(value, Integral) else one_line(value, 80)


def data_size(count: int) -> str:
    """Return a number of bytes in MB, a small one in KB, rounded up: 1.2 MB, 49 KB."""
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{ceil(count / 1e3)} KB"


def duration(seconds: float) -> str:
    """Return a duration: 0.4 s, 12 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} min"


def leaves(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as one level of dotted names: {"m1": {"epochs": 6}} as {"m1.epochs": 6}."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
