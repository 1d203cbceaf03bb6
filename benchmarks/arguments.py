"""Command lines of the benchmarks: the parameters of a `main` are its arguments, parsed by their annotations.

    def main(labels: Count = 65_536, *methods: MethodName) -> None: ...

An invalid argument ends the benchmark with exit code 2 and one line that names it, before anything is measured.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from data_contracts.errors import ProjectError
from flows.cli.usage import usage_error
from xcmodels.methods.presets import resolve


def parsed_by(parse: Callable[[str], Any]) -> Parameter:
    """Return an argument whose value `parse` returns for its word; `parse` raises ValueError for an invalid one."""
    return Parameter(n_tokens=1, converter=lambda _, tokens: parse(tokens[0].value))


def checked(convert: Callable[[str], Any], is_valid: Callable[[Any], object], error: str) -> Parameter:
    """Return an argument that is converted, then checked; error: the message for an invalid word, {!r} in it."""
    def parse(word: str) -> Any:
        with suppress(ValueError):
            if is_valid(value := convert(word)):
                return value
        raise ValueError(error.format(word))

    return parsed_by(parse)


def method_name(word: str) -> str:
    """Parse the name of a method that has the preset `cpu`."""
    resolve(word, "cpu", {})
    return word


def file_to_write(word: str) -> Path:
    """Parse the path of a file that exists or can be created."""
    path = Path(word)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"{word!r} is no file, and none can be created there")
    return path


Count = Annotated[int, checked(int, lambda count: count >= 1, "expected a whole number of at least 1, got {!r}")]
Folder = Annotated[Path, checked(Path, Path.is_dir, "{!r} is no folder")]
Program = Annotated[str, checked(str, shutil.which, "{!r} cannot be started")]
MethodName = Annotated[str, parsed_by(method_name)]


def run(main: Callable[..., None], description: str | None, arguments: Sequence[str] | None = None) -> None:
    """Call `main` with parsed arguments, those of the command line by default; --help prints the description."""
    app = App(name=f"python -m benchmarks.{Path(sys.argv[0]).stem}", help=description, help_format="plaintext",
              version_flags=[], result_action="return_value")
    app.default(main)
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print(f"error: {' '.join(usage_error(error).split())}", file=sys.stderr)
        sys.exit(2)
    except ProjectError as error:
        sys.exit(f"error: {error}")
