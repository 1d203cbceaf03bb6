"""How fast does the device train and encode with a bag of tokens? `xc plan --gpus 1` counts with these rates.

Written to rates.json beside the tables, with the processor's packaged rates: HOME/rates.json takes precedence there.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench_rates import METHOD_NAMES, WIDTHS, training_rates, write_rates
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.tables import Row
from xcmodels.resources import GPU_KINDS, read_rates

SMALL_WIDTHS = (8, 16)


def rows(folder: Path, scale: Scale) -> Iterator[Row]:
    """Yield a row for each method and width, and write all rates where they are of a GPU and of its full size.

    folder: of rates.json.
    """
    corpus = scale.synthetic("rates", scale.sizes.rates)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in METHOD_NAMES:
        for width in SMALL_WIDTHS if scale.small else WIDTHS:
            scale.forget_memory()
            measured, _ = training_rates(name, width, corpus, scale.scratch, scale.sizes.steps + 4)
            found.setdefault(name, {})[str(width)] = {kind: float(f"{measured[kind]:.3g}") for kind in GPU_KINDS}
            yield {"method": name, "width": width, "us a point trained": 1e6 * measured["train"],
                   "us a text encoded": 1e6 * measured["encode"], "GB": scale.peak_memory()}
    if not scale.small and scale.device != "cpu":
        write_rates(folder / "rates.json", read_rates(), found)
