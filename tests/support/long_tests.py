"""Tests that only `XC_ALL_FAULTS=1 make test` runs: kills and faults at length, and what takes minutes."""

import os

import pytest

ALL_FAULTS = bool(os.environ.get("XC_ALL_FAULTS"))


def at_length(reason: str) -> pytest.MarkDecorator:
    """Mark a test, or parameters of one, that `make test` leaves out, with the reason why."""
    return pytest.mark.skipif(not ALL_FAULTS, reason=f"{reason}; set XC_ALL_FAULTS=1")
