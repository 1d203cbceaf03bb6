"""A run in MLflow, and how it ends: registration, report and summary for the user."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from data_contracts.errors import DamagedArtifact, ProjectError, ServerError
from tasks.core.code_digest import commit
from tasks.core.files import put_file, remove
from tasks.core.processes import process_name
from tasks.core.step import METRICS_FILE, Step, StepResult
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
from tasks.registry.register import check_owner, register
from tasks.registry.resolve import resolve
from tasks.registry.tags import COMMIT, CONTRACTS, DATA, EXAMPLES, RUN_HOME
from tasks.runs import CHANGED, COMMAND, PROCESS
from tasks.tracking.tracker import StepMetrics, Tracker
from xcmodels.data.corpus import Corpus, Texts
from xcmodels.data.text import example, shown
from xcmodels.methods.presets import flat
from xcmodels.retrieval.retriever import Retriever

EXAMPLES_SHOWN = 3     # test queries in a run's summary, and as examples in the version's tags
ELSEWHERE = "in the home that checked the tables, unless it has checked others of that name since"


@dataclass(frozen=True)
class Finished:
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


class Session:
    """A run in MLflow: started with its settings, sent the result of each step, ended with its outcome."""

    def __init__(self, config: Any, pipeline: Pipeline, store: Store, say: Callable[[str], None]) -> None:
        self.config, self.pipeline, self.store, self.say = config, pipeline, store, say
        self.name = config.name or pipeline.data.name
        self.tracker = Tracker(store.home, config.mlflow or None)
        self.step_metrics: dict[str, StepMetrics] = {}
        self.finished = False

    def __enter__(self) -> "Session":
        pipeline = self.pipeline
        about = pipeline.about()
        self.tracker.start(
            pipeline.key, experiment=pipeline.data.name, name=f"{pipeline.method_name} · {pipeline.data.name}",
            params={"method": pipeline.method_name, "preset": pipeline.preset,
                    **({"texts with feedback": str(len(pipeline.feedback))} if pipeline.feedback else {}),
                    **{key: str(value) for key, value in about["settings"].items()}},
            config_yaml=yaml.safe_dump({key: about[key] for key in ("method", "preset", "settings")}, sort_keys=True),
            data={pipeline.data.name: {"path": pipeline.source, "digest": pipeline.data_digest}},
            tags={"xc.method": pipeline.method_name, "xc.data": pipeline.data.name, "xc.preset": pipeline.preset,
                  CHANGED: json.dumps({key: str(value) for key, value in about["changed"].items()}),
                  COMMAND: self.config.command, RUN_HOME: str(self.store.home), PROCESS: process_name(os.getpid())})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            interrupted = getattr(error, "exit_code", 1) == 130 or isinstance(error, KeyboardInterrupt)
            self.tracker.finish("KILLED" if interrupted else "FAILED", f"{error}\n\n    {self.config.command}")
        elif not self.finished:
            self.tracker.finish("SCHEDULED", f"trained, not evaluated\n\n    {self.config.command}")
        self.tracker.close()

    def check_owner(self) -> None:
        """Raise UsageError where the default model name belongs to another home with other data."""
        if not self.config.name:
            check_owner(self.tracker, self.name, self.pipeline.data_digest)

    def note(self, step: Step, done: StepResult) -> None:
        """Send a finished step to MLflow; what cannot be sent now is sent with the next step."""
        folder = self.store.open(done.artifact, whole=False)
        metrics = _read_json(folder / METRICS_FILE) or []
        self.step_metrics[step.name] = StepMetrics(
            step.name, done.artifact.digest, metrics, stage=step.name.partition(" ")[0]
            if step.kind == "checkpoint" else None, prefix=_PREFIXES.get(step.kind, ""),
            tables={"decile": table} if (table := _read_json(folder / "deciles.json")) else {},
            seconds=None if done.reused else done.seconds, group=_GROUPS.get(step.kind, "prepare"))
        self.tracker.sync(self.step_metrics.values())


_PREFIXES = {"retriever": "fusion", "mined": "mined"}
_GROUPS = {"states": "train", "checkpoint": "train", "mined": "refresh", "vectors": "refresh", "retriever": "retriever",
           "evaluation": "evaluate"}


def finish(session: Session, done: Mapping[str, Artifact], *, register_it: bool, rebuild: bool) -> Finished:
    """Register the retriever if `register_it`, write the report, and end the run in MLflow.

    rebuild: write the report even if it exists; a registered version always gets one, after a kill too.
    """
    store, pipeline, tracker = session.store, session.pipeline, session.tracker
    corpus, evaluation = Corpus(store.open(done["pack"])), store.open(done["evaluate"])
    metrics = _read_json(evaluation / METRICS_FILE)
    registered = _register(session, corpus, done, evaluation) if register_it else _on_record(session, done)
    facts = _facts(session, corpus, registered, done)
    outcome = verdict(facts) if registered.version else "evaluated, not registered"
    report = store.home / "reports" / f"{pipeline.key[:16]}.html"
    of = {"run": tracker.run_id, "model": session.name, "version": facts.version}
    unreported = registered.version and (not registered.reused or _reported(store, report) != of)
    if (rebuild or not report.exists() or unreported) and _report(session, corpus, done, facts, report):
        store.set_ref("reports", report.stem, of)
    if register_it and session.config.feedback == "use":    # the next training learns from all that was said since
        FeedbackJournal(store.home, session.name).end()
    if contracts := page_of(pipeline.data.name, done["check tables"], store):
        tracker.log_file(contracts, "contracts")
    session.finished = True
    tracker.finish("FINISHED", f"{outcome}\n\n    {session.config.command}")
    return Finished(tracker.run_id or "", session.name, facts.version, metrics, outcome, str(report),
                    str(contracts or ELSEWHERE), tracker.link() or tracker.address, tracker.close(),
                    _examples(store.open(done["build retriever"]), corpus), registered.champion, facts.promoted,
                    pipeline.about())


@dataclass(frozen=True)
class RegisteredDecision(PromotionDecision):
    """A registered version and what the gates decided; reused: the retriever was a version already."""

    version: str = ""    # "" where none holds the retriever, or MLflow does not tell
    reused: bool = False


UNREGISTERED = RegisteredDecision(False, "not registered")


def _register(session: Session, corpus: Corpus, done: Mapping[str, Artifact], evaluation: Path) -> RegisteredDecision:
    session.check_owner()
    tracker, pipeline, retriever = session.tracker, session.pipeline, done["build retriever"]
    score = Score(_read_json(evaluation / METRICS_FILE), _read_json(evaluation / "deciles.json"))
    found = EvaluationFiles.load(corpus, evaluation)
    card = model_card(
        f"{pipeline.method_name} · {corpus.name}", score, command=session.config.command,
        use=f"Tags short texts with the fitting ones of {corpus.n_labels:,} labels of {corpus.name}.",
        data={"training queries": corpus.n_queries, "labels": corpus.n_labels,
              "test queries": len(corpus.sides["test"]), "digest": pipeline.data_digest,
              **({"texts with feedback": len(pipeline.feedback)} if pipeline.feedback else {})},
        threshold=advice(found.answers, session.config.wanted_precision))
    registered = register(
        tracker, tracker.run_id or "", session.name, retriever_dir=session.store.open(retriever),
        retriever_digest=retriever.digest, score=score, test_digest=_test_digest(pipeline), card=card,
        facts={DATA: pipeline.data_digest, COMMIT: commit(), CONTRACTS: "contracts/index.html",
               EXAMPLES: json.dumps([example(*texts) for texts in _test_texts(corpus)])})
    note_server(session.store, tracker)
    decision = promote_by_gates(
        tracker, session.name, registered.version, ComparisonCorpus(session.store, done["pack"], session.say),
        edits=partial(locked_edits, session.store, tracker, session.name))
    return RegisteredDecision(**vars(decision), version=registered.version, reused=registered.reused)


def _on_record(session: Session, done: Mapping[str, Artifact]) -> RegisteredDecision:
    """Return the version that holds the retriever already, with what was decided, if there is one."""
    with suppress(ServerError):
        if found := decision_on_record(session.tracker, session.name, done["build retriever"].digest):
            return RegisteredDecision(**vars(found[1]), version=found[0], reused=True)
    return UNREGISTERED


def _facts(session: Session, corpus: Corpus, registered: RegisteredDecision,
           done: Mapping[str, Artifact]) -> ReportFacts:
    pipeline, store = session.pipeline, session.store
    is_champion = bool(registered.champion and registered.champion["version"] == registered.version)
    curves: dict[str, list[dict[str, float]]] = {}
    mined: dict[str, list[dict[str, float]]] = {}
    seconds: dict[str, float] = {}
    for step in pipeline.steps:
        if step.kind == "checkpoint":
            curves.setdefault(step.name.partition(" ")[0], []).extend(
                _read_json(store.open(done[step.name], whole=False) / METRICS_FILE))
        if step.kind == "mined":
            mined.setdefault(step.name.split(" ")[1], []).extend(
                _read_json(store.open(done[step.name], whole=False) / METRICS_FILE))
        seconds[step.name] = step.took(store) or 0.0
    return ReportFacts(
        title=f"{pipeline.method_name} · {pipeline.data.name}", run_id=session.tracker.run_id or "",
        version=registered.version or None, command=session.config.command,
        data={"name": corpus.name, "train": corpus.n_queries, "test": len(corpus.sides["test"]),
              "labels": corpus.n_labels, "digest": pipeline.data_digest},
        settings=flat(pipeline.settings), changed=pipeline.changed(), curves=curves, mined=mined,
        champion=None if is_champion else registered.champion, promoted=registered.promoted or is_champion,
        reigns=is_champion, reason=registered.reason, note=registered.note, became=registered.became, seconds=seconds,
        date=datetime.now(UTC).date().isoformat(),
        memory={step.name: peak.bytes for step in pipeline.steps if (peak := step.peak_memory(store))},
        gates=registered.gates, wanted_precision=session.config.wanted_precision,
        contract=_read_json(store.open(done["check tables"]) / "contract.json"))


def _feedback(session: Session, corpus: Corpus, done: Mapping[str, Artifact],
              facts: ReportFacts) -> FeedbackEffect | None:
    """Return what feedback changed against the champion before; None where there was no feedback."""
    if ADD_FEEDBACK not in done:
        return None
    before = None
    if facts.champion:
        with suppress(ValueError, ProjectError):    # it cannot be opened
            before = Retriever.load(resolve(session.tracker, f"{session.name}/{facts.champion['version']}").folder)
    after = Retriever.load(session.store.open(done["build retriever"]))
    return feedback_effect(session.store.open(done[ADD_FEEDBACK], whole=False), corpus, after, before)


def _reported(store: Store, page: Path) -> dict[str, Any] | None:
    """Return the run, model and version that the report on `page` is of; None where a kill left that open."""
    with suppress(DamagedArtifact):
        return store.get_ref("reports", page.stem)
    return None


def _report(session: Session, corpus: Corpus, done: Mapping[str, Artifact], facts: ReportFacts, page: Path) -> bool:
    """Write the report to `page` and, with its plots, to MLflow; return False, and say why, where that fails."""
    page.parent.mkdir(exist_ok=True)
    try:
        facts = replace(facts, feedback=_feedback(session, corpus, done, facts))
        report = ReportPage(corpus, session.store.open(done["evaluate"]), facts)
        remove(part := page.with_suffix(".part"))    # of a run that was killed as it wrote
        put_file(report.page().encode(), page, os.replace, part)
        session.tracker.log_file(page, "report")
        if facts.feedback:
            session.tracker.log_text(json.dumps(asdict(facts.feedback), indent=1), "feedback.json")
        for name, svg in report.plots().items():
            session.tracker.log_text(svg.decode(), f"plots/{name}.svg")
    except Exception as error:
        session.say(f"the report could not be built ({error}); build it again with: xc report")
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


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None
