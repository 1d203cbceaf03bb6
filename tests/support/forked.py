"""`xc` in processes that are forked from one which has imported the libraries, where each would import for seconds.

Such a process has an id, arguments, environment, folder, streams and session of its own, runs `python -m flows.cli`
and ends as that does; only a list of processes shows another command line.
"""

import atexit
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.shared import end_with_tests, shared

ROOT = Path(__file__).parents[2]
# Nearly all of `tasks`, `xcmodels` and `data_contracts` is imported by `_fill_caches`: Python finds out whether
# `tasks.plan.pipeline` is a module by importing `tasks.plan`.
LIBRARIES = (
    "xcmodels", "torch._dynamo", "great_expectations.expectations", "matplotlib.figure", "distributed", "faiss",
    "mlflow.pyfunc", "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store",
    "pyarrow.parquet", "pyarrow.compute", "scipy.sparse", "tokenizers", "uvicorn", "prefect.main", "prefect.artifacts",
    "prefect.automations", "prefect.runner.storage", "prefect.workers.process", "flows.cli.app",
    "tasks.run_end", "serving.server")
# Modules that import Prefect, so must not be imported before the fork.
IMPORTS_PREFECT = {"flows.deploy", "flows.deployed_flows", "flows.prefect_state", "flows.run"}
OURS = {"data_contracts", "flows", "serving", "tasks", "xcmodels"}
# Prefixes of variables that libraries do not read while they are imported, or set themselves: a forked process may get
# other values.
SAFE_TO_CHANGE = (
    "AWS_", "NO_PROXY", "no_proxy", "PREFECT_", "PYTHONPATH", "XC_", "MLFLOW_", "PYTEST_", "_MLFLOW_", "KMP_",
    "ONEDNN_", "THP_", "TOKENIZERS_", "TORCHINDUCTOR_", "__DASK_", "GOMP_", "MALLOC_", "MKL_", "OPENBLAS_",
    "PYTHONHASHSEED")
MESSAGE = 1 << 20    # bytes at most


def start_xc(*words: str, packages: Path = ROOT, env: Mapping[str, str] | None = None,
             **options: Any) -> subprocess.Popen:
    """Start `xc`; forked, unless its environment has what the libraries read. options: those of Popen."""
    server, usual = _server()
    environment = {**(os.environ if env is None else env), "PYTHONPATH": str(packages)}
    other = {name for name in usual.keys() | environment.keys() if usual.get(name) != environment.get(name)}
    if all(name.startswith(SAFE_TO_CHANGE) for name in other) and not options.get("preexec_fn"):
        return Forked(server, words, env=environment, **options)
    return subprocess.Popen([sys.executable, "-m", "flows.cli", *words], env=environment, **options)


def run_xc(*words: str, stdin: str | None = None, timeout: float = 240, **options: Any) -> tuple[int, str, str]:
    """Run `xc` to its end; return (exit code, stdout, stderr)."""
    with start_xc(*words, stdin=None if stdin is None else subprocess.PIPE, stdout=subprocess.PIPE,
                  stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            out, said = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, out, said


def kill_group(process: subprocess.Popen) -> None:
    """Kill a process and those of its group, unless it has ended; a forked one is gone before `poll` knows."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Forked(subprocess.Popen):
    """A forked process, as Popen shows one that it has started."""

    def __init__(self, server: socket.socket, words: tuple[str, ...], **options: Any) -> None:
        self._server = server
        super().__init__(words, **options)

    def _execute_child(self, *given: Any) -> None:
        options = inspect.signature(super()._execute_child).bind(*given).arguments
        pipes = [options[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        streams = [number if pipe == -1 else pipe for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = [options["args"], options["env"], str(options["cwd"] or Path.cwd()), options["start_new_session"]]
        self._said, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._server, [json.dumps(request).encode()], [*streams, theirs.fileno()])
        self.pid, self._child_created = int(self._said.recv(MESSAGE)), True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags):
        if wait_flags & os.WNOHANG:
            said = select.poll()    # not select, which takes no descriptor above 1,023
            said.register(self._said, select.POLLIN)
            if not said.poll(0):
                return 0, 0
        with self._said:
            return self.pid, int(self._said.recv(MESSAGE))

    def _internal_poll(self, *_, **__):
        if self.returncode is None and (ended := self._try_wait(os.WNOHANG))[0]:
            self._handle_exitstatus(ended[1])
        return self.returncode


@cache
def _server() -> tuple[socket.socket, dict[str, str]]:
    """Connect to what forks, which is started first where no test process has; return the socket, and its environment.
    """
    folder = shared("forked", _start)
    with _address(folder) as address:
        requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        requests.connect(address)
    return requests, json.loads((folder / "environment.json").read_text())


def _start(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(ROOT)}    # a folder that is there
    (folder / "environment.json").write_text(json.dumps(environment))
    with _address(folder) as address, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen()
        end_with_tests(subprocess.Popen([sys.executable, "-m", "tests.support.forked"], stdin=listening,
                                        stdout=listening, cwd=ROOT, env=environment))


@contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Yield the address of the folder's socket, short enough for one wherever the folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}/socket"
    finally:
        os.close(descriptor)


def serve() -> None:
    """Import the libraries; then fork a process for each request of those that connect, and tell how it ends."""
    before = dict(os.environ)
    _import_libraries()
    imported = {name: value for name, value in os.environ.items() if name not in before}
    message, streams, told = _forked(socket.socket(fileno=os.dup(0)))
    words, environment, folder, own_session = json.loads(message)
    with told:
        if own_session:
            os.setsid()
        told.send(str(os.getpid()).encode())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    _become(words, {**imported, **environment}, folder)


def _forked(listening: socket.socket) -> tuple[bytes, list[int], socket.socket]:
    """Fork a process for each request; return in it the request, its streams, and the socket to tell of the process."""
    connected, running = {listening}, dict[int, tuple[int, socket.socket]]()    # by descriptors of processes
    while True:
        ready = select.select([*connected, *running], [], [])[0][0]
        if ready is listening:
            connected.add(listening.accept()[0])
            continue
        if isinstance(ready, int):
            os.close(ready)
            pid, told = running.pop(ready)
            with told, suppress(OSError):    # nobody may wait for it
                told.send(str(os.waitpid(pid, 0)[1]).encode())
            continue
        message, descriptors, _, _ = socket.recv_fds(ready, MESSAGE, 4)
        if not message:    # a test process ended
            connected.remove(ready)
            ready.close()
            continue
        *streams, last = descriptors
        told = socket.socket(fileno=last)
        if (pid := os.fork()) == 0:
            for descriptor in running:
                os.close(descriptor)
            for other in (*connected, *(each for _, each in running.values())):
                other.close()
            return message, streams, told
        running[os.pidfd_open(pid)] = pid, told
        for stream in streams:
            os.close(stream)


def _import_libraries() -> None:
    from tasks.core.python_gc import collect_rarely
    from tasks.tracking.mlflow_client import quiet_mlflow

    collect_rarely()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    quiet_mlflow()
    for name in LIBRARIES:
        importlib.import_module(name)
    _fill_caches()
    assert not IMPORTS_PREFECT & sys.modules.keys()
    gc.collect()
    gc.freeze()    # no process should search what all of them share


def _fill_caches() -> None:
    """Do what each process does once, in a second or two: parse the code, and look for the modules of packages."""
    from mlflow.utils.requirements_utils import _init_modules_to_packages_map

    from tasks.core.code_digest import PACKAGES, code_digests

    files = (path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    code_digests(*(".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files))
    _init_modules_to_packages_map()


class PrefectSettings:
    """Makes Prefect read its settings when it would be imported first, as it does then."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name in IMPORTS_PREFECT:
            from prefect.context import refresh_global_settings_context
            from prefect.logging.configuration import setup_logging

            sys.meta_path.remove(self)
            refresh_global_settings_context()
            setup_logging(incremental=False)


def _become(words: list[str], environment: dict[str, str], folder: str) -> None:
    """Run `python -m flows.cli` in an environment and a folder, and end as Python does, but free nothing before."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:2], sys.argv[1:] = [folder, environment["PYTHONPATH"]], words
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        if environment["PYTHONPATH"] != str(ROOT):
            del sys.modules[name]
    sys.meta_path.insert(0, PrefectSettings())
    code: Any = 0
    try:
        runpy.run_module("flows.cli", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
