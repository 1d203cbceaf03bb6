"""Command lines of the benchmarks: the parameters of a `main` are its arguments, parsed by their annotations.

    def main(labels: Count = 65_536, *methods: MethodName) -> None: ...

An invalid argument ends the benchmark with exit code 2 and one line that names it, before anything is measured.
"""

import argparse
import inspect
import shutil
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, get_type_hints

from data_contracts.errors import ProjectError
from xcmodels.methods.presets import resolve


def count(argument: str) -> int:
    """Parse a whole number of at least 1, such as 1000 or 1_000."""
    try:
        number = int(argument)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, got {argument!r}")
    return number


def folder(argument: str) -> Path:
    """Parse the path of an existing folder."""
    if not Path(argument).is_dir():
        raise ArgumentTypeError(f"{argument!r} is no folder")
    return Path(argument)


def new_file(argument: str) -> Path:
    """Parse the path of a file that exists or can be created."""
    path = Path(argument)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ArgumentTypeError(f"{argument!r} is no file, and none can be created there")
    return path


def program(argument: str) -> str:
    """Parse the name or path of a program that can be started."""
    if shutil.which(argument) is None:
        raise ArgumentTypeError(f"{argument!r} cannot be started")
    return argument


def method_name(argument: str) -> str:
    """Parse the name of a method that has the preset `cpu`."""
    try:
        resolve(argument, "cpu", {})
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return argument


Count = Annotated[int, count]
Folder = Annotated[Path, folder]
Program = Annotated[str, program]
MethodName = Annotated[str, method_name]


def run(main: Callable[..., None], description: str | None, arguments: Sequence[str] | None = None) -> None:
    """Call `main` with parsed arguments, those of the command line by default; --help prints the description."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{Path(sys.argv[0]).stem}", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    hints = get_type_hints(main, include_extras=True)
    parameters = inspect.signature(main).parameters
    for name, parameter in parameters.items():
        parse, = hints[name].__metadata__
        variadic = parameter.kind is parameter.VAR_POSITIONAL
        required = parameter.default is parameter.empty and not variadic
        parser.add_argument(name, type=parse, nargs=None if required else "*" if variadic else "?")
    values = list[object]()
    for name, value in vars(parser.parse_args(arguments)).items():
        values.extend(value if isinstance(value, list) else [parameters[name].default if value is None else value])
    try:
        main(*values)
    except ProjectError as error:
        sys.exit(f"error: {error}")
