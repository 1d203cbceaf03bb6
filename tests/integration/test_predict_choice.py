"""`xc predict --only` and `--without`: labels by uid, of a file, and branches of the vocabulary."""

import json

from tests.support.tiny import with_champion


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
    code, out, _ = cli("predict", "--input", "texts", "--only", every[4], *home)
    assert code == 0 and [label["uid"] for label in json.loads(out)["labels"]] == [every[4]]
    for words, said in ((("--only", "nowhere"), "--only: there is no label 'nowhere'\nhint: xc export embeddings"),
                        (("--without", "x", "--without", "y"), "--without: there is no label 'x', nor 1 more"),
                        (("--only", "branch:tiny:1"), "--only names a branch, but the model knows no broader relation"),
                        (("--only", "@none"), "none cannot be read")):
        code, _, err = cli("predict", "a wolf", *words, *home)
        assert code == 2 and said in err, err
