"""How long does `/predict` take where a request chooses labels or leaves some out, and are its answers exact?

    python -m benchmarks.bench_selection HOME [MODEL] [seconds]

20 clients send 50 requests a second that choose 1, 100 or half of all labels (only), or leave as many out (without),
drawn at random; each client sends the same list again and again, or every request has another one. For each the best 5
labels of some texts are compared with those of an exact search: every label that may be given is scored.
"""

import asyncio
import json
import os
from collections.abc import Sequence

import numpy as np

from benchmarks.arguments import Count, Folder, run
from benchmarks.bench_serving import CLIENTS, Client, latencies, served, texts_of
from tasks.registry.resolve import resolve
from tasks.tracking.tracker import Tracker
from xcmodels.retrieval.inner_products import single_threaded
from xcmodels.retrieval.retriever import Retriever

COMPARED, LISTS = 200, 40    # LISTS: other ones in turn, more than a server keeps


async def measure(port: int, seconds: float, retriever: Retriever) -> None:
    """Print one row per load."""
    texts = await texts_of(port)
    scores = exact_scores(retriever, texts[:COMPARED])
    print(f"{len(texts)} texts, {CLIENTS} clients, load average {os.getloadavg()[0]:.1f}")
    print(f"{'requests':<36}{'answers/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'as exact %':>12}")

    async def row(name: str, interval: float, lists: Sequence[np.ndarray], field: str) -> None:
        more = [b', "%s": ' % field.encode() + json.dumps(retriever.uids.take(ids)).encode() for ids in lists] or [b""]
        allowed = np.full(len(retriever.uids), field != "only")
        allowed[lists[0] if lists else []] = field == "only"
        allowed[retriever.removed] = False
        same = await agreement(Client(port), texts[:COMPARED], np.where(allowed, scores, -np.inf), more[0])
        ms = await latencies(port, texts, seconds, interval, more)
        print(f"{name:<36}{len(ms) / seconds:>10.1f}{np.quantile(ms, .5):>9.1f}{np.quantile(ms, .99):>9.1f}"
              f"{100 * same:>12.1f}", flush=True)

    await row("back to back", 0.0, (), "without")
    await row("50 a second", CLIENTS / 50, (), "without")
    rng, known = np.random.default_rng(0), np.setdiff1d(np.arange(len(retriever.uids)), retriever.removed)
    for field in ("only", "without"):
        for size in list_sizes(len(known)):
            drawn = [rng.choice(known, size, replace=False) for _ in range(LISTS)]
            await row(f"50 a second, {field} {size:,}", CLIENTS / 50, drawn[:1], field)
            await row(f"50 a second, {field} {size:,}, other lists", CLIENTS / 50, drawn, field)


def list_sizes(known: int) -> list[int]:
    """Return how many of the known labels the lists hold: 1, 100 and half of them, where those are fewer than all."""
    return sorted({size for size in (1, 100, known // 2) if 1 <= size < known})


def exact_scores(retriever: Retriever, texts: list[str]) -> np.ndarray:
    """Return the score of every label for each of n texts, (n, L)."""
    every, tokens = np.arange(len(retriever.uids))[None], [retriever.tokenizer([text]) for text in texts]
    with single_threaded():
        return np.concatenate([retriever.scorer(retriever.embed(each), every, each) for each in tokens])


async def agreement(client: Client, texts: list[str], scores: np.ndarray, more: bytes) -> float:
    """Return the share of texts whose best 5 labels are those of largest scores (n, L), -inf for those left out."""
    same = 0
    for text, row in zip(texts, scores, strict=True):
        found = [label["id"] for label in await client.predict(text, 5, more)]
        best = np.lexsort((np.arange(len(row)), -row))[:5]
        same += found == best[row[best] > -np.inf].tolist()
    return same / len(texts)


def main(home: Folder, model: str = "", seconds: Count = 20) -> None:
    """Serve a model of HOME on a free port and measure it."""
    retriever = Retriever.load(resolve(Tracker(home), model or None).folder)
    with served(home, model) as (_, port, _):
        asyncio.run(measure(port, seconds, retriever))


if __name__ == "__main__":
    run(main, __doc__)
