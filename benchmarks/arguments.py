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

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

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


def folder_with(*names: str) -> Parameter:
    """Return an argument that is a folder with files of all these names."""
    def parse(word: str) -> Path:
        folder = Path(word)
        if not folder.is_dir():
            raise ValueError(f"{word!r} is no folder")
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise ValueError(f"{word!r} has no {missing[0]}")
        return folder

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


def at_least(least: int) -> Parameter:
    """Return an argument that is a whole number of at least `least`."""
    return checked(int, lambda count: count >= least, f"expected a whole number of at least {least:,}, got {{!r}}")


Count = Annotated[int, at_least(1)]
Folder = Annotated[Path, folder_with()]
JsonLines = Annotated[Path, folder_with("trn.json.gz", "tst.json.gz", "lbl.json.gz")]    # a raw data set of ours
Program = Annotated[str, checked(str, shutil.which, "{!r} cannot be started")]
MethodName = Annotated[str, parsed_by(method_name)]


def run(main: Callable[..., None], description: str | None, arguments: Sequence[str] | None = None) -> None:
    """Call `main` with parsed arguments, those of the command line by default; --help prints the description."""
    file = Path(sys.argv[0])
    command = f"python -m benchmarks.{file.parent.name if file.stem == '__main__' else file.stem}"
    app = App(name=command, help=description, help_format="plaintext", version_flags=[], result_action="return_value")
    app.default(main)
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        missing = error.argument.name if isinstance(error, MissingArgumentError) and error.argument else ""
        said = f"{command} needs {missing.removeprefix('--').upper()}" if missing else usage_error(error)
        print(f"error: {' '.join(said.split())}", file=sys.stderr)
        sys.exit(2)
    except ProjectError as error:
        sys.exit(f"error: {error}")
