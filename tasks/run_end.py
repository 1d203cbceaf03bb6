"""The end of a run: registration, report and summary for the user."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.errors import DamagedArtifact, ProjectError, ServerError
from tasks.core.code_digest import commit
from tasks.core.files import put_file, remove
from tasks.core.step import METRICS_FILE
from tasks.core.store import Artifact, Store, digest_of
from tasks.data.contract import page_of
from tasks.data.feedback.journal import FeedbackJournal
from tasks.data.prepare import ADD_FEEDBACK
from tasks.evaluation.feedback_effect import FeedbackEffect, feedback_effect
from tasks.evaluation.gates import Score
from tasks.evaluation.report import EvaluationFiles, ReportFacts, ReportPage, verdict
from tasks.evaluation.thresholds import advice
from tasks.home_gc import note_server
from tasks.plan import Pipeline
from tasks.registry.comparison import ComparisonCorpus
from tasks.registry.label_edits import locked_edits
from tasks.registry.model_card import model_card
from tasks.registry.promotion import PromotionDecision, decision_on_record, promote_by_gates
from tasks.registry.register import register
from tasks.registry.resolve import resolve
from tasks.registry.tags import COMMIT, CONTRACTS, DATA, EXAMPLES
from tasks.tracked_run import TrackedRun, read_json
from xcmodels.data.corpus import Corpus, Texts
from xcmodels.data.text import example, shown
from xcmodels.methods.presets import flat
from xcmodels.retrieval.retriever import Retriever

EXAMPLES_SHOWN = 3     # test queries in a run's summary, and as examples in the version's tags
ELSEWHERE = "in the home that checked the tables, unless it has checked others of that name since"


@dataclass(frozen=True)
class RunSummary:
    """A run's summary."""

    run_id: str
    model: str
    version: str | None
    metrics: dict[str, float]
    verdict: str
    report: str
    contracts: str
    mlflow: str
    unsent: list[str] = field(default_factory=list)       # what could not be sent to MLflow
    examples: list[dict[str, Any]] = field(default_factory=list)
    champion: dict[str, Any] | None = None                # the previous one, as in `PromotionDecision`
    promoted: bool = True                                 # whether the version is the champion now
    about: dict[str, Any] = field(default_factory=dict)   # as `Pipeline.about` returns it


def finish(run: TrackedRun, done: Mapping[str, Artifact], *, register_it: bool, rebuild: bool) -> RunSummary:
    """Register the retriever if `register_it`, write the report, and end the run in MLflow.

    rebuild: write the report even if it exists; a registered version always gets one, after a kill too.
    """
    store, pipeline, tracker = run.store, run.pipeline, run.tracker
    corpus, evaluation = Corpus(store.open(done["pack"])), store.open(done["evaluate"])
    metrics = read_json(evaluation / METRICS_FILE)
    registered = _register(run, corpus, done, evaluation) if register_it else on_record(run, done)
    facts = _facts(run, corpus, registered, done)
    outcome = verdict(facts) if registered.version else "evaluated, not registered"
    report = store.home / "reports" / f"{pipeline.key[:16]}.html"
    of = {"run": tracker.run_id, "model": run.name, "version": facts.version}
    unreported = registered.version and (not registered.reused or _reported(store, report) != of)
    if (rebuild or not report.exists() or unreported) and _report(run, corpus, done, facts, report):
        store.set_ref("reports", report.stem, of)
    end_feedback(run, registered)
    if contracts := page_of(pipeline.data.name, done["check tables"], store):
        tracker.log_file(contracts, "contracts")
    run.finished = True
    tracker.finish("FINISHED", f"{outcome}\n\n    {run.config.command}")
    return RunSummary(tracker.run_id or "", run.name, facts.version, metrics, outcome, str(report),
                    str(contracts or ELSEWHERE), tracker.link() or tracker.address, tracker.close(),
                    _examples(store.open(done["build retriever"]), corpus), registered.champion, facts.promoted,
                    pipeline.about())


@dataclass(frozen=True)
class RegisteredDecision(PromotionDecision):
    """A registered version and what the gates decided; reused: the retriever was a version already."""

    version: str = ""    # "" where none holds the retriever, or MLflow does not tell
    reused: bool = False


UNREGISTERED = RegisteredDecision(False, "not registered")


def _register(run: TrackedRun, corpus: Corpus, done: Mapping[str, Artifact], evaluation: Path) -> RegisteredDecision:
    run.check_owner()
    tracker, pipeline, retriever = run.tracker, run.pipeline, done["build retriever"]
    score = Score(read_json(evaluation / METRICS_FILE), read_json(evaluation / "deciles.json"))
    found = EvaluationFiles.load(corpus, evaluation)
    card = model_card(
        f"{pipeline.method_name} · {corpus.name}", score, command=run.config.command,
        use=f"Tags short texts with the fitting ones of {corpus.n_labels:,} labels of {corpus.name}.",
        data={"training queries": corpus.n_queries, "labels": corpus.n_labels,
              "test queries": len(corpus.sides["test"]), "digest": pipeline.data_digest,
              **({"texts with feedback": len(pipeline.feedback)} if pipeline.feedback else {})},
        threshold=advice(found.answers, run.config.wanted_precision))
    registered = register(
        tracker, tracker.run_id or "", run.name, retriever_dir=run.store.open(retriever),
        retriever_digest=retriever.digest, score=score, test_digest=_test_digest(pipeline), card=card,
        facts={DATA: pipeline.data_digest, COMMIT: commit(), CONTRACTS: "contracts/index.html",
               EXAMPLES: json.dumps([example(*texts) for texts in _test_texts(corpus)])})
    note_server(run.store, tracker)
    decision = promote_by_gates(
        tracker, run.name, registered.version, ComparisonCorpus(run.store, done["pack"], run.say),
        edits=partial(locked_edits, run.store, tracker, run.name))
    return RegisteredDecision(**vars(decision), version=registered.version, reused=registered.reused)


def on_record(run: TrackedRun, done: Mapping[str, Artifact]) -> RegisteredDecision:
    """Return the version that holds the retriever already, with what was decided, if there is one."""
    with suppress(ServerError):
        if found := decision_on_record(run.tracker, run.name, done["build retriever"].digest):
            return RegisteredDecision(**vars(found[1]), version=found[0], reused=True)
    return UNREGISTERED


def end_feedback(run: TrackedRun, registered: RegisteredDecision) -> None:
    """Have the next training learn from all that was said, where a version holds what this one has learned."""
    if registered.version and run.config.feedback == "use":
        FeedbackJournal(run.store.home, run.name).end()


def _facts(run: TrackedRun, corpus: Corpus, registered: RegisteredDecision,
           done: Mapping[str, Artifact]) -> ReportFacts:
    pipeline, store = run.pipeline, run.store
    is_champion = bool(registered.champion and registered.champion["version"] == registered.version)
    curves: dict[str, list[dict[str, float]]] = {}
    mined: dict[str, list[dict[str, float]]] = {}
    seconds: dict[str, float] = {}
    for step in pipeline.steps:
        if step.kind == "checkpoint":
            curves.setdefault(step.name.partition(" ")[0], []).extend(
                read_json(store.open(done[step.name], whole=False) / METRICS_FILE))
        if step.kind == "mined":
            mined.setdefault(step.name.split(" ")[1], []).extend(
                read_json(store.open(done[step.name], whole=False) / METRICS_FILE))
        seconds[step.name] = step.took(store) or 0.0
    return ReportFacts(
        title=f"{pipeline.method_name} · {pipeline.data.name}", run_id=run.tracker.run_id or "",
        version=registered.version or None, command=run.config.command,
        data={"name": corpus.name, "train": corpus.n_queries, "test": len(corpus.sides["test"]),
              "labels": corpus.n_labels, "digest": pipeline.data_digest},
        settings=flat(pipeline.settings), changed=pipeline.changed(), curves=curves, mined=mined,
        champion=None if is_champion else registered.champion, promoted=registered.promoted or is_champion,
        reigns=is_champion, reason=registered.reason, note=registered.note, became=registered.became, seconds=seconds,
        date=datetime.now(UTC).date().isoformat(),
        memory={step.name: peak.bytes for step in pipeline.steps if (peak := step.peak_memory(store))},
        gates=registered.gates, wanted_precision=run.config.wanted_precision,
        contract=read_json(store.open(done["check tables"]) / "contract.json"))


def _feedback(run: TrackedRun, corpus: Corpus, done: Mapping[str, Artifact],
              facts: ReportFacts) -> FeedbackEffect | None:
    """Return what feedback changed against the champion before; None where there was no feedback."""
    if ADD_FEEDBACK not in done:
        return None
    before = None
    if facts.champion:
        with suppress(ValueError, ProjectError):    # it cannot be opened
            before = Retriever.load(resolve(run.tracker, f"{run.name}/{facts.champion['version']}").folder)
    after = Retriever.load(run.store.open(done["build retriever"]))
    return feedback_effect(run.store.open(done[ADD_FEEDBACK], whole=False), corpus, after, before)


def _reported(store: Store, page: Path) -> dict[str, Any] | None:
    """Return the run, model and version that the report on `page` is of; None where a kill left that open."""
    with suppress(DamagedArtifact):
        return store.get_ref("reports", page.stem)
    return None


def _report(run: TrackedRun, corpus: Corpus, done: Mapping[str, Artifact], facts: ReportFacts, page: Path) -> bool:
    """Write the report to `page` and, with its plots, to MLflow; return False, and say why, where that fails."""
    page.parent.mkdir(exist_ok=True)
    try:
        facts = replace(facts, feedback=_feedback(run, corpus, done, facts))
        report = ReportPage(corpus, run.store.open(done["evaluate"]), facts)
        remove(part := page.with_suffix(".part"))    # of a run that was killed as it wrote
        put_file(report.page().encode(), page, os.replace, part)
        run.tracker.log_file(page, "report")
        if facts.feedback:
            run.tracker.log_text(json.dumps(asdict(facts.feedback), indent=1), "feedback.json")
        for name, svg in report.plots().items():
            run.tracker.log_text(svg.decode(), f"plots/{name}.svg")
    except Exception as error:
        run.say(f"the report could not be built ({error}); build it again with: xc report")
        return False
    return True


def _test_digest(pipeline: Pipeline) -> str:
    """Return the digest of what the metrics are measured on: test queries, labels, positives and filters."""
    test_tables = ("queries.test", "labels", "positives.test", "filters.test")
    files = pipeline.prepare[0].settings["files"]
    return digest_of({table: files[path.name] for table, path in pipeline.data.files.items() if table in test_tables})


def _examples(folder: Path, corpus: Corpus) -> list[dict[str, Any]]:
    texts = _test_texts(corpus)
    predictions = Retriever.load(folder).predict([title for title, _ in texts], 3, [content for _, content in texts])
    return [{"text": shown(title, content),
             "labels": [{"text": label.text, "confidence": label.confidence} for label in labels]}
            for (title, content), labels in zip(texts, predictions, strict=True)]


def _test_texts(corpus: Corpus) -> list[tuple[str, str]]:
    """Return title and content of a few test queries, evenly spread over the split."""
    n = len(corpus.sides["test"])
    titles, contents = (Texts.load(corpus.folder, f"test.{part}") for part in ("title", "content"))
    return [(titles[row], contents[row]) for row in (n * i // EXAMPLES_SHOWN for i in range(min(EXAMPLES_SHOWN, n)))]
