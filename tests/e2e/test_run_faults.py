"""What happens around a home in use: its clock is wrong, its databases are away or locked, its disk takes nothing."""

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.core.store import Store
from tests.conftest import ROOT
from tests.support.forked import kill_group
from tests.support.long_tests import at_length
from tests.support.run_command import command, objects
from tests.support.running_server import Running, ServedModels, ready

SHIFT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift(void) { const char *given = getenv("XC_TEST_SHIFT"); return given ? atol(given) : 0; }
int clock_gettime(clockid_t clock, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, out);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += shift();
    return code;
}
int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec, out->tv_usec = now.tv_nsec / 1000;
    return code;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount"]
MOUNTS = subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


@pytest.fixture
def home(whole, tmp_path) -> Path:
    """A copy of the home of an unbroken run."""
    return Path(shutil.copytree(whole[0], tmp_path / "home"))


def forget(home: Path, *steps: str) -> None:
    """Take back what steps made."""
    for ref in list((home / "refs" / "steps").iterdir()):
        digest = json.loads(ref.read_text())["digest"]
        manifest = json.loads((home / "objects" / digest / "MANIFEST.json").read_text())
        if manifest["about"]["step"].startswith(steps):
            ref.unlink()
            shutil.rmtree(home / "objects" / digest, ignore_errors=True)


@at_length("two whole runs under another clock")
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler to shift the clock")
@pytest.mark.timeout(600)
def test_a_wrong_clock_changes_no_result(whole, home, planted, tmp_path):
    """In ten years nothing but the version is kept, and all is made again; a day back all of that is reused."""
    (tmp_path / "shift.c").write_text(SHIFT)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "shift.so", tmp_path / "shift.c", "-ldl"], check=True)

    def at(days: float, *words: str) -> tuple[str, str]:
        quiet = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_API")}
        done = subprocess.run([sys.executable, "-m", "flows.cli", *words], capture_output=True, text=True, timeout=400,
                              env={**quiet, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(tmp_path / "prefect"),
                                   "LD_PRELOAD": str(tmp_path / "shift.so"), "XC_TEST_SHIFT": str(int(days * 86_400))})
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    before = objects(home)
    freed = json.loads(at(3652, "gc", "--home", str(home), "--json")[0])
    assert freed["counts"]["checkpoint"] >= 4 and set(objects(home)) == {"build retriever"}
    out, said = at(3652, *command(planted, home))
    assert json.loads(out) == whole[1] and objects(home) == before, said
    out, said = at(-1, *command(planted, home))
    assert json.loads(out) == whole[1] and "all reused" in said


def test_a_deleted_registry_is_rebuilt(whole, home, planted, xc):
    (home / "mlflow.db").unlink()
    code, out, said = xc(*command(planted, home))
    assert code == 0 and "all reused" in said, said
    told = json.loads(out)
    assert (told["version"], told["metrics"]) == ("1", whole[1]["metrics"])
    code, out, said = xc("models", "--home", str(home), "--json")
    [version] = json.loads(out)
    assert "champion" in version["aliases"] and version["digest"] == objects(whole[0])["build retriever"], said
    assert version["metrics"]["P/1"] == pytest.approx(whole[1]["metrics"]["P/1"])
    code, out, said = xc("predict", "a text", "--home", str(home))
    assert code == 0 and json.loads(out)["labels"], said


@at_length("waits for retries")
def test_a_locked_mlflow_database_costs_seconds_and_no_result(whole, home, planted, xc):
    forget(home, "evaluate")
    with sqlite3.connect(home / "mlflow.db", isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        code, out, said = xc(*command(planted, home))
        took = time.monotonic() - began
        holder.execute("ROLLBACK")
    assert code == 5 and not out, said
    assert "database is locked" in said.splitlines()[-2] and said.splitlines()[-1].startswith("hint: "), said
    assert took < 180, took
    assert objects(home) == objects(whole[0]), "what was made meanwhile is kept"
    code, out, said = xc(*command(planted, home))
    assert code == 0 and json.loads(out) == whole[1] and "all reused" in said, said


def read_only(home: Path, *words: str) -> list[str]:
    """Return a command that runs `xc` where the home is on a disk that can only be read."""
    script = f"mount --bind {home} {home} && mount -o remount,bind,ro {home} || exit 99\nexec {shlex.join(words)}"
    return [*UNSHARE, "sh", "-c", script]


@pytest.mark.skipif(not MOUNTS, reason="needs a mount namespace of its own")
def test_a_home_that_can_only_be_read_refuses_a_run(planted, tmp_path):
    home = Store(tmp_path / "home").home
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    done = subprocess.run(read_only(home, sys.executable, "-m", "flows.cli", *command(planted, home)),
                          env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=280)
    assert done.returncode == 1 and not done.stdout, done.stderr
    assert done.stderr.splitlines() == [
        f"error: cannot start a run: {home}/lock: Read-only file system",
        "hint: choose a HOME on a disk that is not read-only, then run the same command again"]


@pytest.mark.skipif(not MOUNTS, reason="needs a mount namespace of its own")
def test_a_home_that_can_only_be_read_answers(tmp_path):
    """By a server and by a command, without a write."""
    models = ServedModels(tmp_path / "home")
    models.add()
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "flows.cli"]
    with log.open("wb") as said:
        process = subprocess.Popen(read_only(models.home, *program, "serve", "--home", str(models.home), "--port", "0"),
                                   stdout=said, stderr=said, start_new_session=True, env=environment)
    try:
        server = Running(process, ready(process, log), log)
        assert server.fine() and server.ask("/readyz").body == b"ok"
        done = subprocess.run(read_only(models.home, *program, "predict", "a wolf", "--home", str(models.home)),
                              env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0 and json.loads(done.stdout)["labels"], done.stderr
        assert server.stop() == 0
    finally:
        kill_group(process)
