"""Import: rows of equal text are one text with the labels of all, but for rows that have uids."""

import random
import tracemalloc
from pathlib import Path

import pytest

from tasks.data.sources import importing
from tasks.data.sources.importing import import_file
from tests.unit.test_importing import points, write

CLICKS = """\
query,item,clicks
red fox,mammal,3
owl,bird,1
red fox,hunter,0.5
Red fox,mammal,8
red fox,mammal,4
owl,bird;hunter,2
"""


def rows_of(out: Path, stem: str = "trn") -> list[tuple[str, str, dict[str, float]]]:
    """Return uid, title, and label -> relevance of each point."""
    names = [row["uid"] for row in points(out, "lbl")]
    return [(row["uid"], row["title"], dict(zip(map(names.__getitem__, row["target_ind"]), row["target_rel"],
                                                strict=True))) for row in points(out, stem)]


@pytest.mark.parametrize("weight", ["clicks", None])
def test_a_table_with_one_label_a_row(tmp_path: Path, weight: str | None):
    """Else a text's labels of its other rows are negatives of a row, and its hardest."""
    (tmp_path / "a.csv").write_text(CLICKS)
    summary = import_file(tmp_path / "a.csv", tmp_path / "out", text="query", labels="item", weight=weight,
                          separator=";", test_fraction=0)
    expected = [("2", "red fox", {"hunter": 0.5, "mammal": 7.0}), ("3", "owl", {"bird": 3.0, "hunter": 2.0}),
                ("5", "Red fox", {"mammal": 8.0})]
    assert rows_of(tmp_path / "out") == [
        (uid, title, labels if weight else dict.fromkeys(labels, 1.0)) for uid, title, labels in expected]
    assert (summary["train"], summary["rows_joined"], summary["positives_train"]) == (3, 3, 5)
    assert summary["rows_joined_reason"] == "rows of equal text are one text, with the labels of all"


def test_rows_with_uids_stay_apart(tmp_path: Path):
    """They are records of a catalogue, say; a document without an id is its text."""
    (tmp_path / "a.csv").write_text("u,t,l\n1,a,x\n2,a,y\n")
    summary = import_file(tmp_path / "a.csv", tmp_path / "out", text="t", labels="l", uid="u", test_fraction=0)
    assert rows_of(tmp_path / "out") == [("1", "a", {"x": 1.0}), ("2", "a", {"y": 1.0})]
    assert not {"rows_joined", "rows_joined_reason"} & summary.keys()
    rows = [{"text": "a", "document_id": number, "subjects": [{"label": label}]}
            for number, label in (("d1", "v"), (None, "w"), ("d2", "x"), (None, "y"))]
    import_file(write(tmp_path, "a.jsonl", rows), tmp_path / "docs", test_fraction=0)
    assert rows_of(tmp_path / "docs") == [("d1", "a", {"v": 1.0}), ("2", "a", {"w": 1.0, "y": 1.0}),
                                          ("d2", "a", {"x": 1.0})]


def test_rows_are_joined_within_the_halves_that_a_column_gives(tmp_path: Path):
    """A label that no row for training has is left out as ever."""
    rows = [("a", "x", "train"), ("a", "x", "test"), ("a", "y", "train"), ("a", "z", "test"), ("a", "y", "test")]
    file = write(tmp_path, "a.jsonl", [{"t": text, "l": label, "s": half} for text, label, half in rows])
    summary = import_file(file, tmp_path / "out", text="t", labels="l", split="s")
    assert rows_of(tmp_path / "out") == [("1", "a", {"x": 1.0, "y": 1.0})]
    assert rows_of(tmp_path / "out", "tst") == [("2", "a", {"x": 1.0, "y": 1.0})]
    assert (summary["rows_joined"], summary["labels_never_in_training"]) == (3, 1)
    assert summary["test_rows_with_a_text_of_train"] == 1


def test_titles_and_contents_are_compared_and_a_naive_join_agrees(tmp_path: Path):
    draw = random.Random(5)
    rows = [{"t": f"t{draw.randrange(9)}", "c": draw.choice(["", "c"]), "w": draw.choice([0.5, 1, 3]),
             "l": draw.sample(["u", "v", "w", "x", "y"], draw.randrange(1, 4))} for _ in range(90)]
    naive: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        labels = naive.setdefault((row["t"], row["c"]), {})
        for label in row["l"]:
            labels[label] = labels.get(label, 0) + row["w"]
    summary = import_file(write(tmp_path, "a.jsonl", rows), tmp_path / "out", text="t", content="c", labels="l",
                          weight="w", test_fraction=0.3)
    found = {(point["title"], point["content"]): labels for stem in ("trn", "tst")
             for point, (_, _, labels) in zip(points(tmp_path / "out", stem), rows_of(tmp_path / "out", stem),
                                              strict=True)}
    assert found == naive and summary["train"] + summary["test"] + summary["rows_joined"] == 90
    assert min(summary["train"], summary["test"]) > 0


def test_a_row_takes_few_bytes_while_rows_are_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A log of clicks has many more rows than texts."""
    grown, collect = list[int](), importing._collect

    def measured(*of):
        tracemalloc.start()
        try:
            collected = collect(*of)
            grown.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        return collected

    monkeypatch.setattr(importing, "_collect", measured)
    (tmp_path / "a.csv").write_text("t,l\n" + "".join(f"text {n % 100},cats\n" for n in range(20_000)))
    assert import_file(tmp_path / "a.csv", tmp_path / "out", text="t", labels="l")["rows_joined"] == 19_900
    assert grown[0] < 24 * 20_000


def test_groups_that_a_joined_text_has_are_one(tmp_path: Path):
    """A text is of one group: else others of its further groups would be held out while it is trained on."""
    rows = [("jams", ""), ("slow", "ann"), ("jams", "bob"), ("fast", "bob"), ("mail", "eve"), ("jams", "ann"),
            ("mail", "")]
    (tmp_path / "a.csv").write_text("t,g,l\n" + "".join(f"{text},{group},x\n" for text, group in rows))
    import_file(tmp_path / "a.csv", tmp_path / "out", text="t", labels="l", group="g", test_fraction=0)
    groups = (tmp_path / "out/groups_train.txt").read_text().split("\n")
    assert [*zip((title for _, title, _ in rows_of(tmp_path / "out")), groups, strict=False)] == [
        ("jams", "bob"), ("slow", "bob"), ("fast", "bob"), ("mail", "eve")]
