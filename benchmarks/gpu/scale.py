"""What is measured on: the device, the sizes of a whole measurement or of a small one, and encoders of two sizes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.synthetic import WORDNET, CorpusShape, synthetic_corpus
from xcmodels.data.corpus import Corpus

CUDA = "cuda"


@dataclass(frozen=True)
class Sizes:
    """The sizes of what is measured."""

    corpus: CorpusShape                # of the steps of every method
    encoders: Mapping[str, Mapping[str, int]]    # by name: width, layers, heads, feed-forward
    rows: int | None                   # of a batch; None = as the preset says
    steps: int                         # timed
    warm_up: int                       # before: a GPU chooses its products, and gets memory, at the first of a shape
    labels: tuple[int, ...]            # of classifiers and of searches
    widths: tuple[int, ...]            # of their vectors
    queries: int                       # searched for
    product: int                       # side of the matrices whose product gives the card's rate
    rates: CorpusShape


WHOLE = Sizes(
    WORDNET, {"MiniLM-sized": {"dim": 384, "layers": 6, "heads": 12, "inner": 1536},
              "DistilBERT-sized": {"dim": 768, "layers": 6, "heads": 12, "inner": 3072}},
    rows=None, steps=12, warm_up=8, labels=(131_000, 1_305_265), widths=(64, 768), queries=8192, product=8192,
    rates=CorpusShape(180_000, 260_000, 22.2, 14.0))
SMALL = Sizes(
    CorpusShape(400, 120, 1.6, 6.0, 300), {"MiniLM-sized": {"dim": 32, "layers": 1, "heads": 2, "inner": 64},
                                           "DistilBERT-sized": {"dim": 48, "layers": 1, "heads": 2, "inner": 64}},
    rows=16, steps=3, warm_up=1, labels=(2000,), widths=(16,), queries=64, product=128,
    rates=CorpusShape(400, 300, 3.0, 6.0, 300))


@dataclass(frozen=True)
class Scale:
    """What every part is given: the device, "cuda" or "cpu", the sizes, and a folder for what is made on the way.

    data: a raw data set or a packed corpus to train the presets on; None = WordNet, fetched. share: of the time by
    default that a method of the presets has.
    """

    device: str
    sizes: Sizes
    scratch: Path
    data: Path | None = None
    share: float = 1.0
    _corpora: dict[str, Corpus] = field(default_factory=dict)

    @property
    def small(self) -> bool:
        return self.sizes is SMALL

    def synthetic(self, name: str, shape: CorpusShape) -> Corpus:
        """Return the synthetic corpus of a shape, made once."""
        if name not in self._corpora:
            self._corpora[name] = synthetic_corpus(self.scratch / name, shape)
        return self._corpora[name]

    def encoder(self, name: str) -> Path:
        """Return a folder with a transformer of one of the sizes, its weights random: only its speed is measured."""
        folder = self.scratch / name
        if not folder.exists():
            from transformers import BertConfig, BertModel

            size = self.sizes.encoders[name]
            torch.manual_seed(0)
            BertModel(BertConfig(
                vocab_size=self.sizes.corpus.vocabulary, hidden_size=size["dim"], num_hidden_layers=size["layers"],
                num_attention_heads=size["heads"], intermediate_size=size["inner"])).save_pretrained(folder)
        return folder

    def wait(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device == CUDA:
            torch.cuda.synchronize()

    def seconds(self, action: Callable[[], Any], repeats: int | None = None) -> float:
        """Return the median seconds of a call, the device waited for, after two calls to warm up."""
        times = []
        for _ in range(2 + (repeats or self.sizes.steps)):
            self.wait()
            began = time.perf_counter()
            action()
            self.wait()
            times.append(time.perf_counter() - began)
        return sorted(times[2:])[(len(times) - 2) // 2]

    def forget_memory(self) -> None:
        """Give back what was freed, and begin a new peak of memory."""
        if self.device == CUDA:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_memory(self) -> float | None:
        """Return the gigabytes that the device's tensors took at most since `forget_memory`; None on a CPU."""
        return torch.cuda.max_memory_allocated() / 1e9 if self.device == CUDA else None


@cache
def product_rate(device: str, side: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """Return the operations a second of a product of two random matrices (side, side); zeros would run faster."""
    scale = Scale(device, SMALL, Path())
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / scale.seconds(lambda: left @ right, 9)
