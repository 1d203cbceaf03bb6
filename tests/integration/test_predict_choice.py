"""`xc predict --only` and `--without`: labels by uid, of a file, and branches of the vocabulary."""

import json
import shutil

import pytest

from data_contracts.errors import UsageError
from flows.cli.predict import predict_texts, select
from tests.support.tiny import tiny_retriever, with_champion
from xcmodels.data.label_branches import Branches
from xcmodels.retrieval.calibration import UNKNOWN
from xcmodels.retrieval.retriever import Retriever


def test_labels_are_chosen_and_left_out(cli, tmp_path):
    home = ("--home", str(with_champion(tmp_path / "home").store.home))

    def found(*words: str) -> list[str]:
        code, out, err = cli("predict", *words, "a wolf", "--k", "50", *home)
        assert code == 0, err
        return [label["uid"] for label in json.loads(out)["labels"]]

    every = found()
    assert len(every) == 50
    assert found("--without", every[0], "--without", every[2]) == [every[1], *every[3:]]
    assert found("--only", every[7], "--only", every[3]) == [every[3], every[7]]
    (tmp_path / "uids").write_text("\n".join(every[10:30]) + "\n\n")
    assert found("--only", "@uids", "--only", every[2], "--without", every[12]) == [
        every[2], *every[10:12], *every[13:30]]
    (tmp_path / "texts").write_text("a wolf\n")
    code, out, err = cli("predict", "--input", "texts", "--only", every[4], *home)
    assert code == 0 and [label["uid"] for label in json.loads(out)["labels"]] == [every[4]]
    assert "confidences" not in err
    (tmp_path / "marked").write_text(f"{every[4]}\n{every[9]}\n", encoding="utf-8-sig")    # as Notepad writes it
    (tmp_path / "utf16").write_text(f"{every[1]}\n{every[4]}\n", encoding="utf-16")
    assert found("--only", "@marked", "--without", "@utf16") == [every[9]]
    (tmp_path / "empty.txt").write_text("\n")
    for words, said in ((("--only", "nowhere"), "--only: there is no label 'nowhere'\nhint: xc export embeddings"),
                        (("--only", "river fox"), "named by uid; that with this text: --only tiny:1\n"),
                        (("--without", "x", "--without", "y"), "--without: there is no label 'x', nor 1 more"),
                        (("--only", "branch:tiny:1"), "--only names a branch, but the model knows no broader relation"),
                        (("--only", "@none"), "none does not exist"),
                        (("--only", "@"), "@ names no file"), (("--without", "@empty.txt"), "empty.txt has no uid")):
        code, _, err = cli("predict", "a wolf", *words, *home)
        assert code == 2 and said in err, err


@pytest.mark.parametrize(("word", "said", "hint"), [
    ("top", "--only: there is no label 'top'", "it is a concept: --only branch:top takes the labels under it"),
    ("branch:none", "--only: there is no concept 'none'", "broader.tsv of the data set lists all")])
def test_a_concept_and_an_unknown_branch_have_their_own_remedies(tmp_path, word, said, hint):
    shutil.copytree(tiny_retriever(tmp_path / "made"), tmp_path / "r")
    Branches.save(tmp_path / "r", [("tiny:1", "top")])
    with pytest.raises(UsageError, match=said) as caught:
        select(Retriever.load(tmp_path / "r"), [word], [])
    assert caught.value.hint == hint


def test_confidences_that_were_fitted_on_no_query_are_remarked_once(tmp_path, capsys):
    retriever = Retriever.load(tiny_retriever(tmp_path))
    retriever.calibration = UNKNOWN
    predict_texts(retriever, ["a wolf"] * 2, 1)
    assert capsys.readouterr().err.count("warning: confidences were fitted on no query") == 1
