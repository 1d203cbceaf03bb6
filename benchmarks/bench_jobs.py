"""Measure the times of whole jobs, from which `xc run --budget` chooses a method.

    python -m benchmarks.bench_jobs SMALL LARGE [FILE]    (HOME/job_times.json precedes flows/job_times.json)

SMALL and LARGE are raw data sets. Each candidate does the whole job on both, in a home of its own, and what the two
take gives the fixed seconds and those a text. Nothing else should run meanwhile.
"""

import json
import tempfile
from pathlib import Path
from typing import Annotated

from benchmarks.arguments import Folder, file_to_write, parsed_by, run
from benchmarks.measuring import run_xc, write_whole
from data_contracts.errors import UsageError
from flows.time_budget import CANDIDATES, TIMES, count_texts
from tasks.data.sources import describe


def main(small: Folder, large: Folder, file: Annotated[Path, parsed_by(file_to_write)] = TIMES) -> None:
    """Print one row per candidate, then write the seconds of all to the file."""
    sizes = [count_texts(describe(data)) for data in (small, large)]
    if sizes[0] >= sizes[1]:
        raise UsageError(f"LARGE must have more texts than SMALL, got {sizes[1]:,} and {sizes[0]:,}",
                         hint="name the smaller data set first")
    rows = []
    print(f"| job | {sizes[0]:,} texts, s | {sizes[1]:,} texts, s |\n|---|---|---|")
    for method, preset in CANDIDATES:
        less, more = (_seconds(data, method, preset) for data in (small, large))
        print(f"| {method}, {preset} | {less:.0f} | {more:.0f} |", flush=True)
        each = max(more - less, 0.0) / (sizes[1] - sizes[0])
        rows.append({"method": method, "preset": preset, "fixed": round(max(less - each * sizes[0], 0.0), 1),
                     "text": float(f"{each:.3g}")})
    write_whole(file, json.dumps(rows, indent=1) + "\n")


def _seconds(data: Path, method: str, preset: str) -> float:
    """Return the seconds of `xc run` in a new home."""
    with tempfile.TemporaryDirectory() as home:
        return run_xc("run", "--data", str(data), "--method", method, "--preset", preset, "--home", f"{home}/home",
                      held=lambda pid: 0)[0]    # to read memory takes time


if __name__ == "__main__":
    run(main, __doc__)
