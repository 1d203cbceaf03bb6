"""The words after a bench's name: the parameters of its `main`, each read by its annotation.

    def main(labels: Count = 65_536, *methods: MethodName) -> None: ...

A word that is invalid ends the bench with 2 and a line that names it, before anything is measured.
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


def count(word: str) -> int:
    """Read a whole number of at least 1; 1_000 is one, too."""
    try:
        number = int(word)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"a whole number of at least 1 is wanted, got {word!r}")
    return number


def folder(word: str) -> Path:
    """Read the path of a folder that is there."""
    if not Path(word).is_dir():
        raise ArgumentTypeError(f"{word!r} is no folder")
    return Path(word)


def new_file(word: str) -> Path:
    """Read the path of a file that is there or can be made."""
    path = Path(word)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ArgumentTypeError(f"{word!r} is no file, and none can be made there")
    return path


def program(word: str) -> str:
    """Read the name or path of a program that can be started."""
    if shutil.which(word) is None:
        raise ArgumentTypeError(f"{word!r} cannot be started")
    return word


def method_name(word: str) -> str:
    """Read the name of a method that has the preset `cpu`."""
    try:
        resolve(word, "cpu", {})
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return word


Count = Annotated[int, count]
Folder = Annotated[Path, folder]
Program = Annotated[str, program]
MethodName = Annotated[str, method_name]


def answer(main: Callable[..., None], about: str | None, words: Sequence[str] | None = None) -> None:
    """Call `main` with what the command line says; `about` is what --help tells."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{Path(sys.argv[0]).stem}", description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    hints = get_type_hints(main, include_extras=True)
    parameters = inspect.signature(main).parameters
    for name, parameter in parameters.items():
        read, = hints[name].__metadata__
        several = parameter.kind is parameter.VAR_POSITIONAL
        wanted = parameter.default is parameter.empty and not several
        parser.add_argument(name, type=read, nargs=None if wanted else "*" if several else "?")
    values = list[object]()
    for name, value in vars(parser.parse_args(words)).items():
        values.extend(value if isinstance(value, list) else [parameters[name].default if value is None else value])
    try:
        main(*values)
    except ProjectError as error:
        sys.exit(f"error: {error}")
