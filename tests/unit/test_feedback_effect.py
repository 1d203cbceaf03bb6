"""What feedback changed, by retrievers whose answers are written down."""

import json
from types import SimpleNamespace

import numpy as np
import torch

from tasks.data.feedback.add import FACTS, HELD_OUT
from tasks.evaluation.feedback_effect import BeforeAndAfter, feedback_effect
from xcmodels.data import seen_texts
from xcmodels.data.corpus import Ragged, Texts

UIDS = ["a", "b", "c", "d"]
TEST = [("t0", [0, 2]), ("t1", [1, 3]), ("t2", [0, 3]), ("t3", [0, 1, 2, 3])]    # of each test query: text, labels


def tokens(titles, _contents):
    """One token a text, the number in its title."""
    ids = torch.tensor([int(title[1:]) for title in titles])
    return SimpleNamespace(ids=ids, offsets=torch.arange(len(ids) + 1))


def retriever(answers, trained_on=()):
    """Answer each title by labels of one letter; trained on some texts."""
    return SimpleNamespace(
        tokenizer=tokens, training_digests=np.sort(seen_texts.digests(tokens(trained_on, ()))),
        predict=lambda titles, k, contents: [[SimpleNamespace(uid=uid) for uid in answers[title][:k]]
                                             for title in titles])


def test_each_figure_is_of_its_own_texts_and_labels(tmp_path):
    """Labels a and b got feedback; both retrievers are asked the same, and t3 was trained on by one of them."""
    (tmp_path / FACTS).write_text(json.dumps({"texts": 7, "labels": ["a", "b"]}))
    held_out = [("h10", ["a", "b"], ["c"]), ("h11", ["b"], ["a", "d"]), ("h12", [], ["c"])]
    (tmp_path / HELD_OUT).write_text("".join(
        json.dumps({"title": title, "content": "", "right": right, "wrong": wrong}) + "\n"
        for title, right, wrong in held_out))
    Texts.save(tmp_path, "test.title", [title for title, _ in TEST])
    Texts.save(tmp_path, "test.content", [""] * len(TEST))
    Texts.save(tmp_path, "label.uid", UIDS)
    corpus = SimpleNamespace(
        folder=tmp_path, sides={"test": TEST}, label_texts=lambda: (Texts.load(tmp_path, "label.uid"), None),
        positives={"test": Ragged(np.cumsum([0] + [len(labels) for _, labels in TEST]),
                                  np.concatenate([labels for _, labels in TEST]))})
    before = retriever({"h10": "cab", "h11": "ad", "h12": "c", "t0": "c", "t1": "d", "t2": "cd", "t3": "abcd"}, ["t3"])
    after = retriever({"h10": "ab", "h11": "bd", "h12": "d", "t0": "ac", "t1": "bd", "t2": "a", "t3": "abcd"})
    found = feedback_effect(tmp_path, corpus, after, before)
    assert found.counts == {"texts": 7}
    assert found.shares == [
        BeforeAndAfter("held-out texts whose first label is right", 2, 0, 2),
        BeforeAndAfter("labels said to be right, among the first 5 of held-out texts", 3, 2, 3),
        BeforeAndAfter("labels said to be wrong, among the first 5 of held-out texts", 4, 4, 1),
        BeforeAndAfter("labels with feedback, among the first 5 of test queries", 3, 0, 3),
        BeforeAndAfter("all other labels, among the first 5 of test queries", 3, 3, 2)]
    alone = feedback_effect(tmp_path, corpus, after, None)
    assert [share.before for share in alone.shares] == [None] * 5
    assert alone.shares[-2:] == [
        BeforeAndAfter("labels with feedback, among the first 5 of test queries", 5, None, 5),
        BeforeAndAfter("all other labels, among the first 5 of test queries", 5, None, 4)], "t3 is new to it"
