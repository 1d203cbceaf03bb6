"""Every setting is in the key of some step: one that was forgotten would have a run reuse what others made."""

import re
from contextlib import suppress

import pytest

from data_contracts.errors import ProjectError
from tasks.plan import Pipeline, pipeline
from tests.support.planted import write_planted
from xcmodels.methods.presets import explained, flat

NO_FEEDBACK = {"prepare.feedback_held_out", "prepare.feedback_most"}    # of what a run without feedback does not do
# A method of each family -> settings that cannot be moved alone, as its other settings allow no other value.
FAMILIES = {"ngame": {"encoder.kind"}, "astra": {"encoder.kind", "dim"}, "unidec": {"encoder.kind", "dim"},
            "siamesexml": {"encoder.kind", "partitions"},
            "ramen": {"base.encoder.kind", "base.seed", "graph.augment", "prepare.walks"}}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write_planted(tmp_path_factory.mktemp("settings") / "raw", train=60, test=10, labels=8)


def moved(raw, method: str, key: str, value, comment: str) -> Pipeline | None:
    """Return the plan with one setting moved to another value that is allowed; None where none is."""
    others = {bool: lambda: [not value], int: lambda: [value + 1, value - 1, 17, 1, 0],
              float: lambda: [value / 2, 0.625, 1.0], str: lambda: [*re.findall(r"[\w-]+", comment), "other"]}
    for other in others[type(value)]():
        if other != value:
            with suppress(ProjectError):
                return pipeline(raw, method, "cpu-learned", {key: str(other)})
    return None


@pytest.mark.parametrize("method", FAMILIES)
def test_every_setting_is_in_a_key(raw, method):
    base = pipeline(raw, method, "cpu-learned", {})
    comments = explained(base.settings)
    plans = {key: moved(raw, method, key, value, comments[key]) for key, value in flat(base.settings).items()}
    assert {key for key, plan in plans.items() if plan is None} == FAMILIES[method]
    assert {key for key, plan in plans.items() if plan is not None and plan.key == base.key} == NO_FEEDBACK
