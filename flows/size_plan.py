"""What a method would take at a size, against what there is: for `xc plan --labels`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from data_contracts.errors import ProjectError, UsageError
from tasks.core.devices import free_space
from tasks.core.wording import span
from xcmodels.method import Method
from xcmodels.methods.presets import resolve
from xcmodels.methods.registry import METHODS
from xcmodels.resources import (
    DEVICE,
    DISK,
    HOST,
    RATES,
    Budget,
    Size,
    budget,
    rates_file,
    read_rates,
    with_width,
)

NAMES = {DEVICE: "a GPU", HOST: "the host", DISK: "the disk"}
TIME = "time"
HELP = {
    DEVICE: "more GPUs (--gpus: label vectors and moments are shared by rows), shorter vectors (--dim), or a method "
            "whose label vectors have one moment and not two (astra)",
    HOST: "a host with as much memory, shorter vectors (--dim), a larger part of what is asked of it left to the "
          "files (swap), or fewer points: what is listed is of every point or label",
    DISK: "a larger disk (--home), fewer rounds (refresh_every), and xc gc between runs",
    TIME: "refreshes further apart (refresh_every), fewer points, or index=hnsw, which does not look at every label "
          "but takes long to build and was not measured at such a size",
}


@dataclass(frozen=True)
class Sizing:
    """What was asked, what it takes, and what there is: bytes by place; `rates`, the file that times follow from."""

    called: str
    size: Size
    budget: Budget
    there: Mapping[str, float]
    rates: Path

    @property
    def shares(self) -> dict[str, float]:
        """How much of what there is is taken, by place; of the time between two refreshes, by one."""
        out = {where: sum(part.size for part in held if not part.mapped) / self.there[where]
               for where in self.there if (held := self.budget.held(where))}
        if self.budget.epoch and self.budget.refresh:
            out[TIME] = self.budget.refresh / (self.budget.epoch * self.budget.every)
        return out

    def lines(self) -> list[str]:
        """Return it for people: a line a place, with its parts by size; times; what gives way first."""
        size, shares = self.size, self.shares
        on = f"{size.gpus} GPUs" if size.gpus > 1 else "one GPU" if size.gpus else "the CPU"
        out = [f"{self.called} on {on}: {size.labels:,} labels, {size.points:,} points with {size.positives:g} labels "
               f"each, {size.tokens:g} tokens a text", ""]
        for where, there in self.there.items():
            if held := sorted(self.budget.held(where), key=lambda part: -part.size):
                taken = sum(part.size for part in held if not part.mapped)
                out.append(f"{NAMES[where]:<10}{_bytes(taken):>10} of {_bytes(there)}, {100 * shares[where]:,.0f}%")
                out += [f"    {_bytes(part.size):>10}  {part.phase or 'always'}: {part.what}" for part in held]
        out += ["", *self._times(), "", *self._first()]
        return out

    def _times(self) -> list[str]:
        own = f"python -m benchmarks.bench_rates HOME/{RATES.name}"
        if self.budget.epoch is None:
            where = "a GPU" if self.size.gpus else "a CPU"
            return [f"time      not known: {self.called} was not measured on {where}",
                    f"          {own} there measures astra, unidec and ngame on bags of tokens"]
        out = [f"an epoch  {span(self.budget.epoch)}"]
        if self.budget.refresh is not None:
            out.append(f"a refresh {span(self.budget.refresh)}, every {self.budget.every} epochs")
        if self.rates == RATES:
            out += ["          on two processors of an AMD EPYC of 2024; one of 2021 takes two to three times as long",
                    f"          {own} measures yours"]
        return out

    def _first(self) -> list[str]:
        where, share = max(self.shares.items(), key=lambda each: each[1])
        what = {TIME: "the time of a refresh", DISK: "disk"}.get(where, f"the memory of {NAMES.get(where)}")
        said = f"first to give way: {what}, {share:,.1f} times what there is" if share > 1 else \
            f"it fits; tightest is {what}, {100 * share:.0f}% of what there is"
        return [said, *([f"what helps: {HELP[where]}"] if share > 1 else [])]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; sizes in bytes, times in seconds."""
        return {"size": asdict(self.size), "parts": [asdict(part) for part in self.budget.parts],
                "there": dict(self.there), "shares": self.shares, "epoch": self.budget.epoch,
                "refresh": self.budget.refresh, "rates": str(self.rates)}


def sizing(method: str, preset: str, settings: dict[str, str], size: Size, *, width: int | None, home: Path,
           gpu_memory: float) -> Sizing:
    """Return what a method would take; UsageError for what is invalid."""
    for name in ("labels", "points"):
        if (value := getattr(size, name)) < 1:
            raise UsageError(f"--{name} must be at least 1, got {value}", hint="xc plan --labels 1000000 "
                             "--points 2000000 --dim 64 --gpus 1")
    if (width is not None and width < 1) or size.gpus < 0:
        raise UsageError(f"--dim must be at least 1 and --gpus at least 0, got {width or 0} and {size.gpus}")
    rates = rates_file(home)
    try:
        measured = read_rates(rates)
    except ValueError as error:
        raise ProjectError(str(error)) from error
    try:
        config = with_width(resolve(method, preset, settings).method, width)
        made: Method = METHODS[method].make(config)
        found = budget(made, size, measured)
    except ValueError as error:
        raise UsageError(str(error), hint="xc presets") from error
    there = {HOST: float(psutil.virtual_memory().total), DISK: float(free_space(home))}
    if size.gpus:
        there = {DEVICE: gpu_memory * 1e9, **there}
    return Sizing(f"{method}, preset {preset}, vectors of {made.width}", size, found, there, rates)


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.0f} MB"
