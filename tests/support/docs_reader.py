"""The folder of a reader of the docs: a `.venv` with `xc`, ports of its own, and a shell to type commands in."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path

from flows.services.stack import Stack
from tests.conftest import ROOT
from tests.support import tiny
from tests.support.docs_pages import Command
from tests.support.forked import run_xc, start_xc
from tests.support.home_services import Home, answers, until
from tests.support.ports import free_ports
from tests.support.prefect_server import copy_database
from tests.support.run_command import settings

SECONDS = 900.0    # for one command, on a machine that does other things too
FEWER = {"m1.epochs": "4", "m1.refresh_from": "2", "m1.refresh_every": "2", "m2.epochs": "2"}
OF_SHELL = {"VIRTUAL_ENV", "PATH", "SERVE_PORT", "CURL_HOME"}    # what of the environment is for the shell alone
LONG_RUNNING = {    # command -> its output once it is ready
    "xc serve": r"serving .* on http://", "dask scheduler": r"Scheduler at: ", "dask worker": r"Registered to: "}
# The data and settings are those of the pages; but training is shorter, and the port of the server is a free one.
XC = """#!/bin/bash
case "$1" in
  run | prepare | deploy)
    set -- "${{@/#cpu-quick/cpu-learned}}"
    [[ " $* " == *" --preset "* ]] || quick=(--preset cpu-learned)
    quick+=(--workers 0 {settings}) ;;
  serve) quick=(--port "$SERVE_PORT") ;;
esac
[[ -z "$ONLY_WORDS" ]] || {{ printf '%s\\0' "$@" "${{quick[@]}}"; exit; }}
exec {python} -m flows.cli "$@" "${{quick[@]}}"
"""
SHELL = frozenset("|<>&;$`*\n")    # a command with one of these, outside of quotes and comments, is for bash


class ReaderFolder:
    """The folder, its home `.xc`, and the long-running commands that were started in it."""

    def __init__(self, folder: Path, prefect: str) -> None:
        """Create the folder; prefect: API of a server for runs while the home has none, which would cost 10 s each."""
        self.folder, self.home, self.prefect = folder, folder / ".xc", prefect
        self.staying: dict[str, subprocess.Popen[bytes]] = {}
        self.serve_port, self.dask_port = free_ports(2)
        _environment(folder)
        self.environment = Home(self.home).environment | {
            "VIRTUAL_ENV": str(folder / ".venv"), "PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}",
            "SERVE_PORT": str(self.serve_port), "CURL_HOME": str(folder)}
        del self.environment["XC_HOME"], self.environment["PYTHONPATH"]    # use the home and the packages of the folder
        (folder / ".curlrc").write_text(f'resolve = "labels.example.org:{self.serve_port}:127.0.0.1"\n')

    def new_home(self) -> None:
        """Start with an empty home that has the databases of MLflow and Prefect."""
        shutil.rmtree(self.home, ignore_errors=True)
        tiny.fresh_store(self.home)
        copy_database(self.home / "prefect")

    def type(self, command: Command) -> tuple[int, str, str]:
        """Run a command; return (exit code, stdout, stderr). A long-running one is left running once it is ready."""
        text = self._here(command.text)
        for program, there in LONG_RUNNING.items():
            if text.startswith(program):
                return self._stay(program, text, there)
        if text.startswith("curl"):
            port = re.search(r":(\d{4,5})/", text)
            assert port is not None, text
            until(lambda: answers(f"http://127.0.0.1:{port[1]}/readyz") == 200)
        environment = self.environment
        if not text.startswith("xc up") and Stack(self.home).running("prefect") is None:
            environment = {**environment, "PREFECT_API_URL": self.prefect}
        if _can_be_forked(text):
            words, own = self._words_and_environment(text, environment)
            return run_xc(*words, timeout=SECONDS, cwd=self.folder, env=own)
        with subprocess.Popen(["bash", "-o", "pipefail", "-c", text], cwd=self.folder, env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
            try:
                out, said = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)    # what it started, too
                raise
        return process.returncode, out, said

    def _words_and_environment(self, text: str, environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """Return what the script in `.venv` gives to `xc`, whose libraries a forked process need not import."""
        asked = subprocess.run([self.folder / ".venv" / "bin" / "xc", *shlex.split(text, comments=True)[1:]],
                               env=environment | {"ONLY_WORDS": "1"}, capture_output=True, check=True, text=True)
        own = {name: value for name, value in environment.items() if name not in OF_SHELL}
        usual = {name: value for name, value in os.environ.items() if name in OF_SHELL}
        return asked.stdout.split("\0")[:-1], own | usual

    def check(self, words: list[str]) -> None:
        """Run a program of the folder's `.venv`, which must succeed."""
        done = subprocess.run([self.folder / ".venv" / "bin" / words[0], *words[1:]], cwd=self.folder, text=True,
                              env=self.environment, capture_output=True, timeout=SECONDS)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"

    def clear(self) -> None:
        """End the long-running commands with SIGTERM; each must exit properly."""
        for program in list(self.staying)[::-1]:
            self._end(program)

    def _here(self, text: str) -> str:
        """Replace the addresses and folders of the page by those of this test."""
        app = self.serve_port if "xc serve" in self.staying else self.environment["XC_PORT"]
        for shown, meant in (("127.0.0.1:8000", f"127.0.0.1:{app}"), ("example.org:8000", f"example.org:{app}"),
                             ("--host 10.0.0.1", f"--host 127.0.0.1 --no-dashboard --port {self.dask_port}"),
                             ("--nworkers 4", "--nworkers 1 --no-dashboard"),
                             ("10.0.0.1:8786", f"127.0.0.1:{self.dask_port}"), ("/shared/", f"{self.folder}/shared/")):
            text = text.replace(shown, meant)
        return text

    def _stay(self, program: str, text: str, there: str) -> tuple[int, str, str]:
        if program in self.staying:
            self._end(program)
        log = self.folder / f"{program.replace(' ', '-')}.log"
        elsewhere = self.folder / "elsewhere"    # a worker has been started anywhere
        elsewhere.mkdir(exist_ok=True)
        with log.open("wb") as said:
            options = {"stdout": said, "stderr": said, "start_new_session": True,
                       "cwd": elsewhere if program == "dask worker" else self.folder}
            if _can_be_forked(text):
                words, own = self._words_and_environment(text, self.environment)
                process = start_xc(*words, env=own, **options)
            else:
                process = subprocess.Popen(["bash", "-c", f"exec {text}"], env=self.environment, **options)
        self.staying[program] = process
        deadline = time.monotonic() + SECONDS
        while not re.search(there, log.read_text()) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        return process.poll() or 0, "", log.read_text()

    def _end(self, program: str) -> None:
        process = self.staying.pop(program)
        process.terminate()
        try:
            assert process.wait(60) in (0, -signal.SIGTERM), f"{program} ended with {process.returncode}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _can_be_forked(text: str) -> bool:
    """Whether it is a command of `xc` alone, with nothing that a shell would do."""
    return text.startswith("xc ") and not SHELL & set(re.sub(r"'[^']*'|\"[^\"$`]*\"|\s#.*", "", text))


def _environment(folder: Path) -> None:
    """Create the folder's `.venv` as `make` does, with the packages of this environment and this code."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    (site,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    (site / "xcflow.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    bin_ = folder / ".venv" / "bin"
    for name, text in (("xc", XC.format(settings=" ".join(settings(**FEWER)), python=bin_ / "python")),
                       ("dask", f'#!/bin/bash\nexec {bin_ / "python"} -m dask "$@"\n')):
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)
    for name in ("Makefile", "constraints.txt", "constraints-cuda.txt", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv" / ".ready").touch()
