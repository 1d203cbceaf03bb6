"""Import over an earlier data set: what its user set stays."""

import json
from pathlib import Path

from tasks.data.sources import describe
from tasks.data.sources.raw import ABOUT
from tests.unit.test_importing_halves import ROWS, split


def test_the_name_and_the_constants_that_a_user_set_stay(tmp_path: Path):
    """Else the next run registers another model, which nobody serves and no champion is compared with."""
    out = tmp_path / "tickets"
    split(out, ROWS[:50])
    about = json.loads((out / ABOUT).read_text())
    assert about["name"] == "tickets" and "propensity" not in about
    (out / ABOUT).write_text(json.dumps({**about, "name": "tickets-prod", "propensity": {"a": 0.5, "b": 0.4}}))
    before = describe(out)
    assert before.name == "tickets-prod"
    split(out, ROWS[:60], uid="u")
    after = describe(out)
    assert (after.name, after.propensity) == (before.name, before.propensity)
    assert json.loads((out / ABOUT).read_text())["uid_column"] == "u"
