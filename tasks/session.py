"""How a run ends: what MLflow is told on the way, the registry, the report, and the summary for the user."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from tasks.collection import METRICS
from tasks.core.code_digest import commit
from tasks.core.step import Done, Step, slug
from tasks.core.store import Artifact, Store, digest_of
from tasks.evaluation.gates import Score
from tasks.evaluation.report import Report, ReportFacts, verdict
from tasks.plan import Pipeline
from tasks.registry.comparison import Ground
from tasks.registry.label_edits import with_edits
from tasks.registry.model_card import model_card
from tasks.registry.ownership import check_owner
from tasks.registry.promotion import Decision, contest
from tasks.registry.register import register
from tasks.registry.tags import COMMIT, CONTRACTS, DATA, EXAMPLES
from tasks.runs import CHANGED, COMMAND, HOME, PROCESS, process_name
from tasks.tracking.tracker import Entry, Tracker
from xcmodels.data.corpus import Corpus, Texts
from xcmodels.methods.presets import flat
from xcmodels.retrieval.retriever import Retriever

SHOWN = 3        # test queries whose labels end a run's summary, and that the version offers to try
EXAMPLE = 200    # characters of one that the version keeps


@dataclass(frozen=True)
class Finished:
    """A run's summary."""

    run_id: str
    model: str
    version: str | None
    metrics: dict[str, float]
    verdict: str
    promoted: bool
    report: str
    contracts: str
    mlflow: str
    unsent: list[str] = field(default_factory=list)       # what MLflow could not be told
    examples: list[dict[str, Any]] = field(default_factory=list)
    champion: dict[str, Any] | None = None                # of the one there was before, as `Decision` has it
    about: dict[str, Any] = field(default_factory=dict)   # as `Pipeline.about` says it

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain data."""
        return asdict(self)


class Session:
    """A run as MLflow sees it: started with its settings, told of each step, ended with its outcome."""

    def __init__(self, config: Any, pipeline: Pipeline, store: Store, say: Callable[[str], None]) -> None:
        self.config, self.pipeline, self.store, self.say = config, pipeline, store, say
        self.name = config.name or pipeline.data.name
        self.tracker = Tracker(store.home, config.mlflow or None)
        self.entries: dict[str, Entry] = {}
        self.over = False

    def __enter__(self) -> "Session":
        pipeline = self.pipeline
        about = pipeline.about()
        self.tracker.start(
            pipeline.key, experiment=pipeline.data.name, name=f"{pipeline.method_name} · {pipeline.data.name}",
            params={"method": pipeline.method_name, "preset": pipeline.preset,
                    **{key: str(value) for key, value in about["settings"].items()}},
            config_yaml=yaml.safe_dump({key: about[key] for key in ("method", "preset", "settings")}, sort_keys=True),
            data={pipeline.data.name: {"path": str(pipeline.data.folder), "digest": pipeline.data_digest}},
            tags={"xc.method": pipeline.method_name, "xc.data": pipeline.data.name, "xc.preset": pipeline.preset,
                  CHANGED: json.dumps({key: str(value) for key, value in about["changed"].items()}),
                  COMMAND: self.config.command, HOME: str(self.store.home), PROCESS: process_name(os.getpid())})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            stopped = getattr(error, "exit_code", 1) == 130 or isinstance(error, KeyboardInterrupt)
            self.tracker.finish("KILLED" if stopped else "FAILED", f"{error}\n\n    {self.config.command}")
        elif not self.over:
            self.tracker.finish("SCHEDULED", f"trained, not evaluated\n\n    {self.config.command}")
        self.tracker.close()

    def check_owner(self) -> None:
        """Raise UsageError where the model, not named by the user, is another home's and of other data."""
        if not self.config.name:
            check_owner(self.tracker, self.name, self.pipeline.data_digest)

    def note(self, step: Step, done: Done) -> None:
        """Tell MLflow of a step that is done; what it cannot be told now is told with the next."""
        folder = self.store.open(done.artifact, whole=False)
        measured = _read(folder / METRICS) or []
        self.entries[step.name] = Entry(
            step.name, done.artifact.digest, measured, stage=step.name.partition(" ")[0]
            if step.kind == "checkpoint" else None, prefix=_PREFIXES.get(step.kind, ""),
            tables={"decile": table} if (table := _read(folder / "deciles.json")) else {},
            seconds=None if done.reused else done.seconds, group=_GROUPS.get(step.kind, "prepare"))
        self.tracker.sync(self.entries.values())


_PREFIXES = {"retriever": "fusion", "mined": "mined"}
_GROUPS = {"checkpoint": "train", "mined": "refresh", "vectors": "refresh", "retriever": "retriever",
           "evaluation": "evaluate"}


def finish(session: Session, done: Mapping[str, Artifact], *, register_it: bool, rebuild: bool) -> Finished:
    """Register the retriever if asked to, write the report, and end the run in MLflow.

    rebuild: write the report although there is one; a newly registered version has it written anyway.
    """
    store, pipeline, tracker = session.store, session.pipeline, session.tracker
    corpus, evaluation = Corpus(store.open(done["pack"])), store.open(done["evaluate"])
    measured = _read(evaluation / METRICS)
    kept = _registered(session, corpus, done, evaluation) if register_it else None
    facts = _facts(session, corpus, kept, done, datetime.now(UTC).date().isoformat())
    said = verdict(facts) if kept else "evaluated, not registered"
    report = store.home / "reports" / f"{pipeline.key[:16]}.html"
    if rebuild or not report.exists() or (kept and not kept.reused):
        _report(session, corpus, evaluation, facts, report)
    contracts = store.home / "contracts" / slug(pipeline.data.name) / "index.html"
    tracker.log_file(contracts, "contracts")
    session.over = True
    tracker.finish("FINISHED", f"{said}\n\n    {session.config.command}")
    return Finished(tracker.run_id or "", session.name, kept.version if kept else None, measured, said,
                    bool(kept and kept.promoted), str(report), str(contracts),
                    tracker.link() or f"mlflow ui --backend-store-uri {tracker.address}", tracker.close(),
                    _examples(store.open(done["build retriever"]), corpus), kept.champion if kept else None,
                    pipeline.about())


@dataclass(frozen=True)
class Kept(Decision):
    """A registered version and what became of it at the gates; reused: the retriever was a version already."""

    version: str = ""
    reused: bool = False


def _registered(session: Session, corpus: Corpus, done: Mapping[str, Artifact], evaluation: Path) -> Kept:
    """Make the retriever a version, and the champion where the gates hold."""
    session.check_owner()
    tracker, pipeline, retriever = session.tracker, session.pipeline, done["build retriever"]
    made = register(
        tracker, tracker.run_id or "", session.name, retriever_dir=session.store.open(retriever),
        retriever_digest=retriever.digest,
        score=Score(_read(evaluation / METRICS), _read(evaluation / "deciles.json")),
        test_digest=_test_digest(pipeline), card=_card(session, corpus, evaluation),
        facts={DATA: pipeline.data_digest, COMMIT: commit(), CONTRACTS: "contracts/index.html",
               EXAMPLES: json.dumps([title[:EXAMPLE] for title, _ in _test_texts(corpus)])})
    decision = contest(tracker, session.name, made.version, Ground(session.store, done["pack"], session.say),
                       edited=lambda: with_edits(session.store, tracker, session.name, made.version))
    return Kept(**vars(decision), version=made.version, reused=made.reused)


def _facts(session: Session, corpus: Corpus, kept: Kept | None, done: Mapping[str, Artifact],
           date: str) -> ReportFacts:
    pipeline, store = session.pipeline, session.store
    reigns = kept is not None and kept.champion is not None and kept.champion["version"] == kept.version
    curves: dict[str, list[dict[str, float]]] = {}
    mined: dict[str, list[dict[str, float]]] = {}
    seconds: dict[str, float] = {}
    for step in pipeline.steps:
        if step.kind == "checkpoint":
            curves.setdefault(step.name.partition(" ")[0], []).extend(
                _read(store.open(done[step.name], whole=False) / METRICS))
        if step.kind == "mined":
            mined.setdefault(step.name.split(" ")[1], []).extend(_read(store.open(done[step.name]) / METRICS))
        seconds[step.name] = step.took(store) or 0.0
    return ReportFacts(
        title=f"{pipeline.method_name} · {pipeline.data.name}", run_id=session.tracker.run_id or "",
        version=kept.version if kept else None, command=session.config.command,
        data={"name": corpus.name, "train": corpus.n_queries, "test": len(corpus.sides["test"]),
              "labels": corpus.n_labels, "digest": pipeline.data_digest},
        settings=flat(pipeline.settings), changed=pipeline.changed(), curves=curves, mined=mined,
        champion=kept.champion if kept and not reigns else None,
        promoted=kept is not None and (kept.promoted or reigns), reigns=reigns,
        reason=kept.reason if kept else "not registered", note=kept.note if kept else "",
        seconds=seconds, date=date, gates=kept.gates if kept else (),
        contract=_read(store.open(done["check tables"]) / "contract.json"))


def _report(session: Session, corpus: Corpus, evaluation: Path, facts: ReportFacts, page: Path) -> None:
    """Write the report to `page` and, with its plots, to MLflow; a report that fails does not fail the run."""
    page.parent.mkdir(exist_ok=True)
    try:
        report = Report(corpus, evaluation, facts)
        page.write_text(report.page(), encoding="utf-8")
        session.tracker.log_file(page, "report")
        for name, drawing in report.plots().items():
            session.tracker.log_text(drawing.decode(), f"plots/{name}.svg")
    except Exception as error:
        session.say(f"the report could not be built ({error}); build it again with: xc report")


def _card(session: Session, corpus: Corpus, evaluation: Path) -> str:
    return model_card(
        f"{session.pipeline.method_name} · {corpus.name}",
        use=f"Tags short texts with the fitting ones of {corpus.n_labels:,} labels of {corpus.name}.",
        data={"training queries": corpus.n_queries, "labels": corpus.n_labels,
              "test queries": len(corpus.sides["test"]), "digest": session.pipeline.data_digest},
        metrics=_read(evaluation / METRICS), deciles=_read(evaluation / "deciles.json"),
        command=session.config.command)


def _test_digest(pipeline: Pipeline) -> str:
    """Return the digest of what the metrics are measured on: the test queries, the labels and the filters."""
    wanted = ("queries.test", "labels", "positives.test", "filters.test")
    files = pipeline.prepare[0].settings["files"]
    return digest_of({table: files[path.name] for table, path in pipeline.data.files.items() if table in wanted})


def _examples(folder: Path, corpus: Corpus) -> list[dict[str, Any]]:
    """Return the labels of a few test queries."""
    texts = _test_texts(corpus)
    answers = Retriever.load(folder).predict([title for title, _ in texts], 3, [content for _, content in texts])
    return [{"text": title, "labels": [{"text": label.text, "score": label.score} for label in labels]}
            for (title, _), labels in zip(texts, answers, strict=True)]


def _test_texts(corpus: Corpus) -> list[tuple[str, str]]:
    """Return title and content of a few test queries, evenly spread over the split."""
    n = len(corpus.sides["test"])
    titles, contents = (Texts.load(corpus.folder, f"test.{part}") for part in ("title", "content"))
    return [(titles[row], contents[row]) for row in (n * part // SHOWN for part in range(min(SHOWN, n)))]


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None
