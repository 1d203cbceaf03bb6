"""The command line `xc`: its commands, its error messages and its exit codes.

stdout holds data only; messages for people go to stderr.

Exit codes: 0 done, 1 run failed, 2 usage, 3 data contract, 4 gate refused, 5 server or address, 130 interrupted.
"""

import atexit
import gc as collector
import io
import os
import select
import shutil
import sys
import tomllib
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TextIO

from cyclopts import App, CycloptsError, Parameter

from data_contracts.errors import ProjectError
from data_contracts.verdict import escape_text
from flows.cli.commands import registry, run, stack
from flows.cli.commands.data import data
from flows.cli.commands.deploy import deploy
from flows.cli.commands.export import export
from flows.cli.commands.feedback import feedback
from flows.cli.commands.gc import gc
from flows.cli.commands.labels import labels
from flows.cli.commands.plan import plan
from flows.cli.commands.predict import predict
from flows.cli.commands.presets import presets
from flows.cli.commands.runs import runs
from flows.cli.commands.serve import serve
from flows.cli.commands.service import service
from flows.cli.completion import script
from flows.cli.config_file import GIVEN
from flows.cli.plain_help import PlainHelp
from flows.cli.usage import usage_error
from flows.services.environment import bypass_proxies
from tasks.core.files import NO_SPACE, nearest_existing
from tasks.core.python_gc import collect_rarely


def version() -> str:
    """Return the installed version; in a checkout that is not installed, the one in pyproject.toml."""
    try:
        return metadata.version("xcflow")
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[2] / "pyproject.toml"
        return str(tomllib.loads(project.read_text())["project"]["version"])


def shown_default(value: Any) -> str | None:
    """Return how help shows a default; None for none, an empty one, a switch that is off, and 0: no number given."""
    return None if value is None or value in (0, "", [], ()) else str(value)


RESUMABLE = ("run", "prepare", "train", "evaluate", "register", "report")    # they go on where they were stopped

app = App(name="xc", help="Tag short texts with the few right labels out of very many.\n\n"
          "With --debug, any command shows where an error comes from.", version=version,
          version_flags=["--version"], suppress_keyboard_interrupt=False,
          help_format="plaintext", config=GIVEN, default_parameter=Parameter(negative=(), show_default=shown_default))
command: Any
for command in (data, labels, feedback, export, service, plan, presets, runs, gc, predict, deploy,
                run.run, run.prepare, run.train, run.evaluate, run.register, run.report,
                registry.models, registry.promote, registry.rollback, registry.fetch,
                serve, stack.up, stack.down, stack.status, stack.doctor):
    app.command(command)


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print what lets SHELL complete commands, options, methods, presets and versions: source <(xc completion bash)."""
    print(script(app, shell))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `xc`, and end the process with the exit code of the outcome."""
    # Threads that wait for a part of a sum go to sleep sooner: on a busy machine, where the others must wait for the
    # processor, a step takes half the time or a tenth; on a quiet one, the same. Read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    _open_closed_streams()
    bypass_proxies()
    collect_rarely()
    # Two collections at exit would take 2 s on the objects of a run, though all of them are freed at once.
    atexit.register(collector.freeze)
    if isinstance(sys.stdout, io.TextIOWrapper):    # data is UTF-8 whatever the terminal's language
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    app.help_formatter = "default" if _room_for_boxes() else PlainHelp()
    debug = "--debug" in words or bool(os.environ.get("XC_DEBUG"))
    try:
        _call([word for word in words if word != "--debug"])
    except CycloptsError as error:
        _fail(usage_error(error), " ".join(["xc", *(error.command_chain or ()), "--help"]), 2)
    except BrokenPipeError as error:
        _end_broken_pipe(error)
    except KeyboardInterrupt:
        _fail("interrupted", "the same command resumes" if words[:1] and words[0] in RESUMABLE else "", 130)
    except ProjectError as error:
        if debug:
            traceback.print_exc()
        text, _, hint = str(error).partition("\nhint: ")
        _fail(text, hint, error.exit_code)
    except Exception as error:
        if debug:
            raise
        _fail(*_explained(error), 1)


def _call(words: Sequence[str]) -> None:
    """Run a command. A page of help that nobody reads to its end is no failure; rich ends the process with 1."""
    try:
        app(words, exit_on_error=False, print_error=False)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
    sys.stdout.flush()


def _open_closed_streams() -> None:
    """Open a stream that the caller closed (`2>&-`) on /dev/null: print would write errors to stdout."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  until the process ends


def _end_broken_pipe(error: BrokenPipeError) -> None:
    """Return where the reader of stdout alone has gone (`| head`), which has what it wanted; else fail."""
    gone = [stream for stream in (sys.stdout, sys.stderr) if _reader_has_gone(stream)]
    for stream in gone:    # Python would complain at exit that it cannot flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if gone != [sys.stdout]:
        _fail(*_explained(error), 1)


def _reader_has_gone(stream: TextIO) -> bool:
    poll = select.poll()
    poll.register(stream.fileno(), 0)    # an error is told in any case
    return bool(poll.poll(0))


def _explained(error: Exception) -> tuple[str, str]:
    """Return what an error that no command expects is told as: text and hint."""
    from xcmodels.checks import Unusable

    if isinstance(error, Unusable):
        return str(error), ""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return (f"no room for {error.filename or 'a file'}: {error.strerror}",
                "free space on that disk, then run the same command again")
    if isinstance(error, PermissionError) and error.filename:
        return f"{error.filename} is closed to this user: {error.strerror}", _as_owner(Path(error.filename))
    return f"unexpected {type(error).__name__}: {error}", "the same command with --debug shows where"


def _as_owner(path: Path) -> str:
    """Return how to run a command as the user who owns a path, or the nearest folder above it that can be seen."""
    import pwd

    with suppress(OSError, KeyError):
        return f"run it as its owner: sudo -u {pwd.getpwuid(nearest_existing(path).stat().st_uid).pw_name} xc ..."
    return "run it as its owner"


def _room_for_boxes() -> bool:
    return (sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
            and not os.environ.get("NO_COLOR") and shutil.get_terminal_size().columns >= 60)


def _fail(text: str, hint: str, code: int) -> None:
    """Print an error of at most 6 lines, control characters escaped, and exit with `code`."""
    lines = [line for line in text.splitlines() if line.strip()][:5]
    message = [f"error: {lines[0] if lines else 'failed'}", *lines[1:], *([f"hint: {hint}"] if hint else [])]
    for line in message:
        print(escape_text(line, len(line)), file=sys.stderr)
    sys.exit(code)
