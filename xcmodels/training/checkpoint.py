"""Checkpoints: a model, its optimisers and the position in training.

Every draw is keyed by its purpose (`seeds`), so no generator's state is saved. A file holds the same tensors whether
one process or several wrote it, each its rows of the label tables; only their order differs. Any number of processes
can read it. Of several machines, the first one has the files.
"""

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from xcmodels.data.corpus import Corpus
from xcmodels.method import Stage
from xcmodels.nn import distributed
from xcmodels.nn.row_table import Model, RowTable
from xcmodels.training.optimisers import Optimisers, RowRanges

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Model)

MODEL, OPTIMISER = "model.safetensors", "optimiser.safetensors"
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64",
           torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


def row_ranges_of(model: nn.Module) -> RowRanges:
    """Return which tensors of a model's state hold only a range of the rows of a larger one."""
    tables = {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, RowTable)}
    return {name: (table.first, table.n) for name, table in tables.items() if not table.holds_all_rows}


def save_model(model: nn.Module, folder: Path) -> None:
    write(folder / MODEL, model.state_dict(), row_ranges_of(model))


def load_model(model: nn.Module, folder: Path) -> None:
    """Read a model's tensors from `folder`, which must hold all of them and no others."""
    model.load_state_dict(read(folder / MODEL, row_ranges_of(model)))


def read_model(stage: Stage[M], corpus: Corpus, folder: Path | None,
               vectors: Mapping[str, np.ndarray] | None = None) -> M:
    """Return a stage's model from a saved one in `folder`, on the CPU; `vectors` as in `Stage.build`.

    folder: None = the model that a method's first stage begins with.
    """
    model = stage.build(corpus, vectors or {})
    if folder is None:
        stage.begin(model, corpus, None)
    else:
        load_model(model, folder)
    return model


def dense_digest(model: nn.Module) -> str:
    """Return the sha256 of the weights that every process holds."""
    digest, divided = hashlib.sha256(), row_ranges_of(model)
    for name, value in model.state_dict().items():
        if name not in divided:
            digest.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_part(module: nn.Module, folder: Path) -> None:
    """Read a saved model into a module that has all of its tensors and more, which stay unchanged."""
    unknown = module.load_state_dict(load_file(folder / MODEL), strict=False).unexpected_keys
    if unknown:
        raise ValueError(f"{folder / MODEL} has tensors that the model has not: {', '.join(unknown)}")


def write(path: Path, tensors: Mapping[str, torch.Tensor], row_ranges: RowRanges,
          metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, jointly with the processes that hold the other rows of the tensors in `row_ranges`."""
    if distributed.count() == 1:
        save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata=dict(metadata or {}))
        return
    shapes = {name: [row_ranges[name][1], *value.shape[1:]] if name in row_ranges else list(value.shape)
              for name, value in tensors.items()}
    offsets, end = {}, 0
    for name, value in tensors.items():
        offsets[name] = [end, end := end + math.prod(shapes[name]) * value.element_size()]
    header = json.dumps({"__metadata__": dict(metadata or {}), **{
        name: {"dtype": _DTYPES[value.dtype], "shape": shapes[name], "data_offsets": offsets[name]}
        for name, value in tensors.items()}}).encode()
    header += b" " * (-len(header) % 8)
    begin = 8 + len(header)
    if distributed.rank() == 0:
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(begin + end)
    distributed.wait()
    with (path if distributed.is_on_first_machine() else Path(os.devnull)).open("rb+") as file:
        for name, value in tensors.items():
            row_bytes = math.prod(value.shape[1:]) * value.element_size()
            held = distributed.rows_for_first_machine(value.detach(), row_ranges[name][1]) if name in row_ranges else \
                [(0, value.detach())] if distributed.rank() == 0 else []
            for first, rows in held:
                file.seek(begin + offsets[name][0] + first * row_bytes)
                file.write(rows.cpu().reshape(-1).view(torch.uint8).numpy().data)
    distributed.wait()


def read(path: Path, row_ranges: RowRanges) -> dict[str, torch.Tensor]:
    """Read a safetensors file; of the tensors in `row_ranges`, only this process's rows."""
    if distributed.count() == 1:
        return load_file(path)
    with safe_open(path, "pt") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: part[distributed.shard(part.get_shape()[0])] if name in row_ranges else file.get_tensor(name)
                for name, part in parts.items()}


@dataclass
class Position:
    """The position in training: the epoch, its next step, its sum of losses, and the metrics of earlier epochs."""

    epoch: int
    step: int = 0
    loss: float = 0.0
    epochs: list[dict[str, float]] | None = None


class StepCheckpoints:
    """The newest state inside a round, in a scratch folder: one file, named by step and sha256.

    A file whose digest does not match its name is ignored; the round then starts from its beginning. saved: when the
    newest was written, or this made, by time.monotonic.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.saved = folder, time.monotonic()
        if distributed.rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for unfinished in folder.glob("part.*"):
                unfinished.unlink()
        distributed.wait()

    def save(self, position: Position, model: nn.Module, optimisers: Optimisers) -> None:
        """Replace the newest checkpoint by this state."""
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        tensors |= {f"optimiser.{name}": value for name, value in optimisers.state().items()}
        part = self.folder / f"part.{distributed.broadcast(os.getpid())}"
        write(part, tensors, _row_ranges(model, optimisers), {"position": json.dumps(asdict(position))})
        if distributed.rank() == 0:
            self._name(part, position)
        distributed.wait()
        self.saved = time.monotonic()

    def _name(self, part: Path, position: Position) -> None:
        """Give a completely written checkpoint its name, and remove the previous one."""
        with part.open("rb+") as handle:
            os.fsync(handle.fileno())
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        old = self._files()
        new = part.rename(self.folder / f"{position.epoch:06d}-{position.step:09d}-{digest}.safetensors")
        for file in old:
            if file != new:    # a damaged file has the name of the sound one that replaces it
                file.unlink(missing_ok=True)

    def restore(self, model: nn.Module, optimisers: Optimisers) -> Position | None:
        """Load the newest sound checkpoint into `model` and `optimisers`; return its position, None without one."""
        distributed.copy_to_other_machines(self.folder)
        for file in reversed(self._files()):
            with file.open("rb") as handle:
                if hashlib.file_digest(handle, "sha256").hexdigest() != file.stem.rpartition("-")[2]:
                    log.warning("checkpoint %s is damaged and passed over", file)
                    continue
            try:
                return self._load(file, model, optimisers)
            except (SafetensorError, KeyError, RuntimeError, TypeError, ValueError) as error:
                log.warning("checkpoint %s does not fit and is passed over: %s", file, error)
        return None

    def _load(self, file: Path, model: nn.Module, optimisers: Optimisers) -> Position:
        flat = read(file, _row_ranges(model, optimisers))
        with safe_open(file, "pt") as handle:
            position = Position(**json.loads(handle.metadata()["position"]))
        parts: dict[str, dict[str, torch.Tensor]] = {"model": {}, "optimiser": {}}
        for name, value in flat.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = value
        # compared before anything is loaded, so that an ignored file leaves the model unchanged
        for kind, state in (("model", model.state_dict()), ("optimiser", optimisers.rows_state())):
            shapes = {name: value.shape for name, value in parts[kind].items()}
            if wrong := [name for name, value in state.items() if shapes.get(name) != value.shape]:
                raise ValueError(f"{kind} tensor {wrong[0]} is missing or of another shape")
        model.load_state_dict(parts["model"])
        optimisers.restore(parts["optimiser"])
        return position

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*-*-*.safetensors"))


def _row_ranges(model: nn.Module, optimisers: Optimisers) -> RowRanges:
    """Return which tensors of a step checkpoint hold only a range of the rows of a larger one."""
    by_kind = {"model": row_ranges_of(model), "optimiser": optimisers.row_ranges()}
    return {f"{kind}.{name}": part for kind, ranges in by_kind.items() for name, part in ranges.items()}
