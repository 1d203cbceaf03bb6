"""What a run refuses, and what it says: bad data, a full disk."""

import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_contracts.errors import ProjectError
from flows.services.environment import full_disk_explained
from tests.conftest import ROOT
from tests.support.forked import run_xc
from tests.support.run_command import objects, settings


def break_rows(planted: Path, data: Path, change: Callable[[list[dict]], None]) -> None:
    """Write a copy of the planted data set to `data` with its training rows changed."""
    shutil.copytree(planted, data)
    with gzip.open(data / "trn.json.gz", "rt") as stream:
        rows = [json.loads(line) for line in stream]
    change(rows)
    with gzip.open(data / "trn.json.gz", "wt") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def test_ramen_wants_a_graph(planted, xc, tmp_path):
    data = tmp_path / "bare"
    shutil.copytree(planted, data, ignore=shutil.ignore_patterns("group*"))
    code, _, said = xc("run", "--data", str(data), "--method", "ramen", "--home", str(tmp_path / "home"))
    assert code == 2 and "has no anchor set" in said and "docs/data.md" in said
    assert not (tmp_path / "home").exists()
    code, _, said = xc("run", "--data", str(planted), "--method", "ramen-ance", "--set", "prepare.walks=false",
                       "--home", str(tmp_path / "home"))
    assert code == 2 and "has no anchor set" in said


def test_what_fails_in_a_worker_is_said_once(planted, xc, tmp_path):
    data, home = tmp_path / "broken", tmp_path / "home"
    break_rows(planted, data, lambda rows: rows[6].update(target_ind=[10**6], target_rel=[1.0]))
    code, out, said = xc("prepare", "--data", str(data), "--preset", "cpu-learned", "--home", str(home), "--workers",
                        "1", *settings())
    assert code == 3 and not out
    last = said.strip().splitlines()[-2:]
    assert last[0].startswith("error: trn.json.gz:7: label id 1000000 is not in lbl.json.gz")
    assert last[1].startswith("hint: ")
    assert "Traceback" not in said and said.count("1000000") == 1 and len(said.splitlines()) < 14
    assert f"failed  read; its log: {home}/logs/failed.log" in said and f"once mended  xc prepare --data {data}" in said
    assert "Traceback" in (home / "logs" / "failed.log").read_text()


def test_broken_data_stops_before_anything_downstream(planted, xc, tmp_path):
    def change(rows: list[dict]) -> None:
        rows[6]["title"] = rows[6]["content"] = " "
        rows[8].update(target_ind=[3, 3], target_rel=[1.0, 1.0])

    data, home = tmp_path / "broken", tmp_path / "home"
    break_rows(planted, data, change)
    code, out, said = xc("run", "--data", str(data), "--preset", "cpu-learned", "--home", str(home), "--workers", "0",
                        *settings())
    assert code == 3 and not out
    assert "trn.json.gz:7" in said or "trn.json.gz:9" in said
    assert set(objects(home)) == {"read"}
    page = (home / "contracts" / "broken" / "index.html").read_text()
    assert "text_present" in page and "pair_unique" in page and "trn.json.gz" in page


def test_a_prefect_server_that_does_not_start_is_named_with_its_log(planted, tmp_path):
    home = tmp_path / "home"
    (home / "prefect").mkdir(parents=True)
    home.chmod(0o700)    # as a home is
    (home / "prefect" / "prefect.db").write_bytes(b"not a database" * 100)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    code, _, said = run_xc("prepare", "--data", str(planted), "--home", str(home), env=environment)
    assert code == 5, said
    assert "error: Prefect ended with code" in said and f"{home}/logs/prefect-run.log" in said


class Failing(BaseHTTPRequestHandler):
    """A server that fails at whatever it is asked, as Prefect's does while its database is locked."""

    def do_GET(self) -> None:
        self.send_error(503)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("what", ["does not answer: ", "answers 503 Service Unavailable"])
def test_a_prefect_server_that_does_not_answer_or_fails_is_named(planted, tmp_path, what):
    with HTTPServer(("127.0.0.1", 0), Failing) as failing:
        threading.Thread(target=failing.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{failing.server_port if '503' in what else 9}/api"
        code, _, said = run_xc("prepare", "--data", str(planted), "--home", str(tmp_path / "home"), env={
            **os.environ, "PREFECT_API_URL": address, "PREFECT_CLIENT_MAX_RETRIES": "0"})
        failing.shutdown()
    assert code == 5, said
    assert f"error: the Prefect server at {address} {what}" in said
    assert said.splitlines()[-1].startswith("hint: the same command resumes"), said


@pytest.mark.skipif(subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"],
                                   capture_output=True).returncode != 0, reason="needs a mount namespace of its own")
def test_a_full_disk_is_named_and_loses_nothing(whole, planted, xc, tmp_path):
    """A home on a disk that is too small for the first step, then on one with room."""
    home = tmp_path / "home"
    home.mkdir()
    words = [sys.executable, "-m", "flows.cli", "prepare", "--data", str(planted), "--preset", "cpu-learned",
             "--home", str(home), "--workers", "0", *settings()]
    script = f"""
        mount -t tmpfs -o size=200k tmpfs {home} || exit 99
        {shlex.join(words)}; test $? = 1 || exit 98
        mount -o remount,size=100m {home} || exit 97
        {shlex.join(words)}"""
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script], capture_output=True,
                          text=True, timeout=240, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stderr and "free space on that disk" in done.stderr


def test_a_full_disk_is_the_cause_of_what_prefect_says(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3_000))
    with pytest.raises(ProjectError, match=r"is full: 0\.0 MB free"), full_disk_explained(tmp_path):
        raise RuntimeError("Server error '500 Internal Server Error'")
    monkeypatch.undo()
    with pytest.raises(ProjectError, match="had no room for a file"), full_disk_explained(tmp_path):
        raise ValueError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(RuntimeError, match="500"), full_disk_explained(tmp_path):
        raise RuntimeError("Server error '500 Internal Server Error'")
    with pytest.raises(RuntimeError, match="500"), full_disk_explained(tmp_path / "deleted"):
        raise RuntimeError("Server error '500 Internal Server Error'")
