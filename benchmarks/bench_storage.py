"""How long do data and results take to and from an S3 server on this machine (moto's)?

    python -m benchmarks.bench_storage DATA HOME

DATA is a raw data set, HOME one whose runs made results. Seconds of the first fetch of the data, of one that was cut
off half way, and of the next run's look at it; then of publishing each kind of result of HOME, of the request that
tells that it is there, and of fetching everything into an empty home. Files are compared with their sha256 throughout.
The server is a process in Python, which bounds the rates: a real one is faster, and further away.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec

from benchmarks.arguments import Folder, run
from benchmarks.measuring import timed
from tasks.core.network import free_port
from tasks.core.shared_store import SharedStore
from tasks.core.store import Store
from tasks.data.fetch import CACHE, fetched

BUCKET = "bench"


@contextmanager
def server() -> Iterator[None]:
    """Run moto's server on a free port, with the environment by which it is reached and an empty bucket."""
    port = free_port()
    os.environ |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "bench",
                   "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": "us-east-1"}
    with subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(100):
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.2)
            fsspec.filesystem("s3").mkdir(BUCKET)
            yield
        finally:
            process.terminate()


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure_data(data: Path, scratch: Path) -> None:
    """Print the times of the data set at an address."""
    fsspec.filesystem("s3").put(str(data), f"{BUCKET}/data", recursive=True)
    home = Store(scratch / "home").home
    address = f"s3://{BUCKET}/data"
    copy, seconds = timed(lambda: fetched(address, home))
    print(f"first fetch, {size(copy) / 1e6:.1f} MB of {len(list(copy.iterdir()))} files: {seconds:.2f} s")
    print(f"the same again, nothing fetched: {timed(lambda: fetched(address, home))[1]:.2f} s")
    os.rename(copy.parent, home / CACHE / f"{copy.parent.name}.part")
    files = sorted((home / CACHE).glob("*.part/*/*"), key=lambda path: path.stat().st_size)
    for path in files[-1:]:
        os.truncate(path, path.stat().st_size // 2)
    print(f"half of the largest file missing: {timed(lambda: fetched(address, home))[1]:.2f} s")


def measure_results(source: Path, scratch: Path) -> None:
    """Print the times of publishing and fetching the results of a home, which is copied, by kind of step."""
    home = scratch / "copy"
    shutil.copytree(source / "objects", home / "objects")
    for name in ("FORMAT", "refs/steps"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (source / name).is_dir() else shutil.copy)(source / name, home / name)
    home.chmod(0o700)
    store, keys = SharedStore(home, f"s3://{BUCKET}/results"), [key for key, _ in Store(home).steps()]
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for key in keys:
        if (artifact := Store(home).find(key)) is not None and not store.lacks_files(artifact):
            hashed = timed(lambda key=key: store.find_unfetched(key))[1]
            seconds = timed(lambda key=key: store.find(key))[1] - hashed
            rows[store.manifest(artifact)["kind"]].append((seconds, size(home / artifact.path)))
    for kind, published in rows.items():
        seconds, bytes_ = (sum(column) for column in zip(*published, strict=True))
        print(f"{kind}: {len(published)} published, {bytes_ / 1e6:.1f} MB, {seconds:.2f} s")
    again = SharedStore(home, f"s3://{BUCKET}/results")
    known = timed(lambda: [again._named(key) for key in keys])[1]
    print(f"that one is there: {known / len(keys):.3f} s")
    other = SharedStore(scratch / "other", f"s3://{BUCKET}/results")
    _, seconds = timed(lambda: [other.find(key) for key in keys])
    print(f"into an empty home, what a run fetches, {size(other.home / 'objects') / 1e6:.1f} MB: {seconds:.2f} s")
    _, seconds = timed(lambda: [other.restore(artifact) for key in keys if (artifact := other.find_unfetched(key))])
    print(f"and the rest, {size(other.home / 'objects') / 1e6:.1f} MB in all: {seconds:.2f} s")


def main(data: Folder, home: Folder) -> None:
    """Measure both in a temporary folder beside HOME."""
    with tempfile.TemporaryDirectory(prefix="xc-bench-", dir=home.absolute().parent) as scratch, server():
        measure_data(data, Path(scratch))
        measure_results(home, Path(scratch))


if __name__ == "__main__":
    run(main, __doc__)
