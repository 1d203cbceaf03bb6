"""The champion on the newest data: how good is what answers today?"""

from dataclasses import dataclass

from tasks.core.store import Artifact, Store, digest_of
from tasks.evaluation.gates import Score
from tasks.registry.comparison import compare, trained_texts
from tasks.registry.resolve import resolve
from tasks.registry.tags import CHAMPION
from tasks.tracking.tracker import Entry, Tracker
from xcmodels.data.corpus import Corpus
from xcmodels.retrieval.retriever import Retriever


@dataclass(frozen=True)
class Judged:
    """A champion's score on a corpus' test queries, over the labels that it knows, and its run in MLflow.

    note: what has to be said beside the score, as of queries that were left out.
    """

    name: str
    version: str
    score: Score
    note: str
    run_id: str


def evaluate_champion(tracker: Tracker, name: str, corpus: Corpus, pack: Artifact, command: str = "") -> Judged:
    """Score the champion of `name` on a corpus as it answers today, and keep that as a run in MLflow.

    Test queries that it was trained on are left out: a new import may have put them there.
    pack: the artifact that the corpus was opened from; the same champion on the same one is the same run. Raises
    UsageError where there is no champion, ValueError where the test queries have none of its labels.
    """
    found = resolve(tracker, f"{name}@{CHAMPION}")
    compared = compare([Retriever.load(found.folder)], corpus, [trained_texts(Store(tracker.home), found)])
    score, note = compared.scores[0], compared.note(f"version {found.version}")
    tracker.start(digest_of(["champion", found.digest, pack.digest]), experiment=corpus.name,
                  name=f"champion v{found.version} · {corpus.name}", params={"model": name, "version": found.version},
                  config_yaml="", data={corpus.name: {"path": pack.path, "digest": pack.digest}},
                  tags={"xc.champion": found.version, "xc.retriever": found.digest})
    tracker.sync([Entry("champion", pack.digest, dict(score.metrics), tables={"decile": list(score.deciles)})])
    points = f"{score.metrics['points']:,.0f} test queries"
    said = f"version {found.version} on {points}: P@1 {score.metrics['P/1']:.2f}, PSP@5 {score.metrics['PSP/5']:.2f}"
    tracker.finish("FINISHED", f"{said}{'; ' if note else ''}{note}\n\n    {command}")
    tracker.close()
    return Judged(name, found.version, score, note, tracker.run_id or "")
