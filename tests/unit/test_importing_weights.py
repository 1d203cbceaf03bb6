"""Import of tables with a column of weights: one for each label, or one for all of a row."""

from pathlib import Path

import pytest

from data_contracts.errors import ContractError
from tasks.data.sources.importing import import_file
from tests.unit.test_importing import points, write


@pytest.mark.parametrize(("name", "content"), [
    ("a.csv", "t,l,w\nfox,hunter;mammal,3;0.5\nowl,hunter,7\ncat,mammal; ;hunter;mammal,2;9;4;8\n,x,\nkiwi,,\n"),
    ("a.csv", "t,l,w\nfox,hunter; mammal,3; 0.5\nowl,hunter,7\ncat,mammal;hunter,2;4\n"),
    ("a.csv", "t,l,w\nfox,hunter;mammal;,3;0.5\nowl,hunter;,7;\ncat,mammal;hunter;;,2;4;\n"),
    ("a.jsonl", '{"t": "fox", "l": ["mammal", "hunter"], "w": [0.5, 3]}\n{"t": "owl", "l": "hunter", "w": 7}\n'
                '{"t": "cat", "l": "mammal;hunter", "w": "2;4"}\n'),
])
def test_labels_have_the_weights_of_a_column(tmp_path: Path, name: str, content: str):
    """One for each label, in their order, or one for all; a label that stands twice has its first."""
    (tmp_path / name).write_text(content)
    import_file(tmp_path / name, tmp_path / "out", text="t", labels="l", weight="w", separator=";", test_fraction=0)
    rows = points(tmp_path / "out", "trn")
    assert [(row["title"], row["target_ind"], row["target_rel"]) for row in rows] == [
        ("fox", [0, 1], [3.0, 0.5]), ("owl", [0], [7.0]), ("cat", [0, 1], [4.0, 2.0])]


@pytest.mark.parametrize("weight", ["clicks", None])
def test_a_weight_of_all_labels_of_a_row(tmp_path: Path, weight: str | None):
    (tmp_path / "a.csv").write_text("t,l,clicks\nfox,hunter;mammal,3\nowl,hunter,5\n")
    import_file(tmp_path / "a.csv", tmp_path / "out", text="t", labels="l", weight=weight, test_fraction=0)
    assert [point["target_rel"] for point in points(tmp_path / "out", "trn")] == (
        [[3.0, 3.0], [5.0]] if weight else [[1.0, 1.0], [1.0]])


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.csv"])
@pytest.mark.parametrize("weight", [None, [], "absent"])
def test_a_row_without_a_weight_is_refused(tmp_path: Path, name: str, weight: object):
    """It would count as 1, where the others count hundreds: a left join in pandas writes such rows."""
    row = {"t": "owl", "l": ["hunter"], "w": weight}
    if weight == "absent":
        del row["w"]
    file = write(tmp_path, name, [{"t": "fox", "l": ["hunter"], "w": [500.0] if weight == [] else 500.0}, row])
    if name == "a.csv":
        file.write_text("t,l,w\nfox,hunter,500\nowl,hunter,\n")
    with pytest.raises(ContractError, match=r":[23]: (the row has no weight\nhint: give|a weight must be a number)"):
        import_file(file, tmp_path / "out", text="t", labels="l", weight="w", test_fraction=0)
    assert not (tmp_path / "out").exists()
