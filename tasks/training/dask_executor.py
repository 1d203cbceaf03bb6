"""Arrays computed on a run's Dask workers: only paths and cuts pass through Dask, arrays are files."""

import math
import os
import shutil
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from tasks.core.dask_workers import Workers
from tasks.core.step import StepContext
from tasks.core.wording import plural
from xcmodels.data.corpus import Corpus
from xcmodels.data.executor import IN_PROCESS, Executor, RowFunction
from xcmodels.mining.label_index import LabelIndex
from xcmodels.mining.refresh import load_index
from xcmodels.nn.devices import fast_products
from xcmodels.training.frozen_layers import with_states

Result = TypeVar("Result")
# Of a worker: what computes rows of the array that it works at, for its next jobs.
_prepared: dict[Path, RowFunction] = {}
SMALL = 1 << 19        # rows of a corpus, queries and labels, below which a worker's imports take longer than it saves
JOB_ROWS = 1 << 14     # rows of a job, at most, where its ranges are not larger


def executor_for(context: StepContext, corpus: Corpus) -> Executor:
    """Return where a step's arrays are computed: on the run's workers, or in this process where they are not faster.

    Embedded workers would share the GPU of the run.
    """
    shared_gpu = torch.cuda.is_available() and context.workers.are_embedded
    if shared_gpu or context.workers.is_serial or len(corpus.sides["train"]) + corpus.n_labels < SMALL:
        return IN_PROCESS
    context.scratch.mkdir(parents=True, exist_ok=True)
    for left in context.scratch.glob("shards-*"):    # by a killed run
        shutil.rmtree(left, ignore_errors=True)
    return DaskExecutor(context.workers, Path(tempfile.mkdtemp(prefix="shards-", dir=context.scratch)), context.say)


class DaskExecutor(Executor):
    """Computes arrays on Dask workers, into files of `folder`; a lost worker's rows are computed again.

    say: gets a line for each array: what was computed, and the seconds. All workers must be able to read and write
    the folder.
    """

    def __init__(self, workers: Workers, folder: Path, say: Callable[[str], None]) -> None:
        self.workers, self.folder, self.say = workers, folder, say
        self._numbers = count()
        self._sent: list[tuple[Any, _File]] = []    # what workers can open already

    def compute_rows(self, name: str, make: Callable[..., RowFunction], cuts: Sequence[int],
                     *shared: Any) -> np.ndarray:
        began, path, files = time.monotonic(), self._new(".npy"), [self._file(value) for value in shared]
        jobs = [(path, make, files, part, cuts[-1]) for part in _grouped(cuts)]
        for _ in self.workers.map(_write_ranges, jobs, lambda job: f"{name} {job[3][0]:,} to {job[3][-1]:,}"):
            pass
        self.workers.everywhere(_forget)
        self.say(f"{name}: {plural(cuts[-1], 'row')} in {plural(len(jobs), 'job')} on Dask, "
                 f"{time.monotonic() - began:.1f} s")
        return _mapped(path)

    def call(self, name: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a worker made of files that all map: an index."""
        began, folder = time.monotonic(), self._new("")
        self.workers.call(_make_index, folder, function, [self._file(value) for value in arguments])
        made: Any = load_index(folder)
        self._sent.append((made, _File(load_index, folder)))
        self.say(f"{name}: on Dask, {time.monotonic() - began:.1f} s")
        return made

    def save(self, path: Path, array: np.ndarray) -> None:
        """Move the file of an array to `path`; what has mapped it keeps it."""
        if (file := _whole_file(array)) is not None and file.parent == self.folder:
            os.replace(file, path)
        else:
            np.save(path, array)

    def _file(self, value: Any) -> Any:
        """Return what a worker opens as `value`, written if it is not yet in a file; other values as they are."""
        if isinstance(value, Corpus):
            return _File(partial(_corpus, value.states), value.folder)
        for sent, file in self._sent:
            if sent is value:
                return file
        if isinstance(value, LabelIndex):
            raise TypeError("an index that workers share is made by `call`")
        if not isinstance(value, np.ndarray):
            return value
        if (path := _whole_file(value)) is None:
            np.save(path := self._new(".npy"), value)
        self._sent.append((value, _File(_mapped, path)))
        return self._sent[-1][1]

    def _new(self, suffix: str) -> Path:
        return self.folder / f"{next(self._numbers)}{suffix}"


@dataclass(frozen=True)
class _File:
    """A value that a worker opens."""

    open: Callable[[Path], Any]
    path: Path


def _corpus(states: Path | None, folder: Path) -> Corpus:
    return with_states(Corpus(folder), states)


def _mapped(path: Path) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="r")
    return array


def _whole_file(array: np.ndarray) -> Path | None:
    """Return the .npy file that an array maps, all of it; None where it is not one."""
    if isinstance(array, np.memmap) and array.filename is not None and str(array.filename).endswith(".npy"):
        whole: Any = _mapped(Path(array.filename))
        if (whole.shape, whole.dtype, whole.offset) == (array.shape, array.dtype, array.offset):
            return Path(array.filename)
    return None


def _grouped(cuts: Sequence[int]) -> list[list[int]]:
    """Return the cuts of each job: ranges in a row, as many as have JOB_ROWS rows, but at least one."""
    parts, first = [], 0
    while first < len(cuts) - 1:
        last = max(bisect_right(cuts, cuts[first] + JOB_ROWS) - 1, first + 1)
        parts.append(list(cuts[first:last + 1]))
        first = last
    return parts


def _opened(values: Sequence[Any]) -> list[Any]:
    return [value.open(value.path) if isinstance(value, _File) else value for value in values]


@fast_products()
def _write_ranges(path: Path, make: Callable[..., RowFunction], shared: Sequence[Any], cuts: Sequence[int],
                  total: int) -> None:
    """Compute consecutive ranges and write each at its place in `path`. Runs on a worker, and again if it is lost."""
    if path not in _prepared:
        _prepared.clear()    # first, so that no two models are held
        _prepared[path] = make(*_opened(shared))
    part = _prepared[path]    # which another array's end may forget meanwhile
    for low, high in pairwise(cuts):
        _write_rows(path, part(low, high), low, total)


def _forget() -> None:
    """Free what computed an array: a model, which may be on a GPU, and mapped files."""
    _prepared.clear()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _write_rows(path: Path, rows: np.ndarray, low: int, total: int) -> None:
    """Write rows low: of an array of `total` rows, which others write too, to a file as `np.save` makes it."""
    with open(path, "wb", opener=lambda name, _: os.open(name, os.O_WRONLY | os.O_CREAT, 0o666)) as file:
        np.lib.format.write_array_header_1_0(file, {    # the same by every job
            "descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False,
            "shape": (total, *rows.shape[1:])})
        file.seek(file.tell() + low * rows.itemsize * math.prod(rows.shape[1:]))
        file.write(np.ascontiguousarray(rows).data)


@fast_products()
def _make_index(folder: Path, function: Callable[..., LabelIndex], arguments: Sequence[Any]) -> None:
    """Write the index that `function` makes to a folder. Runs on a worker, and again if it is lost."""
    function(*_opened(arguments)).save(folder)
