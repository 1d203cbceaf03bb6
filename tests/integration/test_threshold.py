"""`xc predict --threshold`: the labels that are as sure, and none where there is none."""

import json

from tests.support.tiny import with_champion


def test_a_threshold_leaves_the_labels_that_are_as_sure(cli, tmp_path):
    models = with_champion(tmp_path / "home")
    home = ("--home", str(models.store.home))
    [every] = [json.loads(line)["labels"] for line in cli("predict", "a wolf", "--k", "6", *home)[1].splitlines()]
    least = every[2]["confidence"]
    code, out, _ = cli("predict", "a wolf", "--k", "6", "--threshold", str(least), *home)
    assert code == 0 and json.loads(out)["labels"] == [each for each in every if each["confidence"] >= least]
    assert json.loads(cli("predict", "a wolf", "--threshold", "1", *home)[1])["labels"] == []
    assert cli("predict", "a wolf", "--threshold", "1", "--format", "csv", *home)[1].splitlines()[1:] == ["0,,,,,,"]
    (tmp_path / "none").write_text("")
    assert cli("predict", "--input", "none", *home) == (0, "", "warning: there is no text in none\n")
    code, _, err = cli("predict", "--input", "none", "a", *home)
    assert code == 2 and "there is --input none and a text beside it, 'a'\nhint: leave one of them out" in err
    for wrong in ("1.5", "-1", "nan"):
        code, _, err = cli("predict", "a wolf", "--threshold", wrong, *home)
        assert code == 2 and f"--threshold must be between 0 and 1, got {wrong}" in err
