"""The validation data set that is cut from training texts: what counts in it is what a test would count."""

import gzip
import json

import pytest

from benchmarks import held_out
from data_contracts.errors import UsageError
from tasks.data.sources.writing import write_json_lines, write_pairs


def row(uid, *labels):
    return {"uid": uid, "title": f"title {uid}", "content": "", "target_ind": list(labels),
            "target_rel": [1.0] * len(labels)}


def test_pairs_that_training_shows_the_other_way_round_do_not_count():
    """Rows 0 to 3 are labels 0 to 3; row 0 is held out, and training has it as a label of row 1, not of row 2."""
    rows = [row("a", 1, 2), row("b", 0, 2), row("c", 3), row("d", 1)]
    own = {number: [number] for number in range(4)}
    train, held, hidden = held_out.hold_out(rows, own, [True, False, False, False])
    assert train == [1, 2, 3] and held == [rows[0]]
    assert hidden == [(0, 0), (0, 1)]    # itself, and the text that has it as its label


def test_labels_that_no_training_text_has_are_left_out_and_so_is_a_text_without_others():
    rows = [row("a", 0, 1), row("b", 0), row("c", 1, 2), row("d", 2)]
    train, held, hidden = held_out.hold_out(rows, {}, [True, False, True, True])
    assert train == [1] and hidden == []
    assert [(kept["uid"], kept["target_ind"], kept["target_rel"]) for kept in held] == [("a", [0], [1.0])]


def test_what_is_written_is_a_raw_data_set_of_the_same_labels(tmp_path, capsys):
    rows = [row(f"t{number}", number, (number + 1) % 60, 60) for number in range(60)]
    raw, out = tmp_path / "raw", tmp_path / "held-out"
    raw.mkdir()
    write_json_lines(raw / "trn.json.gz", rows)
    write_json_lines(raw / "lbl.json.gz", [{"uid": f"l{label}", "title": f"label {label}", "content": ""}
                                           for label in range(61)])
    write_pairs(raw / "filter_labels_train.txt", [(number, number) for number in range(60)])
    (raw / "dataset.json").write_text('{"name": "raw", "licence": "CC0", "files": []}')
    (raw / "groups_train.txt").write_text("".join(f"group {number // 3}\n" for number in range(60)))
    held_out.main(raw, out)
    was = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UsageError, match="OUT is DATA"):    # it was replaced by its own part
        held_out.main(out, out / ".")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == was
    train, test = ([json.loads(line) for line in gzip.decompress((out / f"{stem}.json.gz").read_bytes()).splitlines()]
                   for stem in ("trn", "tst"))
    assert {each["uid"] for each in train} | {each["uid"] for each in test} == {each["uid"] for each in rows}
    assert 0 < len(test) < 25 and (out / "lbl.json.gz").exists()
    own = [tuple(map(int, line.split())) for line in (out / "filter_labels_train.txt").read_text().splitlines()]
    assert own == [(place, int(each["uid"][1:])) for place, each in enumerate(train)]
    groups = (out / "groups_train.txt").read_text().splitlines()
    assert groups == [f"group {int(each['uid'][1:]) // 3}" for each in train]
    assert not set(groups) & {f"group {int(each['uid'][1:]) // 3}" for each in test}
    about = json.loads((out / "dataset.json").read_text())
    assert about["name"] == "held-out" and about["licence"] == "CC0" and "tst.json.gz" in about["files"]
    assert f"{len(train)} training texts, {len(test)} held out" in capsys.readouterr().out
