"""The frozen layers of a transformer, run once for every text of a corpus: training begins at the layers above."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from xcmodels.checks import Unusable
from xcmodels.data.corpus import Corpus, Ragged, Side
from xcmodels.data.frozen_states import FrozenStates
from xcmodels.nn.devices import device
from xcmodels.nn.encoder_config import QUERY, EncoderConfig
from xcmodels.nn.transformer import Transformer, build_transformer

ALWAYS = ("train", "label")    # sides whose states are written, whatever else is
TRIED = 4    # of a side's longest texts, and of its shortest, encoded both ways before any state is kept
REMEDY = "set encoder.cache_frozen=false"


def with_states(corpus: Corpus, folder: Path | None) -> Corpus:
    """Return a corpus whose sides have the states in a folder that `write_states` wrote; None = none have any."""
    def opened(name: str, side: Side) -> Side:
        if folder is None or (name not in ALWAYS and not (folder / f"{name}.offsets.npy").exists()):
            return replace(side, states=None)
        return replace(side, states=Ragged.load(folder, name))

    made = copy(corpus)
    made.sides = {name: opened(name, side) for name, side in corpus.sides.items()}
    made.graphs = {name: replace(graph, anchors=opened(f"anchors.{name}", graph.anchors))
                   for name, graph in corpus.graphs.items()}
    made.states = folder
    return made


@torch.no_grad()
def write_states(corpus: Corpus, config: EncoderConfig, out: Path, *, graphs: bool,
                 report: Callable[[int, int], None] = lambda written, of: None) -> int:
    """Write the states of the training texts, the labels and, if `graphs`, the anchors; return how many they are.

    report: is told how many are written, and of how many, after every `config.batch` texts.
    Raises Unusable for a transformer that makes other vectors of the states than of the texts.
    """
    model, corpus = build_transformer(config, corpus.idf).to(device()).eval(), with_states(corpus, None)
    sides = {name: corpus.sides[name] for name in ALWAYS}
    if graphs:
        sides |= {f"anchors.{name}": graph.anchors for name, graph in corpus.graphs.items()}
    for side in sides.values():
        _try(model, config, side)
    offsets = {name: np.append(0, np.cumsum(model.state_counts(side.ragged.lengths))) for name, side in sides.items()}
    written, of = 0, sum(int(each[-1]) for each in offsets.values())
    for name, side in sides.items():
        np.save(out / f"{name}.offsets.npy", offsets[name])
        with open(out / f"{name}.values.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(file, {
                "descr": np.lib.format.dtype_to_descr(np.dtype(np.float16)), "fortran_order": False,
                "shape": (int(offsets[name][-1]), model.dim)})
            for states in _states_of(model, config, side):
                file.write(states.data)
                written += len(states)
                report(written, of)
    return of


def _try(model: Transformer, config: EncoderConfig, side: Side) -> None:
    """Raise Unusable unless the vectors of some texts are those of their states, but for rounding to float16."""
    order = side.ragged.lengths.argsort(kind="stable")
    texts = side.tokens(np.unique(np.concatenate([order[:TRIED], order[-TRIED:]]))).to(device())
    sizes = model.state_counts(texts.host_offsets.diff().numpy())
    model.bf16 = False
    try:
        wanted = model(texts, QUERY)
        states = model.frozen_states(texts).half().cpu().numpy()
        made = model(replace(texts, states=FrozenStates.of(states, np.cumsum(sizes) - sizes, sizes)), QUERY)
        same = torch.allclose(made, wanted, rtol=0, atol=0.01 * float(wanted.abs().max()))
    except (RuntimeError, TypeError) as error:
        raise Unusable(f"encoder.source {config.source!r} cannot begin at its top layers ({error}); "
                       f"{REMEDY}") from error
    finally:
        model.bf16 = config.bf16
    if not same:
        raise Unusable(f"encoder.source {config.source!r} makes other vectors where it begins at its top layers; "
                       f"{REMEDY}")


def _states_of(model: Transformer, config: EncoderConfig, side: Side) -> Iterator[np.ndarray]:
    """Yield the states of a side's texts, `config.batch` texts at a time."""
    for start in range(0, len(side), config.batch):
        rows = np.arange(start, min(start + config.batch, len(side)))
        states = model.frozen_states(side.tokens(rows).to(device())).half()
        if not torch.isfinite(states).all():
            raise Unusable(f"encoder.source {config.source!r} has states beyond the range of float16; {REMEDY}")
        yield states.cpu().numpy()
