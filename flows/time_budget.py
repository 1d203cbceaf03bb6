"""Chooses the most accurate method and preset whose whole job fits a time, from measured times.

A whole job takes a fixed time and a time for each text, query or label: `benchmarks.bench_jobs` measures both on two
data sets.
"""

import json
import re
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from data_contracts.errors import ProjectError, UsageError
from tasks.core.wording import duration
from tasks.data.sources import RawDataSet, describe
from tasks.data.sources.files import lines

CANDIDATES = (("unidec", "cpu"), ("ngame", "cpu"), ("ngame", "cpu-quick"))    # the most accurate first, as in README
TIMES = Path(__file__).with_name("job_times.json")
_PARTS = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


@dataclass(frozen=True)
class Choice:
    """What is trained in a time; about: why, for people."""

    method: str
    preset: str
    about: str


def choose(data: Path, budget: str, home: Path) -> Choice:
    """Return the most accurate method and preset for a data set within `budget`, "10m" for example.

    Raises UsageError for another form of time, for labels without texts, and where nothing fits.
    """
    seconds, times, data_set = seconds_of(budget), read_times(home), describe(data)
    if data_set.numbered:
        raise UsageError(f"--budget chooses among methods that learn from label texts, and {data} has a number for "
                         "each label alone", hint="--method astra --preset cpu-numbered in its place, or add a file "
                                                  "with their texts")
    texts = count_texts(data_set)
    expected = {candidate: ceil(fixed + each * texts) for candidate, (fixed, each) in times.items()}
    told = ", ".join(f"{method} by {preset} {duration(expected[method, preset])}" for method, preset in CANDIDATES)
    fits = [candidate for candidate in CANDIDATES if expected[candidate] <= seconds]
    if not fits:
        raise UsageError(f"nothing trains on {texts:,} texts within {duration(seconds)}; expected are {told}",
                         hint=f"--budget {written(min(expected.values()))}")
    return Choice(*fits[0], f"{fits[0][0]}, preset {fits[0][1]}, is the most accurate that fits {duration(seconds)}: "
                            f"expected are {told}, for {texts:,} texts")


def seconds_of(budget: str) -> int:
    """Return the seconds of "90s", "10m", "1h30m" or "600"."""
    budget = budget.replace(" ", "")
    if re.fullmatch(r"\d+h\d+", budget):    # minutes to most people, seconds to who has read that "600" is of those
        raise UsageError(f"--budget {budget} has no unit behind its last number",
                         hint=f"--budget {budget}m, or --budget {budget}s")
    match = _PARTS.fullmatch(budget)
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    if not (total := 3600 * hours + 60 * minutes + seconds):
        raise UsageError(f"--budget is a time above 0, got {budget!r}", hint="--budget 10m, 1h30m or 90s")
    return total


def written(seconds: int) -> str:
    """Return seconds as `seconds_of` reads them: "1m10s"."""
    parts = zip((seconds // 3600, seconds // 60 % 60, seconds % 60), "hms", strict=True)
    return "".join(f"{count}{unit}" for count, unit in parts if count)


def count_texts(data: RawDataSet) -> int:
    """Return how many queries and labels a raw data set has: the lines of its files of texts."""
    return sum(sum(1 for _ in lines(data.files[table])) for table in ("queries.train", "queries.test", "labels"))


def read_times(home: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """Return (fixed seconds, seconds a text) of each candidate: those measured in HOME, else the packaged ones."""
    file = home / TIMES.name if (home / TIMES.name).exists() else TIMES
    try:
        rows = json.loads(file.read_text())
        times = {(row["method"], row["preset"]): (float(row["fixed"]), float(row["text"])) for row in rows}
        return {candidate: times[candidate] for candidate in CANDIDATES}
    except (ValueError, KeyError, TypeError) as error:
        raise ProjectError(f"{file} does not hold the times of {len(CANDIDATES)} jobs; remove it, and "
                           f"python -m benchmarks.bench_jobs SMALL LARGE {file} measures them again") from error
