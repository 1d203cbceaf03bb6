"""The command line, `xc`.

stdout holds data only; everything said to a person goes to stderr. Heavy libraries are imported inside the commands,
so that help is instant.

Exit codes: 0 done, 1 run failed, 2 usage, 3 data contract, 4 gate refused, 5 server or address, 130 interrupted.
"""

import json
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from data_contracts.errors import ProjectError, UsageError

app = App(name="xc", help="Tag short texts with the few right labels out of very many.", version_flags=["--version"],
          help_format="plaintext", default_parameter=Parameter(negative=()))
data_app = App(name="data", help="Write a data set in the raw format that `xc run` reads.")
app.command(data_app)

Home = Annotated[Path, Parameter(env_var="XC_HOME", help="Folder for all state.")]
Mlflow = Annotated[str, Parameter(env_var="XC_MLFLOW", help="URI of an MLflow server; sqlite in the home by default.")]
Json = Annotated[bool, Parameter(name="--json", help="End with one line of JSON on stdout.")]
HOME = Path(".xc")


@Parameter(name="*")
@dataclass
class Job:
    """What to do on which data: the options that every step of a run has."""

    data: Annotated[Path, Parameter(help="Folder of the raw data set.")]
    method: Annotated[str, Parameter(help="Method to train.")] = "ngame"
    preset: Annotated[str, Parameter(help="Named settings; see: xc presets.")] = "cpu"
    settings: Annotated[list[str], Parameter(name="--set", help="A setting to change in the preset, KEY=VALUE; "
                                                                 "repeatable.")] = field(default_factory=list)
    home: Home = HOME
    dask: Annotated[str, Parameter(env_var="XC_DASK", help="Address of a Dask scheduler; embedded workers by "
                                                           "default.")] = ""
    workers: Annotated[int, Parameter(help="Embedded Dask workers.")] = 2


@Parameter(name="*")
@dataclass
class Tracked:
    """Where a run is tracked, and as what."""

    mlflow: Mlflow = ""
    name: Annotated[str, Parameter(help="Name of the registered model; the data set's name by default.")] = ""


TRACKED = Tracked()


@data_app.command
def wordnet(folder: Path, /,
            source: Annotated[Path | None, Parameter(help="A WordNet database at hand.")] = None) -> None:
    """Write the WordNet data set to FOLDER: synsets to tag with the synsets they point to."""
    from tasks.sources.wordnet import write_wordnet

    _tell_counts(folder, write_wordnet(folder, source))


@data_app.command(name="import")
def import_(file: Path, folder: Path, /, *, text: Annotated[str, Parameter(help="Column of the texts.")],
            labels: Annotated[str, Parameter(help="Column of the label names.")],
            content: Annotated[str | None, Parameter(help="Column of longer texts, if any.")] = None,
            uid: Annotated[str | None, Parameter(help="Column of ids, if any.")] = None,
            split: Annotated[str | None, Parameter(help="Column that says train or test, if any.")] = None,
            separator: Annotated[str | None, Parameter(help="What separates label names; guessed by default.")] = None,
            test: Annotated[float, Parameter(help="Share of rows to test on, where no column says.")] = 0.2) -> None:
    """Write the data set that FILE holds to FOLDER: a CSV, TSV, JSONL or Parquet of texts and label names."""
    from tasks.sources.importing import import_file

    _tell_counts(folder, import_file(file, folder, text=text, labels=labels, content=content, uid=uid, split=split,
                                     separator=separator, test_fraction=test))


@app.command
def run(*, job: Job, tracked: Tracked = TRACKED, as_json: Json = False) -> None:
    """Do the whole job: prepare, train, evaluate, register; what has not changed since the last run is reused."""
    _finish(_flow("register", job, tracked), job.home, as_json)


@app.command
def prepare(*, job: Job) -> None:
    """Read, check and pack a raw data set, and walk its graphs."""
    _flow("prepare", job, TRACKED)


@app.command
def train(*, job: Job, tracked: Tracked = TRACKED) -> None:
    """Train up to a retriever."""
    _flow("train", job, tracked)


@app.command
def evaluate(*, job: Job, tracked: Tracked = TRACKED, as_json: Json = False) -> None:
    """Measure the retriever on the test split, without registering it."""
    _finish(_flow("evaluate", job, tracked), job.home, as_json)


@app.command
def register(*, job: Job, tracked: Tracked = TRACKED, as_json: Json = False) -> None:
    """Register the retriever as a new version; it becomes the champion if it beats the present one."""
    _finish(_flow("register", job, tracked), job.home, as_json)


@app.command
def report(*, job: Job, tracked: Tracked = TRACKED) -> None:
    """Build the report of a run again; its path goes to stdout."""
    print(_flow("report", job, tracked).report)


@app.command
def predict(*texts: str,
            source: Annotated[str, Parameter(name="--input", help="File of texts or XC JSON lines; - is stdin.")] = "",
            k: Annotated[int, Parameter(help="Labels a text.")] = 10,
            model: Annotated[str, Parameter(help="NAME@alias, NAME/version or NAME; the only model by default.")] = "",
            home: Home = HOME, mlflow: Mlflow = "") -> None:
    """Tag texts: one JSON object a line, in the order of the texts."""
    from flows.predict import open_retriever, predict_file, predict_texts

    _environment(home)
    if bool(texts) == bool(source):
        raise UsageError("give either texts or --input", hint="xc predict 'a large wild cat'")
    if k < 1:
        raise UsageError(f"--k must be at least 1, got {k}")
    retriever = open_retriever(model, home, mlflow)
    if texts:
        predict_texts(retriever, texts, k)
    else:
        predict_file(retriever, source, k)


@app.command
def presets(*, as_json: Json = False) -> None:
    """List the presets of each method; with --json, every setting of each."""
    from xcmodels.presets import PRESETS, flat

    if as_json:
        print(json.dumps({method: {name: {"about": each.about, "settings": flat(each.settings())}
                                   for name, each in named.items()} for method, named in PRESETS.items()}, indent=1))
        return
    rows = [(method, name, each.about) for method, named in PRESETS.items() for name, each in named.items()]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    for method, name, about in rows:
        print(f"{method:<{first}} {name:<{second}} {about}")


def _flow(until: str, job: Job, tracked: Tracked) -> Any:
    """Run the flow as far as `until`; -> its summary, None where nothing was evaluated."""
    from tasks.artifacts import Store
    from tasks.plan import settle

    # What cannot be meant is refused before Prefect's server is started, which takes seconds.
    settings = _settings(job.settings)
    settle(job.data, job.method, job.preset, settings)
    Store(job.home)
    _environment(job.home)
    from flows.config import RunConfig
    from flows.environment import full_disk_explained
    from flows.run import run as flow_run

    with full_disk_explained(job.home):
        return flow_run(RunConfig.model_validate({**vars(job), **vars(tracked), "settings": settings,
                                                  "command": _command()}), until)


def _finish(finished: Any, home: Path, as_json: bool) -> None:
    """Say how a run ended, and as JSON on stdout if asked to."""
    _summary(finished, home)
    if as_json:
        print(json.dumps({"run_id": finished.run_id, "model": finished.model, "version": finished.version,
                          "metrics": finished.metrics}))


def _summary(finished: Any, home: Path) -> None:
    """End a run with at most 15 lines: metrics, verdict, examples, where to look, what to do next."""
    keys = ("P/1", "P/5", "PSP/1", "PSP/5", "nDCG/5", "recall/100")
    lines = ["", "  ".join(f"{key.replace('/', '@')} {finished.metrics[key]:.2f}" for key in keys)]
    version = f"{finished.model} version {finished.version}: " if finished.version else ""
    lines += [f"{version}{finished.verdict}", ""]
    for example in finished.examples:
        labels = "; ".join(f"{label['text']} ({label['score']:.2f})" for label in example["labels"])
        lines.append(f"  {_short(example['text'], 40)} -> {_short(labels, 110)}")
    lines += ["", f"report     {finished.report}", f"contracts  {finished.contracts}", f"MLflow     {finished.mlflow}"]
    if finished.unsent:
        lines.append(f"MLflow has not got: {', '.join(finished.unsent)}; the same command sends it")
    if finished.version:
        home_flag = "" if home == HOME else f" --home {home}"
        text = finished.examples[0]["text"][:60] if finished.examples else "a text"
        lines.append(f"next       xc predict{home_flag} --k 3 {shlex.quote(text)}")
    print("\n".join(lines), file=sys.stderr)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit - 1] + "…"


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    out = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark:
            raise UsageError(f"--set takes KEY=VALUE, got {pair!r}", hint="--set m1.epochs=5")
        out[key] = value
    return out


def _command() -> str:
    """Return the command as the user typed it, to paste."""
    return " ".join(["xc", *map(shlex.quote, sys.argv[1:])])


def _environment(home: Path) -> None:
    from flows.environment import set_up

    set_up(home)


def _tell_counts(folder: Path, counts: dict[str, Any]) -> None:
    for name, value in counts.items():
        print(f"{name:<24} {value:,}" if isinstance(value, int) else f"{name:<24} {value}", file=sys.stderr)
    print(f"next: xc run --data {folder}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `xc`; ends the process with the exit code that the outcome has."""
    # A shell without job control starts background commands with SIGINT ignored; `kill -INT` should stop those too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or bool(os.environ.get("XC_DEBUG"))
    try:
        app([word for word in given if word != "--debug"], exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        _fail(str(error).strip(), "xc --help", 2)
    except BrokenPipeError:
        # The reader has gone (`| head`); Python would complain at exit that it cannot flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        _fail("interrupted", "the same command resumes", 130)
    except ProjectError as error:
        if debug:
            traceback.print_exc()
        text, _, hint = str(error).partition("\nhint: ")
        _fail(text, hint, error.exit_code)
    except Exception as error:
        if debug:
            raise
        _fail(f"unexpected {type(error).__name__}: {error}", "the same command with --debug shows where", 1)


def _fail(text: str, hint: str, code: int) -> None:
    """End with an error of at most 6 lines."""
    lines = [line for line in text.splitlines() if line.strip()][:5]
    print("\n".join([f"error: {lines[0] if lines else 'failed'}", *lines[1:], *([f"hint: {hint}"] if hint else [])]),
          file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
