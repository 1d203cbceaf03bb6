"""The checks of `xc doctor`: Python, packages, machine, home folder and servers."""

import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from data_contracts.errors import ProjectError, UsageError
from flows.cli.options import home_flag, utf8
from flows.services.processes import WELL
from flows.services.stack import Stack
from tasks.core.devices import free_space, gpus
from tasks.core.files import mode_for_others, nearest_existing
from tasks.core.remote import without_passwords
from tasks.core.store import Store
from tasks.tracking.mlflow_client import probe

PINS = {    # newer versions of these install without an error, and then
    "fastapi": (Requirement("fastapi<0.151"), "the Prefect server cannot be imported"),
    "sqlalchemy": (Requirement("sqlalchemy<2.1"), "the Prefect server never creates scheduled runs")}
MEMORY, DISK = 2e9, 1e9    # bytes below which a run of tens of thousands of labels does not end


@dataclass(frozen=True)
class Check:
    """The result of a check; told: what was found, or what is wrong; hint: what to do about that."""

    name: str
    well: bool
    told: str
    hint: str = ""


def run_checks(home: Path, mlflow: str) -> list[Check]:
    """Run every check; mlflow: the address of an MLflow server to check, "" for none."""
    return [python(), *installed(), *machine(), *state(home), *servers(home, mlflow)]


def python() -> Check:
    """Tell the version of the interpreter; none below 3.11 can import this."""
    return Check("python", True, f"{platform.python_version()}, {sys.executable}")


def installed() -> Iterator[Check]:
    """Check that xcflow is installed, and each package that it requires."""
    try:
        yield from packages(requires("xcflow") or ())
    except PackageNotFoundError:
        yield Check("xcflow", False, "is not installed, only its source is there", "make run, or pip install -e .")


def packages(requirements: Iterable[str]) -> Iterator[Check]:
    """Check the installed versions against requirements such as "torch>=2.13", and against PINS."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        pin, consequence = PINS.get(requirement.name, (requirement, ""))
        name, bounds = requirement.name, str(requirement.specifier & pin.specifier)
        hint = "pip install --no-deps --require-hashes -r constraints.txt"
        try:
            installed_version = version(name)
        except PackageNotFoundError:
            yield Check(name, False, f"is not installed, {bounds} is wanted", hint)
            continue
        pin_holds = pin.specifier.contains(installed_version, prereleases=True)
        if requirement.specifier.contains(installed_version, prereleases=True) and pin_holds:
            yield Check(name, True, installed_version)
        else:
            breaks = f": {consequence}" if not pin_holds and consequence else ""
            yield Check(name, False, f"{installed_version}, {bounds} is wanted{breaks}", hint)


def machine() -> Iterator[Check]:
    """Check cores, memory and GPU."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Check("cores", True, f"{usable} of {os.cpu_count()} for this process")
    memory = psutil.virtual_memory()
    yield Check("memory", memory.available >= MEMORY,
                f"{memory.available / 1e9:,.1f} GB available of {memory.total / 1e9:,.1f} GB",
                "end other programs, or take a preset with a smaller model: xc presets")
    try:
        yield Check("gpu", True, f"torch sees {count}" if (count := gpus()) else "none; a CPU is fine")
    except (ImportError, OSError) as error:
        yield Check("gpu", False, f"torch cannot be asked: {error}"[:300], "make clean; make run sets .venv up anew")


def state(home: Path) -> Iterator[Check]:
    """Check the home: its path, space on its disk, write access, permissions, format."""
    try:
        utf8(home)
    except UsageError as error:
        yield Check("home", False, error.what, error.hint)
        return
    folder, free = nearest_existing(home), free_space(home)
    yield Check("disk", free >= DISK, f"{free / 1e9:,.1f} GB free for {home}", "free space on that disk")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Check("home", False, f"{folder} cannot be written: {error.strerror}",
                    f"give this user the right to write there, or choose another: --home; now {home}")
        return
    if not (home / "FORMAT").exists():
        yield Check("home", True, f"{home} is not there yet; xc run makes it")
        return
    if mode := mode_for_others(home):
        yield Check("home", False, f"others can look into {home}, its mode is {mode:04o}",
                    f"chmod 700 {shlex.quote(str(home))}; the next command that uses it does so too")
        return
    try:
        Store(home, create=False)
        yield Check("home", True, f"{home}, format {(home / 'FORMAT').read_text().strip()}, can be written")
    except ProjectError as error:
        yield Check("home", False, error.what, error.hint)


def servers(home: Path, mlflow: str) -> Iterator[Check]:
    """Check the services that `xc up` started in this home, and the servers that are named."""
    records = Stack(home).records().values()
    for record in records:
        well = (state := record.state) == WELL
        yield Check(record.name, well, record.address or "runs" if well else f"{state}: {record.address}".rstrip(": "),
                    f"start it by {record.manager}, which has its log" if record.manager else
                    f"its log: {home}/logs/{record.name}.log; again: xc down{home_flag(home)}; xc up{home_flag(home)}")
    if not records:
        yield Check("servers", True, f"none of {home} is up; xc up{home_flag(home)} starts them")
    addresses = {"PREFECT_API_URL": os.environ.get("PREFECT_API_URL", ""), "mlflow": mlflow}
    for name, address in ((name, without_passwords(address)) for name, address in addresses.items() if address):
        try:
            probe(address)
            yield Check(name, True, f"answers at {address}")
        except ProjectError:
            yield Check(name, False, f"does not answer at {address}", "start it, or name no server")
