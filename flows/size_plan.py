"""Memory, disk and time that a method needs for data of a size: `xc plan --labels`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

import psutil

from data_contracts.errors import ProjectError, UsageError
from tasks.core.devices import free_space
from tasks.core.wording import duration
from xcmodels.method import Method
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import resolve
from xcmodels.resources import (
    DEVICE,
    DISK,
    HOST,
    MACHINE,
    RATES,
    Estimate,
    Size,
    estimate,
    rates_file,
    read_rates,
    with_width,
)

NAMES = {DEVICE: "a GPU", HOST: "the host", DISK: "the disk"}
TIME = "time"
HELP = {
    DEVICE: "more GPUs (--gpus, --nodes: label vectors and moments are shared by rows), shorter vectors (--dim), or a "
            "method whose label vectors have one moment and not two (astra)",
    HOST: "a host with as much memory, shorter vectors (--dim), a larger part of what is asked of it left to the "
          "files (swap), or fewer points: what is listed is of every point or label",
    DISK: "a larger disk (--home), fewer rounds (refresh_every), and xc gc between runs",
    TIME: "refreshes further apart (refresh_every), fewer points, or where index=exact is set index=auto; index=hnsw "
          "does not look at every label but takes long to build, and its time is not known",
}


@dataclass(frozen=True)
class Sizing:
    """A size, the estimate of what it needs, and what is available, in bytes by place.

    rates: the file of measured speeds; machine: what they were measured on, "" where the file does not say.
    """

    title: str
    size: Size
    estimate: Estimate
    available: Mapping[str, float]
    rates: Path
    machine: str

    @property
    def shares(self) -> dict[str, float]:
        """The share of what is available that is needed, by place; for time, a refresh over the time between two."""
        out = {place: sum(part.size for part in parts if not part.mapped) / self.available[place]
               for place in self.available if (parts := self.estimate.held(place))}
        if self.estimate.epoch and self.estimate.refresh:
            out[TIME] = self.estimate.refresh / (self.estimate.epoch * self.estimate.every)
        return out

    def lines(self) -> list[str]:
        """Return the estimate for people: each place with its parts by size, times, and what runs out first."""
        size, shares = self.size, self.shares
        on = f"{size.gpus} GPUs" if size.gpus > 1 else "one GPU" if size.gpus else "the CPU"
        on += f" of each of {size.machines} machines" if size.machines > 1 else ""
        out = [f"{self.title} on {on}: {size.labels:,} labels, {size.points:,} points with {size.positives:g} labels "
               f"each, {size.tokens:g} tokens a text", ""]
        for place, available in self.available.items():
            if parts := sorted(self.estimate.held(place), key=lambda part: -part.size):
                need = sum(part.size for part in parts if not part.mapped)
                out.append(f"{NAMES[place]:<10}{_bytes(need):>10} of {_bytes(available)}, {100 * shares[place]:,.0f}%")
                out += [f"    {_bytes(part.size):>10}  {part.phase or 'always'}: {part.what}" for part in parts]
        out += ["", *self._times(), "", *self._bottleneck()]
        return out

    def _times(self) -> list[str]:
        command = f"python -m benchmarks.bench_rates HOME/{RATES.name}"
        if self.estimate.epoch is None:
            where = "a GPU" if self.size.gpus else "a CPU"
            return [f"time      not known: {self.title} was not measured on {where}",
                    f"          {command} there measures astra, unidec and ngame on bags of tokens"]
        stage = f" of its stage {self.estimate.timed}" if self.estimate.timed else ""
        out = [f"an epoch  {duration(self.estimate.epoch)}{stage}"]
        if self.estimate.refresh is not None:
            out.append(f"a refresh {duration(self.estimate.refresh)}, every {self.estimate.every} epochs")
        elif self.estimate.every:
            out.append("a refresh not known: there are rates of a search with index=auto, exact and grouped alone")
        if self.machine:
            out.append(f"          on {self.machine}")
        if self.rates == RATES:
            out.append(f"          {command} measures yours")
        return out

    def _bottleneck(self) -> list[str]:
        place, share = max(self.shares.items(), key=lambda item: item[1])
        what = {TIME: "the time of a refresh", DISK: "disk"}.get(place, f"the memory of {NAMES.get(place)}")
        verdict = f"first to give way: {what}, {share:,.1f} times what there is" if share > 1 else \
            f"it fits; tightest is {what}, {100 * share:.0f}% of what there is"
        return [verdict, *([f"what helps: {HELP[place]}"] if share > 1 else [])]

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as plain data; sizes in bytes, times in seconds."""
        return {"size": asdict(self.size), "parts": [asdict(part) for part in self.estimate.parts],
                "there": dict(self.available), "shares": self.shares, "epoch": self.estimate.epoch,
                "refresh": self.estimate.refresh, "timed": self.estimate.timed, "rates": str(self.rates),
                "machine": self.machine}


def sizing(method: str, preset: str, settings: dict[str, str], size: Size, *, width: int | None, home: Path,
           gpu_memory: float) -> Sizing:
    """Return what a method would need; gpu_memory: GB of a GPU. Raises UsageError for invalid values."""
    for name in ("labels", "points"):
        if (value := getattr(size, name)) < 1:
            raise UsageError(f"--{name} must be at least 1, got {value}", hint="xc plan --labels 1000000 "
                             "--points 2000000 --dim 64 --gpus 1")
    if (width is not None and width < 1) or size.gpus < 0:
        raise UsageError(f"--dim must be at least 1 and --gpus at least 0, got {width or 0} and {size.gpus}")
    for name, number in (("gpu-memory", gpu_memory), ("positives", size.positives), ("tokens", size.tokens)):
        if not 0 < number < inf:
            raise UsageError(f"--{name} must be a number above 0, got {number:g}", hint="leave it out for its default")
    rates = rates_file(home)
    try:
        measured = read_rates(rates)
    except ValueError as error:
        raise ProjectError(str(error)) from error
    try:
        config = with_width(resolve(method, preset, settings).method, width)
        built: Method = METHODS[method].make(config)
        needed = estimate(built, size, measured)
    except ValueError as error:
        raise UsageError(str(error), hint="xc presets") from error
    available = {HOST: float(psutil.virtual_memory().total), DISK: float(free_space(home))}
    if size.gpus:
        available = {DEVICE: gpu_memory * 1e9, **available}
    machine = measured.get(MACHINE, {}).get("cuda" if size.gpus else "cpu", "")
    return Sizing(f"{method}, preset {preset}, vectors of {built.width}", size, needed, available, rates, machine)


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.0f} MB"
