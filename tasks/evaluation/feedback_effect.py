"""What feedback changed: a model that learned from it beside the champion that did not, on texts new to both."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.data.feedback.add import FACTS, HELD_OUT
from xcmodels.data import seeds, seen_texts
from xcmodels.data.corpus import Corpus, Texts
from xcmodels.data.sorted_ids import isin_sorted
from xcmodels.retrieval.retriever import Retriever

FIRST = 5           # labels of a text that count
SAMPLED = 5000      # test queries that are answered, at most


@dataclass(frozen=True)
class BeforeAndAfter:
    """How many of `of` pairs of text and label, or texts, a statement holds for; before: by the champion, if any."""

    what: str
    of: int
    before: int | None
    after: int

    def percent(self, count: int | None) -> str:
        """Return a count as a share of all."""
        return "" if count is None else f"{100 * count / self.of:.1f}%"


@dataclass(frozen=True)
class FeedbackEffect:
    """What was made of the feedback (`add_feedback`'s counts), and what it changed."""

    counts: Mapping[str, int | Mapping[str, int]]
    shares: Sequence[BeforeAndAfter]


def feedback_effect(tables: Path, corpus: Corpus, after: Retriever, before: Retriever | None) -> FeedbackEffect:
    """Compare a retriever with the champion on the decisions that were held out, and on the test queries.

    tables: the artifact of `add_feedback`. Labels are matched by uid.
    """
    counts = json.loads((tables / FACTS).read_text())
    corrected = set(counts.pop("labels"))
    with open(tables / HELD_OUT, encoding="utf-8") as file:    # str.splitlines would cut at U+2028, too
        held_out = [json.loads(line) for line in file]
    retrievers = [retriever for retriever in (after, before) if retriever is not None]
    texts = [[decision[field] for decision in held_out] for field in ("title", "content")]
    answers = [_uids(retriever, *texts) for retriever in retrievers]
    right, wrong = ([set(decision[name]) for decision in held_out] for name in ("right", "wrong"))
    judged = [bool(labels) for labels in right]
    shares = [
        _compared("held-out texts whose first label is right", sum(judged), [
            sum(bool(set(best[:1]) & labels) for best, labels in zip(found, right, strict=True)) for found in answers]),
        _compared(f"labels said to be right, among the first {FIRST} of held-out texts", *_found(right, answers)),
        _compared(f"labels said to be wrong, among the first {FIRST} of held-out texts", *_found(wrong, answers))]
    rows = np.arange(len(corpus.sides["test"]))
    rows = np.sort(seeds.generator(0, "feedback effect").permutation(rows)[:SAMPLED])
    rows = rows[~_trained_on(rows, corpus, retrievers)]
    titles, contents = _texts(corpus, rows)
    uids, _ = corpus.label_texts()
    truth = [set(uids.take(corpus.positives["test"][row])) for row in rows.tolist()]
    answers = [_uids(retriever, titles, contents) for retriever in retrievers]
    shares += [_compared(f"{which}, among the first {FIRST} of test queries", *_found(part, answers))
               for which, part in (("labels with feedback", [labels & corrected for labels in truth]),
                                   ("all other labels", [labels - corrected for labels in truth]))]
    return FeedbackEffect(counts, [share for share in shares if share.of])


def _texts(corpus: Corpus, rows: np.ndarray) -> tuple[list[str], list[str]]:
    """Return the titles and the contents of test queries."""
    titles, contents = (Texts.load(corpus.folder, f"test.{part}").take(rows) for part in ("title", "content"))
    return titles, contents


def _trained_on(rows: np.ndarray, corpus: Corpus, retrievers: Sequence[Retriever]) -> np.ndarray:
    """Return which test queries a retriever was trained on: a new import may have put them there."""
    seen = np.zeros(len(rows), dtype=bool)
    for retriever in retrievers:
        seen |= isin_sorted(seen_texts.digests(retriever.tokenizer(*_texts(corpus, rows))), retriever.training_digests)
    return seen


def _compared(what: str, of: int, counts: Sequence[int]) -> BeforeAndAfter:
    return BeforeAndAfter(what, of, counts[1] if len(counts) > 1 else None, counts[0])


def _found(labels: Sequence[set[str]], answers: Sequence[Sequence[Sequence[str]]]) -> tuple[int, list[int]]:
    """Return how many labels there are, and how many of them each retriever has among a text's first."""
    return sum(map(len, labels)), [
        sum(len(wanted.intersection(best)) for wanted, best in zip(labels, found, strict=True)) for found in answers]


def _uids(retriever: Retriever, titles: Sequence[str], contents: Sequence[str]) -> list[list[str]]:
    """Return the uids of the first labels of each text."""
    return [[label.uid for label in labels] for labels in retriever.predict(titles, FIRST, contents)] if titles else []
