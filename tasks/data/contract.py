"""The check step: prepared tables are validated against their data contracts."""

import json
import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

from data_contracts.check import Spread
from data_contracts.drift import FREQUENCIES
from data_contracts.errors import ContractError
from data_contracts.findings import Thresholds
from data_contracts.validate import validate
from tasks.core.files import put_file, remove
from tasks.core.step import StepContext, slug
from tasks.core.store import Artifact, Store
from tasks.data.feedback.add import FACTS
from tasks.data.tables import count_rows

KEY = "key"        # in the folder of the page: the key of the check that it is of
LARGE = 1 << 23    # rows of all tables below which the workers' imports take longer than they save


def check(data: str, thresholds: Thresholds, context: StepContext) -> None:
    """Check the tables against their contracts; the page stays in HOME/contracts/<data> in any case.

    Label frequencies are compared with those that `keep_frequencies` kept last. Raises ContractError where a rule
    fails.
    """
    page = _pages(context.home, data)
    baseline = _baseline(context.home, data)
    shutil.rmtree(page, ignore_errors=True)
    report = validate(context.inputs["tables"], report_dir=page, previous=baseline if baseline.exists() else None,
                      thresholds=thresholds, data_docs=True, spread=_spread(context))
    context.say(report.verdict)
    for line in report.warning_lines:
        context.say(line)
    try:
        report.raise_for_failure()
    except ContractError as error:
        if (context.inputs["tables"] / FACTS).exists():
            error.hint += "; or correct the feedback (xc feedback list), or train without it: xc run --feedback ignore"
        raise
    # Only facts that follow from the tables: times, or a comparison with an earlier run, would change the keys of all
    # later steps.
    summary = {"rules": len(report.rules), "tables": {table.name: table.rows for table in report.tables}}
    (context.out / "contract.json").write_text(json.dumps(summary, indent=1, sort_keys=True) + "\n")
    shutil.copyfile(page / FREQUENCIES, context.out / FREQUENCIES)
    (page / KEY).write_text(context.scratch.name)


def page_of(data: str, checked: Artifact, store: Store) -> Path | None:
    """Return the page of a check that passed, made or reused.

    None where another home has it, or where other data of the same name, or the same with other thresholds, was
    checked since.
    """
    page = _pages(store.home, data)
    with suppress(FileNotFoundError):
        if (page / KEY).read_text() == store.manifest(checked)["key"] and (page / "index.html").exists():
            return page / "index.html"
    return None


def keep_frequencies(data: str, checked: Artifact, store: Store) -> None:
    """Have the next check of the data compare its label frequencies with those of this one, made or reused."""
    if store.lost(checked):    # it stands, but its files were removed
        return
    result, baseline = store.open(checked), _baseline(store.home, data)
    baseline.parent.mkdir(exist_ok=True)
    remove(part := baseline.with_suffix(".tmp"))    # of a run that was killed as it wrote
    put_file((result / FREQUENCIES).read_bytes(), baseline, os.replace, part)


def _pages(home: Path, data: str) -> Path:
    return home / "contracts" / slug(data)


def _baseline(home: Path, data: str) -> Path:
    return home / "baselines" / f"{slug(data)}.parquet"


def _spread(context: StepContext) -> Spread | None:
    """Return the run's workers where they check large tables faster than this process alone."""
    if context.workers.is_serial or sum(map(count_rows, context.inputs["tables"].glob("*/"))) < LARGE:
        return None
    return partial(context.workers.map, name=lambda job: f"checking {job[1][0]}")
