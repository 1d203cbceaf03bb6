"""What the layers of a transformer that are not trained make of every text of a corpus, computed once and kept.

Training, mining and embedding then begin at the layers that are trained.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from xcmodels.data.corpus import Corpus, Side
from xcmodels.nn.devices import device
from xcmodels.nn.encoder_config import QUERY, EncoderConfig
from xcmodels.nn.transformer import Transformer, build_transformer

TRIED = 8    # texts encoded both ways before any is kept


@torch.no_grad()
def write_states(corpus: Corpus, config: EncoderConfig, out: Path, *, graphs: bool) -> int:
    """Write the states of the training texts, the labels and, if `graphs`, the anchors to `out`; return their number.

    They are read by `Corpus(folder, hidden=out)`. Raises ValueError for a transformer that makes other vectors of them
    than of the texts.
    """
    model = build_transformer(config, corpus.idf).to(device()).eval()
    sides = {name: corpus.sides[name] for name in ("train", "label")}
    if graphs:
        sides |= {f"anchors.{name}": graph.anchors for name, graph in corpus.graphs.items()}
    _try(model, config, sides["label"])
    return sum(_write(model, config, side, out, name) for name, side in sides.items())


def _try(model: Transformer, config: EncoderConfig, side: Side) -> None:
    """Raise ValueError unless the vectors of some texts are those of their states, but for rounding."""
    texts = side.tokens(np.arange(min(TRIED, len(side)))).to(device())
    wanted, made = model(texts, QUERY), model(replace(texts, hidden=model.frozen_states(texts)), QUERY)
    if not torch.allclose(made, wanted, rtol=0, atol=0.05 * float(wanted.abs().max())):
        raise ValueError(f"encoder.source {config.source!r} cannot begin at its top layers; "
                         "set encoder.cache_frozen=false")


def _write(model: Transformer, config: EncoderConfig, side: Side, out: Path, name: str) -> int:
    """Write the states of a side's texts, `config.batch` texts at a time; return how many there are."""
    lengths = side.ragged.lengths
    sizes = np.minimum(lengths, config.max_tokens) if config.max_tokens else lengths
    offsets = np.concatenate([[0], np.cumsum(sizes + 2)])
    np.save(out / f"{name}.offsets.npy", offsets)
    with open(out / f"{name}.values.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float16)),
                                                    "fortran_order": False, "shape": (int(offsets[-1]), model.dim)})
        for start in range(0, len(side), config.batch):
            rows = np.arange(start, min(start + config.batch, len(side)))
            file.write(model.frozen_states(side.tokens(rows).to(device())).values.cpu().numpy().data)
    return int(offsets[-1])
