"""The corpora on which Annif's backends are trained and measured: of this data set, and of as many tests as asked."""

import pytest

from benchmarks.bench_annif import write_corpora
from data_contracts.errors import UsageError
from tests.support.planted import write_planted


def test_corpora_are_of_the_data_set_and_the_number_of_tests_that_are_named(tmp_path):
    """Those that were there were measured, whatever was named, and what a kill had left was trained on."""
    data, other = (write_planted(tmp_path / name, train=30, test=24, labels=20, seed=seed)
                   for seed, name in enumerate(("data", "other")))
    folder = tmp_path / "annif"
    folder.mkdir()
    for tests in (20, 10):
        write_corpora(data, folder, tests)
        lines = {name: (folder / f"{name}.tsv").read_text().splitlines() for name in ("train", "test", "validation")}
        assert {name: len(found) for name, found in lines.items()} == {
            "train": 30, "test": tests, "validation": tests // 5}
        assert not set(lines["test"]) & set(lines["validation"])
    was = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match="has projects of other training texts"):
        write_corpora(other, folder, 10)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == was


@pytest.mark.parametrize("tests", [4, 21])
def test_too_few_test_texts_to_choose_a_limit_by_are_an_error(tmp_path, tests):
    """Annif ended with one of its own, after its projects were trained."""
    data = write_planted(tmp_path / "data", train=30, test=24, labels=20)
    with pytest.raises(UsageError, match=f"tests must be 5 to 20, got {tests}"):
        write_corpora(data, tmp_path, tests)
