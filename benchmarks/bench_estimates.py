"""Are the memory and the time that `xc plan` tells those of the run that follows?

    python -m benchmarks.bench_estimates DATA:METHOD:PRESET[:KEY=VALUE,...] ...

Each job is done once in a new home, whose readings the estimate is made of, and once more with another seed. That
second run is watched from outside: memory is the most that its process and all descendants held together (PSS, each
page counted once), read every half second, and the time that of its steps that are not reused. Beside other work times
differ from run to run; memory does not.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

from benchmarks.arguments import parsed_by, run
from benchmarks.measuring import run_xc
from xcmodels.methods.presets import resolve

Job = tuple[Path, str, str, dict[str, str]]


def parse_job(word: str) -> Job:
    """Parse DATA:METHOD:PRESET, and settings that differ from the preset's after another colon."""
    data, method, preset, settings = [*word.split(":", 3), "", "", ""][:4]
    if not Path(data).is_dir() or not preset:
        raise ValueError(f"expected DATA:METHOD:PRESET with a folder DATA, got {word!r}")
    changed = dict((key, value) for key, _, value in (each.partition("=") for each in settings.split(",") if each))
    resolve(method, preset, changed)
    return Path(data), method, preset, changed


JobArgument = Annotated[Job, parsed_by(parse_job)]


def planned(arguments: list[str]) -> dict[str, Any]:
    """Return what `xc plan` tells of a run with these arguments."""
    told: dict[str, Any] = json.loads(subprocess.run(
        [sys.executable, "-m", "flows.cli", "plan", "--json", *arguments], check=True, capture_output=True).stdout)
    return told


def main(job: JobArgument, *others: JobArgument) -> None:
    """Print one row per job."""
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    print("| job | GB told | GB held | ratio | s told | s in steps | ratio |\n|---|---|---|---|---|---|---|")
    for data, method, preset, changed in (job, *others):
        with tempfile.TemporaryDirectory(prefix="xc-bench-") as home:
            arguments = ["--data", str(data), "--method", method, "--preset", preset, "--home", f"{home}/home",
                         *(word for key, value in changed.items() for word in ("--set", f"{key}={value}"))]
            run_xc("run", *arguments)
            again = [*arguments, "--set", "seed=1"]
            told = planned(again)
            _, most = run_xc("run", *again)
            now = {step["step"]: step["seconds"] for step in planned(again)["steps"]}
            took = sum(now[step["step"]] for step in told["steps"] if not step["reuse"])
            name = ", ".join([method, preset, *(f"{key}={value}" for key, value in changed.items())])
            print(f"| {name} on {data.name} | {told['memory'] / 1e9:.2f} | {most / 1e9:.2f} | "
                  f"{told['memory'] / most:.2f} | {told['seconds']:.0f} | {took:.0f} | {told['seconds'] / took:.2f} |",
                  flush=True)


if __name__ == "__main__":
    run(main, __doc__)
