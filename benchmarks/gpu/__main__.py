"""Everything that a GPU does, measured in ten minutes; a table a question.

    python -m benchmarks.gpu [--device cuda] [--parts steps,mining] [--data FOLDER] [--out gpu-day] [--minutes 10]
    python -m benchmarks.gpu --device cpu --small --out tried

Parts: card, steps, classifiers, mining, presets, rates. OUT/gpu.json and OUT/gpu.md are written after every row, so
that a part that fails, takes longer than its share of the minutes, or is killed, loses alone what it had not measured.
A folder that has such files is refused, as they would be lost.
Nothing is fetched but WordNet, which the part `presets` trains on; where there is no network, --data names a raw data
set or a packed corpus (the folder of a corpus.json in HOME/objects) in its place. --small measures nothing: it tries
every part in seconds.
"""

import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import torch

from benchmarks.arguments import Count, Folder, checked, parsed_by, run
from benchmarks.gpu import card, classifiers, mining, presets, rates, steps
from benchmarks.gpu.scale import CUDA, SMALL, WHOLE, Scale
from benchmarks.gpu.tables import JSON, MARKDOWN, Part, Results, by_names
from data_contracts.errors import UsageError
from tasks.core.signals import handled
from tasks.data.sources import describe

MINUTES = 10    # of all parts together
NAMES = "card,steps,classifiers,mining,presets,rates"


def all_parts(out: Path) -> list[Part]:
    """Return the parts, each with its seconds of ten minutes."""
    measured = ((card, 15), (steps, 150), (classifiers, 50), (mining, 45), (presets, 290))
    return [*(Part(module.__name__.rpartition(".")[2], (module.__doc__ or "").partition("\n")[0], seconds, module.rows)
              for module, seconds in measured),
            Part("rates", "How fast does the device train and encode with a bag of tokens (xc plan --gpus 1)?", 50,
                 partial(rates.rows, out))]


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after some seconds."""
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    with handled(stop, signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def about(scale: Scale) -> dict[str, object]:
    """Return what the figures are of: machine, versions, sizes."""
    gpu = torch.cuda.get_device_properties(0) if scale.device == CUDA else None
    return {"device": f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB" if gpu else platform.processor() or "a processor",
            "processors": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version(),
            "small": scale.small, "says": "one run of each, the card as it was found" if gpu and not scale.small
            else "nothing of a GPU: only that every part runs"}


def named_parts(word: str) -> str:
    """Check the names of parts; raise ValueError for one that is unknown."""
    by_names(all_parts(Path()), word)
    return word


def main(*, device: Literal["cuda", "cpu"] = "cuda", small: bool = False,
         parts: Annotated[str, parsed_by(named_parts)] = NAMES, data: Folder | None = None,
         out: Annotated[Path, checked(Path, lambda path: not path.is_file(), "{!r} is a file")] = Path("gpu-day"),
         minutes: Count = MINUTES) -> None:
    """Measure the parts and print a table each."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise UsageError("torch sees no GPU here", hint="--device cpu --small tries every part without one")
    if data and not (data / "corpus.json").exists():
        describe(data)    # an error now, not in the last part but one
    if (out / JSON).exists():
        raise UsageError(f"{out} has results already, which would be lost", hint="--out NEW names another folder")
    out.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="xc-gpu-"))
    scale = Scale(device, SMALL if small else WHOLE, scratch, data, .01 if small else minutes / MINUTES)
    results = Results(out, about(scale))
    try:
        for part in by_names(all_parts(out), parts):
            table = results.measure(part, scale, lambda seconds: within(seconds * minutes / MINUTES))
            print("\n".join([*table.lines(), ""]), flush=True)
            scale.forget_memory()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"written to {out / JSON} and {out / MARKDOWN}", file=sys.stderr)


if __name__ == "__main__":
    run(main, __doc__)
