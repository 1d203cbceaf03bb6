"""How fast is a step of every method, how much of it is matrix products, and does the device wait for the host?

The batches and the loop are those of training, on a synthetic corpus of WordNet's shape, in the last round of the
method's first stage, with hard negatives drawn at random. "bare": on batches that are on the device already. "kept":
the share of the bare throughput that the loop keeps. "of the card": a step's products over the card's own rate in
bfloat16. "idle": the share of the loop's time for which a step gives the GPU no work. "waits": operations of a step for
which the host waits for a GPU.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.bench_loop import BareSteps, loop_seconds
from benchmarks.gpu.scale import CUDA, Scale, product_rate
from benchmarks.gpu.tables import Row
from benchmarks.gpu.waits import HostWaits, busy_seconds
from benchmarks.measuring import mined_at_random
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined, Stage
from xcmodels.methods.all_methods import METHODS
from xcmodels.methods.presets import PRESETS, flat, resolve
from xcmodels.nn.devices import fast_products

# Methods without the preset `minilm`: the preset and the settings that make them a transformer's.
TRANSFORMERS: Mapping[str, tuple[str, str, dict[str, str]]] = {
    "renee": ("astra", "minilm", {"every_label": "true", "negatives": "random"}),
    **dict.fromkeys(("siamesexml", "siamesexml++"), ("siamesexml", "paper", {"encoder.kind": "transformer"}))}
# What a value of a label table is held in, by the settings of that name where the version has them.
TABLES: Mapping[str, dict[str, str]] = {"float32": {}, "bfloat16": {"table_dtype": "bfloat16"}}
BATCH = ("batch_size", "m1.batch_size", "siamese.batch_size")


def first_stage(name: str, source: str, rows: int | None, changed: Mapping[str, str]) -> Stage[Any]:
    """Return the first stage of a method on a transformer; rows: of a batch, None = as its preset.

    Raises ValueError for a setting that this version does not have.
    """
    method, preset, settings = TRANSFORMERS.get(name, (name, "minilm", {}))
    known = flat(resolve(method, preset, {}))
    sizes = {key: str(rows) for key in BATCH if rows and key in known}
    config = resolve(method, preset, {**settings, "encoder.source": source, **sizes, **changed}).method
    return METHODS[method].make(config).stages[0]


def bare_figures(scale: Scale, stage: Stage[Any], corpus: Corpus, mined: Mined) -> dict[str, Any]:
    """Return the seconds of a bare step, its operations, its waits, and the seconds to make a batch."""
    steps = scale.sizes.steps
    bare = BareSteps(stage, corpus, mined, steps)
    for number in range(min(scale.sizes.warm_up, steps)):
        bare.step(number)
    with HostWaits(bare.numbers_of_steps()) as waits:
        bare.step(0)
    with FlopCounterMode(display=False) as operations:
        bare.step(0)
    scale.wait()
    began = time.perf_counter()
    for number in range(steps):
        bare.step(number)
    scale.wait()
    seconds = (time.perf_counter() - began) / steps
    return {"seconds": seconds, "busy": gpu_seconds_a_step(scale, bare), "operations": operations.get_total_flops(),
            "waits": sum(waits.counts.values()), "making": bare.making}


def gpu_seconds_a_step(scale: Scale, bare: BareSteps) -> float | None:
    """Return the seconds of a step for which a GPU works; None on a CPU.

    They are set against the loop's time, not against that of these steps: a host that is watched launches more slowly.
    """
    if scale.device != CUDA:
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for number in range(scale.sizes.steps):
            bare.step(number)
        scale.wait()
    return busy_seconds(profile) / scale.sizes.steps


def loop_figures(scale: Scale, stage: Stage[Any], corpus: Corpus, mined: Mined) -> tuple[float, float | None]:
    """Return the seconds of a step of the training loop, and the peak memory in gigabytes."""
    first = scale.sizes.warm_up
    scale.forget_memory()
    with tempfile.TemporaryDirectory(dir=scale.scratch) as folder:
        seconds = loop_seconds(stage, corpus, folder, first + scale.sizes.steps, mined, warm_up=first)
    return float(seconds.mean()), scale.peak_memory()


@fast_products()
def row(scale: Scale, stage: Stage[Any], corpus: Corpus) -> dict[str, Any]:
    """Return what is measured of a stage's steps."""
    mined = mined_at_random(stage, corpus)
    seconds, memory = loop_figures(scale, stage, corpus, mined)
    bare, rows = bare_figures(scale, stage, corpus, mined), stage.plan.batch_size_for(len(corpus.training_rows()))
    rate = product_rate(scale.device, scale.sizes.product)
    return {"rows": rows, "examples a second": rows / seconds, "loop ms": 1000 * seconds,
            "bare ms": 1000 * bare["seconds"], "kept": bare["seconds"] / seconds,
            "batch made in ms": 1000 * bare["making"], "T operations": bare["operations"] / 1e12,
            "of the card": bare["operations"] / seconds / rate,
            "idle": None if bare["busy"] is None else 1 - bare["busy"] / seconds, "GB": memory, "waits": bare["waits"]}


def tried(measure: Any) -> dict[str, Any]:
    """Return what `measure()` does, or why it cannot: the size is too large for the memory, or not a setting."""
    try:
        return dict(measure())
    except torch.OutOfMemoryError:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return {"note": "out of memory"}
    except (ValueError, FloatingPointError) as error:
        return {"note": str(error).partition("\n")[0][:160]}


def rows(scale: Scale) -> Iterator[Row]:
    """Yield a row for each method, by each size of encoder; those on metadata graphs are in the part `presets`."""
    corpus = scale.synthetic("corpus", scale.sizes.corpus)
    for size in scale.sizes.encoders:
        source = str(scale.encoder(size))
        for name in PRESETS:
            about = {"method": name, "encoder": size}
            if name.startswith("ramen"):
                yield about | {"note": "needs metadata graphs"}
                continue
            yield about | tried(lambda name=name, source=source: row(
                scale, first_stage(name, source, scale.sizes.rows, {}), corpus))
