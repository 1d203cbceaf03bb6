"""`xc data ...`: write a data set in the raw format that `xc run` reads."""

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from data_contracts.errors import UsageError
from flows.cli.options import utf8

data = App(name="data", help="Write a data set in the raw format that `xc run` reads.")


@data.command
def wordnet(folder: Path, /,
            source: Annotated[Path | None, Parameter(help="A WordNet database at hand.")] = None) -> None:
    """Write the WordNet data set to FOLDER: synsets to tag with the synsets they point to."""
    from tasks.data.sources.wordnet import write_wordnet

    _check(folder, source)
    _print_counts(folder, write_wordnet(folder, source))


@data.command(name="import")
def import_(source: Path, folder: Path, /, *,
            text: Annotated[str | None, Parameter(help="Column of the texts.")] = None,
            labels: Annotated[str | None, Parameter(help="Column of the label names.")] = None,
            content: Annotated[str | None, Parameter(help="Column of longer texts, if any.")] = None,
            uid: Annotated[str | None, Parameter(help="Column of ids, if any.")] = None,
            split: Annotated[str | None, Parameter(help="Column that says train or test, if any.")] = None,
            weight: Annotated[str | None, Parameter(help="Column of the labels' weights (clicks), if any.")] = None,
            group: Annotated[str | None, Parameter(help="Column of groups, if any: all texts of one are for testing, "
                                                        "or none.")] = None,
            separator: Annotated[str | None, Parameter(help="What separates label names, '' where a cell is one; "
                                                            "guessed by default.")] = None,
            vocabulary: Annotated[Path | None, Parameter(help="Vocabulary of the labels: SKOS, CSV or TSV.")] = None,
            language: Annotated[str | None, Parameter(help="Language of its names, or several: fi,sv.")] = None,
            test: Annotated[float, Parameter(help="Share of new texts to test on, without --split.")] = 0.2) -> None:
    """Write the data set that SOURCE holds to FOLDER: texts with labels.

    SOURCE is a table (CSV, TSV, JSONL, Parquet), a document corpus of Annif, MARC records, or a folder of `datasets`.
    """
    from tasks.data.sources.importing import import_file

    _check(folder, source, vocabulary)
    if not 0 < test < 1 and split is None:
        raise UsageError(f"--test must be above 0 and below 1, got {test:g}: a run measures itself on the test rows",
                         hint="--test 0.2, or --split COLUMN where a column says which rows are for testing")
    languages = [each.strip() for each in (language or "").split(",") if each.strip()]
    _print_counts(folder, import_file(source, folder, text=text, labels=labels, content=content, uid=uid, split=split,
                                      weight=weight, group=group, separator=separator, test_fraction=test,
                                      vocabulary=vocabulary, languages=languages))


def _check(folder: Path, *sources: Path | None) -> None:
    """Raise UsageError for a folder that is not UTF-8, and for an address, which pathlib takes for a folder `s3:`."""
    utf8(folder)
    for path in (folder, *sources):
        if path and len(path.parts) > 1 and re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*:", path.parts[0]):
            address = "/".join([path.parts[0], "", *path.parts[1:]])
            raise UsageError(f"{address} is an address, and `xc data` reads and writes files of this machine",
                             hint="copy what it reads here first, and the folder that it writes there then: "
                                  "aws s3 cp --recursive FOLDER s3://BUCKET/FOLDER")


def _print_counts(folder: Path, counts: dict[str, Any]) -> None:
    for name, value in counts.items():
        print(f"{name:<24} {value:,}" if isinstance(value, int) else f"{name:<24} {value}", file=sys.stderr)
    from data_contracts.findings import Thresholds

    command = f"xc run --data {shlex.quote(str(folder))}"
    if counts.get("test_rows_with_a_text_of_train", 0) > Thresholds.leak_share * counts.get("test", 0):
        command = f"another split, or, where texts may be in both halves, {command} --set prepare.leak_share=1"
    print(f"next: {command}", file=sys.stderr)
