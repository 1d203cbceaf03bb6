"""A check of what a retriever says of its answers."""

import numpy as np
import pytest

from xcmodels.data.corpus import Texts
from xcmodels.predictions import match
from xcmodels.retrieval.calibration import BEST, calibration_error
from xcmodels.retrieval.ranker import predict
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.local_run import TrainedMethod


def is_as_sure_as_right(made: TrainedMethod) -> None:
    """Check that confidences rise with scores, and how often they are right, as far as few queries can tell."""
    retriever, corpus = Retriever.load(made.retriever), made.corpus
    ids, scores = predict(retriever, corpus, BEST)
    sure, judged = retriever.calibration(scores), match(
        ids, corpus.positives["test"], corpus.filters["test"], corpus.n_labels)
    assert 0 < retriever.calibration.queries <= len(corpus.validation)
    assert (np.diff(sure, axis=1) <= 0).all() and ((sure >= 0) & (sure <= 1)).all()
    assert calibration_error(sure[judged.rows].ravel(), judged.hits.ravel()) < 8, "of 60 queries, on 150"


def explains_its_answers(made: TrainedMethod, parts: set[str]) -> None:
    """Check that parts sum to the score, and that the training texts shown are the label's nearest to the text."""
    retriever, corpus = Retriever.load(made.retriever), made.corpus
    titles, contents = ([Texts.load(corpus.folder, f"{side}.{part}") for side in ("train", "test")]
                        for part in ("title", "content"))
    positives, names = corpus.positives["train"], list(Texts.load(corpus.folder, "label.title"))
    texts = list(titles[0])[:corpus.n_queries]

    def embedded(side: int, row: int) -> np.ndarray:
        vector = retriever.embed(retriever.tokenizer([titles[side][row]], [contents[side][row]]))[0]
        return vector / np.linalg.norm(vector)

    for row in range(5):
        (found,) = retriever.predict([titles[1][row]], 6, [contents[1][row]])
        for label, why in zip(found, retriever.explain(titles[1][row], found, 2, contents[1][row]), strict=True):
            assert set(why.parts) == parts
            assert sum(why.parts.values()) == pytest.approx(label.score, abs=1e-5)
            assert len(why.words) <= 6 and bool(why.words) <= ("sparse" in parts)
            of = {at for at in range(corpus.n_queries) if label.id in positives[at]}
            assert why.frequency == len(of)
            saved, tokens = retriever.examples.kept[label.id], retriever.examples.side.ragged
            kept = {tuple(tokens[number]) for number in saved}
            assert len(saved) == min(len(of), 16)
            cosines = {at: float(embedded(0, at) @ embedded(1, row)) for at in of
                       if tuple(corpus.sides["train"].ragged[at]) in kept}
            assert len(cosines) == len(saved)
            best = sorted(cosines, key=cosines.__getitem__, reverse=True)[:2]
            assert [near.similarity for near in why.nearest] == pytest.approx([cosines[at] for at in best], abs=1e-5)
            assert [(near.text, near.labels) for near in why.nearest] == [
                (texts[at], [names[other] for other in positives[at]]) for at in best]
