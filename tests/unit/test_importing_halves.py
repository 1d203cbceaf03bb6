"""Import: which half a text is in, and that it stays there."""

import gzip
import hashlib
import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from data_contracts.errors import ContractError, ProjectError
from tasks.data.sources import importing
from tasks.data.sources.importing import import_file
from tests.unit.test_importing import points, write

ROWS = [{"u": f"u{n}", "t": f"text {n % 200}", "l": ["x"]} for n in range(400)]


def split(out: Path, rows: list[dict], share: float = 0.25, **columns: str) -> tuple[set[str], set[str]]:
    """Import rows to a folder; return its texts for training and for testing."""
    file = write(out.parent, f"{out.name}.jsonl", rows)
    summary = import_file(file, out, text="t", labels="l", test_fraction=share, **columns)
    train, test = (points(out, stem) for stem in ("trn", "tst"))
    assert (summary["train"], summary["test"]) == (len(train), len(test))
    return {row["title"] for row in train}, {row["title"] for row in test}


def test_equal_texts_are_in_one_half_whatever_their_uids(tmp_path: Path):
    """Else a run refuses the data: the same texts in train and test. By text and by uid the halves are the same."""
    train, test = split(tmp_path / "uid", ROWS, uid="u")
    assert len(train) + len(test) == 200 and not train & test
    assert test == {f"text {n}" for n in range(200) if hashlib.sha1(f"text {n}\n".encode()).hexdigest()[0] in "0123"}
    assert 30 < len(test) < 70
    assert split(tmp_path / "text", ROWS) == (train, test)
    assert split(tmp_path / "fewer", ROWS[::-3]) == tuple(half & {row["t"] for row in ROWS[::-3]}
                                                          for half in (train, test))


def test_a_larger_share_takes_texts_from_train_alone(tmp_path: Path):
    tests = [split(tmp_path / str(share), ROWS, share)[1] for share in (0, 0.1, 0.2, 0.5, 0.9)]
    assert all(some < more for some, more in pairwise(tests)) and not tests[0]


@pytest.mark.parametrize("share", [0, 0.05, 0.25, 0.6])
@pytest.mark.parametrize("columns", [{}, {"uid": "u"}])
def test_texts_stay_where_they_are_as_data_grows_and_the_share_changes(tmp_path: Path, share: float, columns: dict):
    out = tmp_path / "out"
    train, test = split(out, ROWS, uid="u")
    more = [{"u": f"v{n}", "t": f"more {n}", "l": ["x"]} for n in range(200)]
    again, tested = split(out, more + ROWS, share, **columns)
    assert again & {row["t"] for row in ROWS} == train and tested & {row["t"] for row in ROWS} == test
    drawn = len(tested) - len(test)
    assert abs(drawn - 200 * share) < 25 and drawn + len(again) - len(train) == 200
    assert split(tmp_path / "new", more, share)[1] == tested - test, "new texts are drawn as anywhere"


def test_a_group_is_in_one_half_whatever_comes_to_it(tmp_path: Path):
    """Texts of several groups bind these; a group with a text that was trained on is for training from then on."""
    rows = [{**row, "g": f"g{n // 4}" if n % 5 else ""} for n, row in enumerate(ROWS[:200])]
    train, test = split(tmp_path / "out", rows, group="g")
    halves = [{row["g"] for row in rows if row["t"] in half} - {""} for half in (train, test)]
    assert all(len(half) > 5 for half in halves) and not halves[0] & halves[1]
    of = {row["title"]: name for row, name in zip(points(tmp_path / "out", "trn"), (
        tmp_path / "out/groups_train.txt").read_text().splitlines(), strict=True)}
    assert of == {row["t"]: row["g"] for row in rows if row["t"] in train}
    more = [{"u": f"m{n}", "t": f"more {n}", "l": ["x"], "g": row["g"]} for n, row in enumerate(rows) if row["g"]]
    again, tested = split(tmp_path / "out", rows + more, group="g")
    assert train <= again and test <= tested
    assert {row["t"] for row in more if row["g"] in halves[1]} == tested - test
    joining = {"u": "j", "t": rows[1]["t"], "l": ["y"], "g": next(row["g"] for row in rows if row["g"] in halves[1])}
    assert rows[1]["g"] in halves[0]
    kept, left = split(tmp_path / "out", [*rows, joining], group="g")
    assert kept >= train | {row["t"] for row in rows if row["g"] == joining["g"]} and left < test


def test_a_group_is_drawn_as_one(tmp_path: Path):
    """In a new folder by its name alone: whichever of its texts are there, and in whatever order."""
    rows = [{**row, "g": f"g{n // 4}"} for n, row in enumerate(ROWS[:200])]
    whole, half = (split(tmp_path / name, some, group="g")[1] for name, some in (("whole", rows), ("half", rows[::-2])))
    assert half == whole & {row["t"] for row in rows[::-2]} and 20 < len(whole) < 80


def test_spellings_of_a_text_are_in_one_half(tmp_path: Path):
    """Most tokenizers read them alike. Texts without others are drawn as ever, whatever the order of the rows."""
    twins = [{"u": f"{n}{row['u']}", "t": text.format(row["t"][5:]), "l": ["x"]} for row in ROWS[:200]
             for n, text in enumerate(("Text {}", " teXt \u2009 {}"))]
    train, test = split(tmp_path / "out", ROWS[:200])
    more = [split(tmp_path / f"more{order}", (twins + ROWS[100:200])[::order]) for order in (1, -1)]
    folded = [{" ".join(title.casefold().split()) for title in half} for half in more[0]]
    assert more[0] == more[1] and folded == [train, test], "lower case stays, and the others are with it"
    single, _ = split(tmp_path / "one", [row for row in twins if row["t"].startswith("Text")])
    assert single == {f"Text {n}" for n in range(200) if hashlib.sha1(f"Text {n}\n".encode()).hexdigest()[0] > "3"}


def test_a_new_spelling_of_a_text_goes_to_the_half_where_that_is(tmp_path: Path):
    """Where an earlier version put spellings into both halves, all are trained on, as one of them was."""
    out = tmp_path / "out"
    train, test = split(out, [{**row, "t": row["t"].title()} for row in ROWS[:200]])
    again = split(out, ROWS[:200])
    assert [{title.title() for title in half} for half in again] == [train, test]
    twice = sorted(again[1])[0]
    with gzip.open(out / "trn.json.gz", "at") as file:
        file.write(json.dumps({"uid": "w", "title": twice.upper(), "content": "", "target_ind": [],
                               "target_rel": []}) + "\n")
    assert split(out, ROWS)[1] == again[1] - {twice}


def test_a_split_of_the_users_own_stays_once_its_column_is_gone(tmp_path: Path):
    rows = [{**row, "s": "test" if row["u"].endswith("7") else "train"} for row in ROWS[:200]]
    halves = split(tmp_path / "out", rows, split="s")
    assert halves[1] == {f"text {n}" for n in range(7, 200, 10)}
    assert split(tmp_path / "out", rows) == halves


@pytest.mark.parametrize("order", [1, -1])
def test_an_edited_text_stays_where_its_uid_was(tmp_path: Path, order: int):
    """Where texts of both halves become one text, that is trained on, as one of them was."""
    train, test = split(tmp_path / "out", ROWS[:200], uid="u")
    one, other = (next(row["u"] for row in ROWS if row["t"] in half) for half in (train, test))
    edited = [{**row, "t": "one text" if row["u"] in (one, other) else f"Text {row['u']}."} for row in ROWS[:200]]
    again, tested = split(tmp_path / "out", edited[::order], uid="u")
    assert tested == {f"Text {row['u']}." for row in ROWS[:200] if row["t"] in test and row["u"] != other}
    assert "one text" in again and len(again) == len(train)


def test_the_number_of_a_line_is_no_uid(tmp_path: Path):
    split(tmp_path / "out", ROWS[:200])
    others = [{"u": str(n + 1), "t": f"another {n}", "l": ["x"]} for n in range(200)]
    assert split(tmp_path / "out", others, uid="u") == split(tmp_path / "new", others, uid="u")


def test_texts_that_an_earlier_version_put_into_both_halves_are_trained_on(tmp_path: Path):
    out = tmp_path / "out"
    _, test = split(out, ROWS[:200], uid="u")
    twice = sorted(test)[0]
    with gzip.open(out / "trn.json.gz", "at") as file:
        file.write(json.dumps({"uid": "w", "title": twice, "content": "", "target_ind": [], "target_rel": []}) + "\n")
    assert split(out, ROWS, uid="u")[1] == test - {twice}


def test_a_damaged_data_set_is_not_taken_for_one_without_texts(tmp_path: Path):
    out = tmp_path / "out"
    split(out, ROWS)
    for bad in (b"no gzip", gzip.compress(b"no JSON"), gzip.compress(b'{"uid": "a"}\n')):
        (out / "tst.json.gz").write_bytes(bad)
        with pytest.raises(ContractError, match=rf"tst.json.gz is damaged.*\nhint: remove it.*: rm -r {out}"):
            split(out, ROWS)
    (out / "tst.json.gz").unlink()
    with pytest.raises(ContractError, match=r"tst.json.gz is damaged"):
        split(out, ROWS)


def test_a_split_column_that_a_run_would_refuse_is_told(tmp_path: Path):
    rows = [{**row, "s": "test" if n < 30 else "train"} for n, row in enumerate(ROWS[:210])]
    file = write(tmp_path, "a.jsonl", rows)
    summary = import_file(file, tmp_path / "out", text="t", labels="l", split="s")
    assert summary["test_rows_with_a_text_of_train"] == 10
    assert "by column 's' 10 of 30 test rows have a text that train has" in summary["split_reason"]


def test_a_table_that_is_written_to_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    split(tmp_path / "a", ROWS)
    before = (tmp_path / "a" / "trn.json.gz").read_bytes()
    written = importing.write_json_lines

    def late(path: Path, rows) -> int:
        write(tmp_path, "a.jsonl", ROWS[1:])
        return written(path, rows)

    monkeypatch.setattr(importing, "write_json_lines", late)
    with pytest.raises(ProjectError, match=r"a.jsonl has changed .*\nhint: run the same command again"):
        split(tmp_path / "a", ROWS)
    assert (tmp_path / "a" / "trn.json.gz").read_bytes() == before


@pytest.mark.parametrize("at", [1, 2])
def test_an_import_that_is_stopped_as_it_replaces_a_data_set_leaves_that_one(tmp_path, monkeypatch, at):
    """After the earlier one was moved away, and before the new one is in its place."""
    split(tmp_path / "out", ROWS[:9])
    before = points(tmp_path / "out", "trn")
    rename, calls = os.rename, list[Path]()

    def stop(source, target):
        calls.append(target)
        if not len(calls) == at == 2:
            rename(source, target)
        if len(calls) == at:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        split(tmp_path / "out", ROWS[:5])
    assert points(tmp_path / "out", "trn") == before
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.jsonl"}
