"""Publishing under faults at real system calls; XC_ALL_FAULTS=1 takes no samples."""

import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults import NEW, problems, put, scenario, stranded, with_old, write_new

ROOT = Path(__file__).resolve().parents[2]
CALLS = ("openat", "write", "fsync", "mkdir", "rename", "link")
CODE = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from data_contracts.errors import ProjectError
from tasks.core.store import Store
NEW = {NEW!r}
{inspect.getsource(put)}
{inspect.getsource(write_new)}
{inspect.getsource(scenario)}
try:
    scenario(Path(sys.argv[1]), Store, lambda words: os.write(1, (words + "\\n").encode()))
except ProjectError as error:
    os.write(1, ("error " + error.what + "\\n").encode())
    sys.exit(error.exit_code)
"""


def traced(home, *options):
    command = ["strace", "-f", "-qq", *options, sys.executable, "-I", "-S", "-B", "-c", CODE, str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    words = (line.split(" ", 1) for line in done.stdout.splitlines())
    return done.returncode, {first: "".join(rest) for first, *rest in words}, done.stderr


@pytest.fixture
def strace():
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: apt-get install strace")
    probe = subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, text=True, check=False)
    if probe.returncode and "ptrace" in probe.stderr.lower():
        pytest.skip(f"ptrace is not permitted: {probe.stderr.strip()}")
    assert probe.returncode == 0, probe.stderr


def test_fault_at_system_calls(quick, strace):
    home = quick / "count"
    with_old(home)
    code, said, log = traced(home, "-e", f"trace={','.join(CALLS)}")
    assert (code, set(said)) == (0, {"published", "moved"}), log
    calls = re.findall(rf"^(?:\[pid +\d+\] )?({'|'.join(CALLS)})\((.*)", log, re.MULTILINE)
    points = []
    for call in CALLS:
        arguments = [rest for name, rest in calls if name == call]
        first = next(i for i, rest in enumerate(arguments) if call in ("write", "fsync") or str(home) in rest)
        points += [(call, i + 1) for i in range(first, len(arguments))]
    assert {call for call, _ in points} == set(CALLS)
    faults = [(call, n, fault) for call, n in points for fault in ("signal=KILL", "error=ENOSPC", "error=EIO")]
    if not os.environ.get("XC_ALL_FAULTS"):
        faults = faults[::2]  # 2 and 3 have no common divisor, so that each fault meets each call
    found = []
    for call, n, fault in faults:
        shutil.rmtree(home)
        old = with_old(home)
        code, said, log = traced(home, "-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={n}")
        where = f"{call} {n} {fault}"
        if code == 0 or (code == -signal.SIGKILL) != (fault == "signal=KILL"):
            found.append(f"{where}: exit {code} {log}")
        if fault != "signal=KILL" and stranded(home) and call != "fsync":
            found.append(f"{where}: left {stranded(home)}")
        found += [f"{where}: {problem}" for problem in problems(home, said, old)]
    assert found == []
    assert len(faults) >= 25
