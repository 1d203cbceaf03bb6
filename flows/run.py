"""The Prefect flow `run` and its subflows: prepare, train and evaluate.

A step's result lives in HOME's object store under a key made of everything it depends on; a Prefect task looks there
first. So the store is the only cache, and its contents hold whatever happens to Prefect's database.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any, get_args

from prefect import artifacts, flow, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Completed

from data_contracts.errors import ContractError, ServerError, UsageError
from flows.config import RunConfig, Until
from flows.prefect_state import noted_until_it_ends, page_of_this_run, tag_this_run
from flows.preview import preview
from flows.progress import Terminal
from flows.rendezvous import processes_of, rendezvous_of
from tasks.core.dask_workers import Workers
from tasks.core.devices import gpus
from tasks.core.machines import lead
from tasks.core.memory import Peak, watched
from tasks.core.python_gc import collect_rarely
from tasks.core.shared_store import open_store
from tasks.core.step import Console, Step, StepResult, remake_inputs
from tasks.core.step import run as run_step
from tasks.core.store import Artifact, Store
from tasks.core.wording import duration
from tasks.data.contract import keep_frequencies
from tasks.data.feedback.decisions import NO_FEEDBACK
from tasks.data.feedback.journal import FeedbackJournal
from tasks.data.fetch import fetched
from tasks.data.sources import describe
from tasks.home_gc import remove_checkpoints
from tasks.plan import Pipeline, feedback_on, pipeline
from tasks.run_end import RunSummary, end_feedback, finish, on_record
from tasks.tracked_run import TrackedRun
from xcmodels.metrics import FAMILIES, name_of

UNTIL = get_args(Until)
After = Callable[[Step, StepResult], None]    # called with each step and its result
MESSAGE = 500    # characters of a step's output that its state shows
RETRIES = 2
RETRIED = ("read", "check tables", "tokenise", "walk graphs", "pack")    # a lost worker or file system may fail them


def retry_helps(task: Any, task_run: Any, state: Any) -> bool:
    """Return whether a failed step may succeed when tried again: system errors, never errors in the data."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, OSError)    # of the network too


@task(cache_policy=NO_CACHE, persist_result=False, retry_delay_seconds=2, retry_condition_fn=retry_helps)
def step_task(step: Step, done: dict[str, Artifact], store: Store, workers: Workers, terminal: Terminal, *,
              by_worker: bool) -> Any:
    """Return a step's result from the store, else compute it now; `by_worker`: on a Dask worker."""
    logger, lines = get_run_logger(), list[str]()

    def say(line: str) -> None:
        logger.info(line)
        lines.append(line)
        terminal.line(f"    {line}")

    result = run_step(step, done, store, workers, Console(say, terminal.training), by_worker=by_worker)
    terminal.step(step.name, result.reused, result.seconds)
    if result.reused:
        return Completed(name="Reused", message="nothing it depends on has changed", data=result)
    return Completed(message="; ".join([f"made in {result.seconds:.1f} s", *lines])[:MESSAGE], data=result)


class Runner:
    """Runs steps as Prefect tasks, in their order, and keeps their results.

    overlap: a worker begins a refresh as soon as its inputs exist, while training goes on; the round that trains on
    what it mines waits for it. Only a method that mines with an older model gains by that (ASTRA's `ahead`).
    """

    def __init__(self, laid_out: Pipeline, store: Store, workers: Workers, terminal: Terminal, total: int, *,
                 overlap: bool = False, memory: Peak | None = None) -> None:
        self.pipeline, self.store, self.workers, self.terminal = laid_out, store, workers, terminal
        self.overlap, self.memory = overlap, memory or Peak()
        self.done: dict[str, Artifact] = {}
        self.results: dict[str, StepResult] = {}
        self.total = total
        self.bar: Any = artifacts.create_progress_artifact(0.0, key="progress", description=f"steps done, of {total}")

    @property
    def title(self) -> str:
        """The start of its flow and task runs' names: "ngame · wordnet"."""
        return f"{self.pipeline.method_name} · {self.pipeline.data.name}"

    def __call__(self, steps: Sequence[Step], after: After = lambda step, result: None) -> None:
        """Run `steps` in the present flow, and tag it; a step can use the artifacts of all steps before it."""
        tag_this_run(self.pipeline)
        started: dict[str, PrefectFuture[Any]] = {}
        try:
            for place, step in enumerate(steps):
                for later in steps[place + 1:] if self.overlap else ():
                    if later.can_overlap and later.name not in started and self.done.keys() >= {*later.needs.values()}:
                        self._remake_inputs(later)
                        started[later.name] = self._task(later).submit(*self._arguments(later), by_worker=True)
                self._remake_inputs(step)
                self.terminal.begin(step.name)
                if step.name in started:
                    started[step.name].wait()
                    result = started.pop(step.name).state.result()
                else:
                    result = self._run(step)
                self.done[step.name], self.results[step.name] = result.artifact, result
                self._note_memory(step, result)
                artifacts.update_progress_artifact(self.bar, 100.0 * len(self.done) / self.total)
                after(step, result)
        except BaseException:
            if started:
                self.workers.close()    # nobody will use their results
            raise

    def _note_memory(self, step: Step, result: StepResult) -> None:
        """Store the peak of memory since the step before as this step's, if it ran."""
        peak = self.memory.take()
        if not result.reused:
            step.note_memory(self.store, peak)

    def note_end(self) -> None:
        """Count what registration and the report held to the last step."""
        step, peak = self.pipeline.evaluate, self.memory.take()
        if (before := step.peak_memory(self.store)) and peak.bytes > before.bytes:
            step.note_memory(self.store, peak)

    def _remake_inputs(self, step: Step) -> None:
        """Make a step's inputs again where files of them were removed, unless the step's own result is stored."""
        def run_now(incomplete: Step) -> Artifact:
            self.terminal.begin(incomplete.name)
            return self._run(incomplete).artifact

        remake_inputs(step, {each.name: each for each in self.pipeline.steps}, self.done, self.store, run_now)

    def _task(self, step: Step) -> Any:
        """Return a step as a Prefect task with its name and retries."""
        return step_task.with_options(name=step.name, task_run_name=f"{self.title} · {step.name}",
                                      retries=RETRIES if step.can_overlap or step.name in RETRIED else 0)

    def _run(self, step: Step) -> StepResult:
        """Run a step now, and wait for it."""
        result: StepResult = self._task(step)(*self._arguments(step), by_worker=False, return_state=True).result()
        return result

    def _arguments(self, step: Step) -> tuple[Any, ...]:
        return step, dict(self.done), self.store, self.workers, self.terminal


@flow(name="preparation", flow_run_name="{title} · prepare", validate_parameters=False)
def prepare(title: str, runner: Runner) -> None:
    """Raw files to a corpus: read, add feedback, check, tokenise, walk graphs, pack. title: of the flow run's name."""
    runner(runner.pipeline.prepare)
    keep_frequencies(runner.pipeline.data.name, runner.done["check tables"], runner.store)


@flow(name="training", flow_run_name="{title} · train", validate_parameters=False)
def train(title: str, runner: Runner, after: After) -> None:
    """A corpus to a retriever: rounds of training, each after what is mined for it."""
    runner(runner.pipeline.train, after)


@flow(name="evaluation", flow_run_name="{title} · evaluate", validate_parameters=False)
def evaluate(title: str, runner: Runner, after: After) -> None:
    """A retriever to its metrics on the test split."""
    runner([runner.pipeline.evaluate], after)


@flow(name="run", flow_run_name="{config.method} · {config.subject}", log_prints=False)
def run(config: RunConfig, until: Until = "register") -> RunSummary | None:
    """The whole job, or as much of it as `until` names; "report" is "evaluate", with the report written anew."""
    return run_steps(config, until)


def run_steps(config: RunConfig, until: Until = "register", patience: float = 0.0) -> RunSummary | None:
    """Run the steps up to `until` inside the flow that calls it.

    patience: seconds to wait for another run of the home to end; UsageError where it has not by then.
    """
    with open_run(config, until, patience) as runner:
        try:
            prepare(runner.title, runner)
        except ContractError:    # nothing is trained that could be resumed: the next training reads all feedback
            if runner.pipeline.feedback and until != "prepare":
                FeedbackJournal(config.home, config.name or runner.pipeline.data.name).end()
            raise
        if until == "prepare":
            return None
        with TrackedRun(config, runner.pipeline, runner.store, runner.terminal.line) as tracked:
            if until == "register":
                with suppress(ServerError):    # training works without MLflow, and registering tries again
                    tracked.check_owner()
            for step, result in zip(runner.pipeline.prepare, runner.results.values(), strict=True):
                tracked.note(step, result)
            train(runner.title, runner, tracked.note)
            remove_checkpoints(runner.store, runner.pipeline.train, runner.done)
            if until == "train":
                end_feedback(tracked, on_record(tracked, runner.done))
                return None
            evaluate(runner.title, runner, tracked.note)
            new = any(not result.reused for result in runner.results.values())
            summary = finish(tracked, runner.done, register_it=until == "register", rebuild=new or until == "report")
            runner.note_end()
        show(summary)
        return summary


@contextmanager
def open_run(config: RunConfig, until: Until, patience: float) -> Iterator[Runner]:
    """Lock the home, start the workers, plan the run and print the plan; yield the runner of its steps."""
    collect_rarely()    # also where a Prefect worker has started this process
    terminal = Terminal()
    store = open_store(config.home, config.store, terminal.line)
    rendezvous = rendezvous_of(config)
    with (exclusive(store, patience, terminal),
          lead(rendezvous, terminal.line) if rendezvous else nullcontext() as machines,
          Workers(config.dask or None, config.workers, processes=processes_of(config),
                  machines=machines) as workers,
          watched() as memory):
        store.sweep()
        data = fetched(config.data, store.home, terminal.line)
        feedback = feedback_on(config.home, config.name or describe(data).name, config.recipe,
                               begin=until != "prepare") if config.feedback == "use" else NO_FEEDBACK
        laid_out = pipeline(data, config.method, config.preset, config.settings, feedback, source=config.data)
        tag_this_run(laid_out)
        planned = preview(laid_out, store, UNTIL.index(until))
        for line in planned.lines():
            terminal.line(line)
        overlap = config.overlap == "always" or (config.overlap == "auto" and gpus() > 0)
        yield Runner(laid_out, store, workers, terminal, len(planned.steps), overlap=overlap, memory=memory)


@contextmanager
def exclusive(store: Store, patience: float, terminal: Terminal) -> Iterator[None]:
    """Hold the home's run lock while the block lasts; where another run has it, say which and wait `patience` s."""
    with ExitStack() as lock:
        try:
            lock.enter_context(store.run_lock(page=page_of_this_run()))
        except UsageError as error:
            if not patience:
                raise
            line = f"{error.what}; waits for it up to {duration(patience)}"
            get_run_logger().info(line)
            terminal.line(line)
            lock.enter_context(store.run_lock(patience, page=page_of_this_run()))
        with noted_until_it_ends(store.home):
            yield


def show(summary: RunSummary) -> None:
    """Write the outcome to Prefect's log and UI: metrics, gains over the champion, contracts, the report's path."""
    version = f"{summary.model} version {summary.version}" if summary.version else summary.model
    get_run_logger().info("%s: %s", version, summary.verdict)
    champion = summary.champion or {"version": "", "gains": {}}
    rows = [{"metric": name_of(name), "percent": round(value, 2),
             **({f"over champion v{champion['version']}": round(champion["gains"][name], 2)}
                if name in champion["gains"] else {})}
            for name, value in summary.metrics.items()
            if name.partition("/")[0] in FAMILIES and name.count("/") == 1]
    artifacts.create_table_artifact(rows, key="metrics", description=f"{summary.model}: {summary.verdict}")
    artifacts.create_markdown_artifact(f"The data keeps its contract, rule by rule: `{summary.contracts}`",
                                       key="contracts", description="What was checked of the data")
    artifacts.create_markdown_artifact(
        f"**{summary.model}**, version {summary.version or 'not registered'}: {summary.verdict}\n\n"
        f"- report: `{summary.report}`\n- MLflow: {summary.mlflow}\n", key="report",
        description="What the run made and where it is")
