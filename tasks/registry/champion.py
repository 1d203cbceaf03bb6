"""Evaluation of the champion on the newest data."""

from dataclasses import dataclass

from tasks.core.store import Artifact, Store, digest_of
from tasks.evaluation.gates import Score
from tasks.registry.comparison import compare, trained_texts
from tasks.registry.resolve import resolve
from tasks.registry.tags import CHAMPION
from tasks.tracking.tracker import StepMetrics, Tracker
from xcmodels.data.corpus import Corpus
from xcmodels.retrieval.retriever import Retriever


@dataclass(frozen=True)
class ChampionScore:
    """A champion's score on a corpus' test queries, over the labels that it knows, and its run in MLflow.

    note: a remark on the score, such as how many queries were left out.
    """

    name: str
    version: str
    score: Score
    note: str
    run_id: str


def evaluate_champion(tracker: Tracker, name: str, corpus: Corpus, pack: Artifact, command: str = "") -> ChampionScore:
    """Score the champion of `name` on a corpus as it answers today, and log that as a run in MLflow.

    Test queries that it was trained on are left out: a new import may have put them there.
    pack: the artifact of the corpus; the same champion on the same artifact is the same run. Raises
    UsageError where there is no champion, ValueError where the test queries have none of its labels.
    """
    champion = resolve(tracker, f"{name}@{CHAMPION}")
    comparison = compare([Retriever.load(champion.folder)], corpus, [trained_texts(Store(tracker.home), champion)])
    score, note = comparison.scores[0], comparison.note(f"version {champion.version}")
    tracker.start(digest_of(["champion", champion.digest, pack.digest]), experiment=corpus.name,
                  name=f"champion v{champion.version} · {corpus.name}",
                  params={"model": name, "version": champion.version},
                  config_yaml="", data={corpus.name: {"path": pack.path, "digest": pack.digest}},
                  tags={"xc.champion": champion.version, "xc.retriever": champion.digest})
    tracker.sync([StepMetrics("champion", pack.digest, dict(score.metrics), tables={"decile": list(score.deciles)})])
    result = (f"version {champion.version} on {score.metrics['points']:,.0f} test queries: "
              f"P@1 {score.metrics['P/1']:.2f}, PSP@5 {score.metrics['PSP/5']:.2f}")
    tracker.finish("FINISHED", f"{result}{'; ' if note else ''}{note}\n\n    {command}")
    tracker.close()
    return ChampionScore(name, champion.version, score, note, tracker.run_id or "")
