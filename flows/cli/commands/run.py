"""`xc run`, and up to a step: `prepare`, `train`, `evaluate`, `register`, `report`."""

import json
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from data_contracts.errors import ContractError, ServerError, Stopped, UsageError
from flows.cli.config_file import GIVEN
from flows.cli.options import Budget, Json, checked_config, environment, home_flag, say
from flows.config import PrepareOptions, RunConfig, TrainingOptions, Until
from tasks.core.remote import without_passwords
from tasks.core.wording import one_line, plural

FEW = 100    # test texts: a metric of fewer has a standard error of 5 points and more


def run(*, options: RunConfig, budget: Budget = "", as_json: Json = False) -> None:
    """Do the whole job: prepare, train, evaluate, register; what has not changed since the last run is reused."""
    _finish(_flow("register", options, budget), options, as_json)


def prepare(*, options: PrepareOptions) -> None:
    """Read, check and pack a raw data set, and walk its graphs."""
    _flow("prepare", options)


def train(*, options: RunConfig) -> None:
    """Train up to a retriever."""
    _flow("train", options)


def evaluate(*, options: RunConfig, as_json: Json = False) -> None:
    """Measure the retriever on the test split, without registering it."""
    _finish(_flow("evaluate", options), options, as_json)


def register(*, options: RunConfig, as_json: Json = False) -> None:
    """Register the retriever as a new version; it becomes the champion where the gates hold."""
    _finish(_flow("register", options), options, as_json)


def report(*, options: RunConfig) -> None:
    """Build the report of a run again; its path goes to stdout."""
    if summary := _flow("report", options):
        print(summary.report)


def _flow(until: Until, options: TrainingOptions, budget: str = "") -> Any:
    """Run the flow as far as `until`; return its summary, None where nothing was evaluated here."""
    from flows.progress import interrupt
    from flows.rendezvous import rendezvous_of
    from tasks.core.shared_store import open_store

    for number in (signal.SIGINT, signal.SIGTERM):    # SIGTERM: of `timeout`, `kill` or a shutdown
        signal.signal(number, interrupt)
    if (rendezvous := rendezvous_of(options)) and not rendezvous.leads:
        _follow(rendezvous, options)
        return None
    config = checked_config(options, budget, _command())    # before Prefect's server is started, which takes seconds
    store = open_store(options.home, options.store)
    with store.run_lock():    # checks that no other run uses the home and that it can be written
        pass
    environment(options.home)
    from flows.preview import server_addresses
    from flows.services.definitions import ensure_prefect, lost_server_explained, mlflow_of
    from flows.services.environment import full_disk_explained
    from tasks.tracking.mlflow_client import without_sign_in

    # Prefect keeps what a flow is given, and shows it
    config.mlflow = without_sign_in(mlflow_of(options.home, config.mlflow))
    for name, address in server_addresses(options.home, config.mlflow).items():
        say(f"{name:<10} {address}")
    if not os.environ.get("PREFECT_API_URL"):    # else a new run seems to stand still
        say(f"{'':<10} Prefect's server starts, which takes 10 to 30 s")
    if config.mlflow and until != "prepare":
        _note_silence(config.mlflow)
    with _failure_named(options.home), full_disk_explained(options.home), lost_server_explained():
        temporary = ensure_prefect(options.home, ["flows.run"], tracked=until != "prepare" and not config.mlflow)
        from flows.prefect_state import without_heartbeats
        from flows.run import run as flow_run

        with without_heartbeats() if temporary else nullcontext():
            return flow_run(config, until)


def _note_silence(mlflow: str) -> None:
    """Say where an MLflow server does not answer: the run may have been meant for another."""
    from tasks.tracking.mlflow_client import probe

    try:
        probe(mlflow)
    except ServerError as error:
        say(f"warning: {error.what}; training goes on, and registering needs it: the same command resumes")


def _follow(rendezvous: Any, options: TrainingOptions) -> None:
    """Take part in the training of the run that leads at `rendezvous`, whose options are used."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")    # else a lost connection is told by a C++ stack
    environment(options.home)
    from flows.progress import Terminal
    from flows.rendezvous import processes_of
    from tasks.core.shared_store import SharedStore
    from tasks.core.step import Console
    from tasks.training.follower import follow

    terminal = Terminal()
    rounds = follow(rendezvous, SharedStore(options.home, options.store, terminal.line), processes_of(options),
                    Console(terminal.line, terminal.training))
    say(f"took part in {plural(len(rounds), 'round')} of training; the run led at {rendezvous} has ended")


@contextmanager
def _failure_named(home: Path) -> Iterator[None]:
    """Print in which step a run failed, the path of its log, and the command that resumes it.

    Where data breaks its contract, the same command fails again until the data is corrected; where an option is
    refused, it fails again whatever is done, and the error's hint names another.
    """
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        from flows.progress import Terminal

        if Terminal.under_way:
            log = home.absolute() / "logs" / "failed.log"
            with suppress(OSError):    # a full disk is reported anyway
                log.parent.mkdir(0o700, exist_ok=True)
                log.write_text(f"{datetime.now().astimezone().isoformat(' ', 'seconds')}  {_command()}\n"
                               f"{Terminal.under_way}\n\n{traceback.format_exc()}",
                               encoding="utf-8", errors="backslashreplace")
            say(f"{'failed':>12}  {Terminal.under_way}; its log: {log}")
            if not isinstance(error, UsageError):
                say(f"{'once mended' if isinstance(error, ContractError) else 'resumes by':>12}  {_command()}")
        raise


def _finish(summary: Any, options: RunConfig, as_json: bool) -> None:
    """Print how a run ended; with `as_json`, also as JSON on stdout. Nothing for a machine that only took part."""
    if summary is None:
        return
    _show(summary, options.home, options.mlflow)
    if as_json:
        print(json.dumps({"run_id": summary.run_id, "model": summary.model, "version": summary.version,
                          **summary.about, "metrics": summary.metrics}))


def _show(summary: Any, home: Path, mlflow: str = "") -> None:
    """Print at most 15 lines on a run: metrics, verdict, examples, addresses, the next command.

    The next command names the model, as the home may have others, and the MLflow server if one was named.
    """
    from tasks.evaluation.gates import FITTED, UNFITTED
    from xcmodels.metrics import SHOWN, name_of

    metrics = [f"{name_of(key)} {summary.metrics[key]:.2f}{_gain(summary, key)}" for key in SHOWN]
    lines = ["", "  ".join(metrics)]
    version = f"{summary.model} version {summary.version}: " if summary.version else ""
    lines += [f"{version}{summary.verdict}", ""]
    unfitted = summary.metrics.get(FITTED) == 0
    for example in summary.examples:
        labels = "; ".join(label["text"] if unfitted else f"{label['text']} ({100 * label['confidence']:.0f}%)"
                           for label in example["labels"])
        lines.append(f"  {one_line(example['text'], 40)} -> {one_line(labels, 110)}")
    lines += [f"warning: {UNFITTED}"] if unfitted else []
    if summary.metrics.get("points", FEW) < FEW:
        few = plural(round(summary.metrics["points"]), "test text")
        lines.append(f"warning: measured on {few}: chance has a large part in it")
    # Not `mlflow ui`, which lets every user of this machine change models, and run code as this one.
    shown = "" if summary.mlflow.startswith("http") else f"; xc up{home_flag(home)} shows it"
    lines += ["", f"report     {summary.report}", f"contracts  {summary.contracts}",
              f"MLflow     {summary.mlflow}{shown}"]
    if summary.unsent:
        lines.append(f"MLflow has not got: {', '.join(summary.unsent)}; the same command sends it")
    if summary.version:
        text = summary.examples[0]["text"][:60] if summary.examples else "a text"
        server = f" --mlflow {shlex.quote(without_passwords(mlflow))}" if mlflow else ""
        served = summary.model if summary.promoted else f"{summary.model}/{summary.version}"
        lines.append(f"next       xc predict --model {shlex.quote(served)}{home_flag(home)}{server} --k 3 "
                     f"{shlex.quote(text)}")
    print("\n".join(lines), file=sys.stderr)


def _gain(summary: Any, key: str) -> str:
    """Return a metric's difference from another champion's, " (+0.31)"; "" where there is none."""
    champion = summary.champion
    if champion is None or champion["version"] == summary.version or key not in champion["gains"]:
        return ""
    return f" ({champion['gains'][key]:+.2f})"


def _command() -> str:
    """Return the command to paste: as the user typed it, plus the options from the environment and xc.toml."""
    return without_passwords(" ".join(["xc", *map(shlex.quote, [*sys.argv[1:], *GIVEN.untyped])]))
