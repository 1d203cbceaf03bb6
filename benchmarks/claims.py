"""Do the papers' claims hold on real data? One block a claim: what it says, the paper's figures, ours, the verdict.

    python benchmarks/claims.py HOME [--queries 20000] [--seeds 3] [--claims 1,8,13]

HOME is one in which `xc prepare` or `xc run` has packed a corpus. Each variant is trained with its method's CPU
preset and the seeds asked for, on `--queries` of the training queries (0 = all), and judged on 5,000 test queries; the
figures are kept in HOME/claims, so that a run that was stopped goes on, and claims share what they have in common.
Every figure is a mean over seeds, with the standard deviation after it. A claim of more or less holds if the means
differ by more than their pooled standard deviation.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tasks.artifacts import digest_of
from tasks.code import code_digests
from tasks.refresh import modules
from tasks.steps import plain
from xcmodels import seeds
from xcmodels.combine import InnerProduct
from xcmodels.corpus import Corpus
from xcmodels.methods import METHODS
from xcmodels.presets import resolve
from xcmodels.retrieval import Retriever
from xcmodels.trial import Trial, measure, train_all

JUDGED = 5000      # test queries
Figures = dict[str, float]


@dataclass(frozen=True)
class Variant:
    """A method with settings over its CPU preset."""

    method: str
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """What a paper says of some variants; `holds` is asked of their figures, each (seeds,)."""

    number: int
    says: str
    paper: str
    variants: Mapping[str, Variant]
    shown: Sequence[str]
    holds: Callable[["Results"], bool]


class Results:
    """The figures of the variants of a claim."""

    def __init__(self, found: Mapping[str, list[Figures]]) -> None:
        self.found = found

    def of(self, variant: str, figure: str) -> np.ndarray:
        """Return a figure of a variant, one a seed."""
        return np.array([each[figure] for each in self.found[variant]])

    def more(self, one: str, other: str, figure: str, figure_of_other: str = "") -> bool:
        """Return whether `one` has more of a figure than `other`, by more than the seeds differ."""
        a, b = self.of(one, figure), self.of(other, figure_of_other or figure)
        spread = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2) if len(a) > 1 else 0.0
        return bool(a.mean() - b.mean() > spread)


class Sample(Corpus):
    """A corpus of which fewer queries are trained on."""

    def __init__(self, folder: Path, queries: int) -> None:
        super().__init__(folder)
        rows = super().training_rows()
        drawn = seeds.generator(0, "claims").permutation(rows)[:queries or len(rows)]
        self._rows = np.sort(drawn)

    def training_rows(self) -> np.ndarray:
        """Return the rows drawn."""
        return self._rows


class Lab:
    """Trains variants, and remembers their figures in HOME/claims."""

    def __init__(self, home: Path, queries: int, n_seeds: int) -> None:
        (packed,) = [path.parent for path in home.glob("objects/*/corpus.json")][:1] or sys.exit(
            f"no corpus in {home}; make one with: xc prepare --data DIR --home {home}")
        self.corpus, self.folder, self.seeds = Sample(packed, queries), home / "claims", range(n_seeds)
        self.queries = queries
        self.folder.mkdir(exist_ok=True)

    def results(self, claim: Claim) -> Results:
        """Return the figures of every variant and seed of a claim."""
        return Results({name: [self._figures(variant, seed) for seed in self.seeds]
                        for name, variant in claim.variants.items()})

    def _figures(self, variant: Variant, seed: int) -> Figures:
        config = resolve(variant.method, "cpu", {**variant.settings, "seed": str(seed)}).method
        method = METHODS[variant.method](config)
        key = digest_of({"config": plain(config), "corpus": self.corpus.folder.name, "queries": self.queries,
                         "code": code_digests("xcmodels.trial", *modules(method))})
        kept = self.folder / f"{key}.json"
        if not kept.exists():
            scratch = Path(tempfile.mkdtemp(dir=self.folder))
            try:
                trial = train_all(self.corpus, method, scratch)
                found = _measured(trial, Retriever.load(trial.retriever))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            kept.with_suffix(".tmp").write_text(json.dumps(found, indent=1))
            kept.with_suffix(".tmp").rename(kept)
        figures: Figures = json.loads(kept.read_text())
        return figures


def _measured(trial: Trial, retriever: Retriever) -> Figures:
    """Return the test figures of what was trained, and of its halves where it has any."""
    test = np.sort(seeds.generator(0, "claims").permutation(len(trial.corpus.sides["test"]))[:JUDGED])
    found = dict(measure(retriever, trial.corpus, test))
    found |= trial.measured
    if trial.method.name in HALVES:
        for name, combine in HALVES[trial.method.name](retriever).items():
            whole, retriever.combine = retriever.combine, combine
            found |= {f"{figure} {name}": value for figure, value in measure(retriever, trial.corpus, test).items()}
            retriever.combine = whole
    return found


def _ngame_halves(retriever: Retriever) -> dict[str, InnerProduct]:
    fusion = retriever.combine
    return {"embeddings": InnerProduct(fusion.embeddings), "classifiers": InnerProduct(fusion.classifiers)}


def _unidec_halves(retriever: Retriever) -> dict[str, InnerProduct]:
    (index,) = retriever.indexes.values()
    half = retriever.encoder.width("label")
    if index.dim <= half:
        return {}
    first, second = index.vectors.copy(), index.vectors.copy()
    first[:, half:], second[:, :half] = 0, 0
    return {"both": InnerProduct(index.vectors), "encoder": InnerProduct(first), "classifier": InnerProduct(second)}


HALVES: Mapping[str, Callable[[Retriever], dict[str, InnerProduct]]] = {
    "ngame": _ngame_halves, "unidec": _unidec_halves}
P, PSP = ("P/1", "P/5"), ("PSP/1", "PSP/5")
NGAME, UNIDEC, RAMEN = Variant("ngame"), Variant("unidec"), Variant("ramen")


def _all_more(one: str, others: Sequence[str], figure: str = "P/1") -> Callable[[Results], bool]:
    return lambda results: all(results.more(one, other, figure) for other in others)


CLAIMS = [
    Claim(1, "ASTRA: hard of classifiers + random beat random alone, hard alone, and hard of embeddings + random",
          "Table 5, LF-AmazonTitles-131K P@1: 46.20 against 44.57, 41.74, 45.55",
          {"both": Variant("astra"), "random": Variant("astra", {"negatives": "random"}),
           "hard": Variant("astra", {"negatives": "hard"}), "over embeddings": Variant("astra", {"source": "encoder"})},
          P, _all_more("both", ["random", "hard", "over embeddings"])),
    Claim(6, "ASTRA: refreshing every 5 epochs beats 10 and 20",
          "Table 8, LF-Amazon-131K P@1: 47.13 against 46.28, 46.02; here every 1, 3 and 6 of the preset's epochs",
          {"1": Variant("astra", {"refresh_every": "1", "ahead": "0"}),
           "3": Variant("astra", {"refresh_every": "3", "ahead": "0"}),
           "6": Variant("astra", {"refresh_every": "6", "ahead": "0"})}, P, _all_more("1", ["3", "6"])),
    Claim(8, "NGAME beats random batches and batches clustered once, at equal epochs", "Figure 2",
          {"ngame": NGAME, "random": Variant("ngame", {"m1.refresh_from": "1000", "m2.refresh_from": "1000"}),
           "once": Variant("ngame", {"m1.refresh_every": "1000", "m2.refresh_every": "1000"})},
          P, _all_more("ngame", ["random", "once"])),
    Claim(11, "NGAME: fused beats classifiers, which beat embeddings", "Table 8",
          {"ngame": NGAME}, ("P/1", "P/1 classifiers", "P/1 embeddings"),
          lambda found: found.more("ngame", "ngame", "P/1", "P/1 classifiers")
          and found.more("ngame", "ngame", "P/1 classifiers", "P/1 embeddings")),
    Claim(13, "UniDEC: both halves end to end beat either", "Table 4",
          {"unidec": UNIDEC}, ("P/1 both", "P/1 encoder", "P/1 classifier", "P/1"),
          lambda found: found.more("unidec", "unidec", "P/1 both", "P/1 encoder")
          and found.more("unidec", "unidec", "P/1 both", "P/1 classifier")),
    Claim(14, "UniDEC: the decoupled softmax beats SupCon", "Tables 3 and 5",
          {"decoupled": UNIDEC, "supcon": Variant("unidec", {"loss": "supcon"})}, P,
          _all_more("decoupled", ["supcon"])),
    Claim(15, "UniDEC: BCE added raises P and lowers PSP", "Table 3",
          {"with": Variant("unidec", {"bce": "0.1"}), "without": UNIDEC}, P + PSP,
          lambda found: found.more("with", "without", "P/1") and found.more("without", "with", "PSP/5")),
    Claim(16, "UniDEC: mined negatives raise P and lower PSP", "Table 4",
          {"mined": Variant("unidec", {"negatives": "6"}), "in batch": UNIDEC}, P + PSP,
          lambda found: found.more("mined", "in batch", "P/1") and found.more("in batch", "mined", "PSP/5")),
    Claim(18, "DEPSL beats DPR, and NGAME's embeddings", "Table 2",
          {"depsl": Variant("depsl"), "dpr": Variant("dpr"), "ngame": NGAME}, ("P/1", "PSP/5"),
          lambda found: found.more("depsl", "dpr", "P/1") and found.more("depsl", "ngame", "P/1", "P/1 embeddings")),
    Claim(19, "RAMEN beats its base", "Tables 1 and 6, LF-WikiSeeAlsoTitles-320K P@1: 35.46 against NGAME's 32.6",
          {"ramen": RAMEN, "ngame": NGAME}, P + PSP, _all_more("ramen", ["ngame"])),
    Claim(20, "RAMEN: without pruning, or without either side's graph, it loses",
          "Table 8, over ANCE, P@1: 35.2 against 31.3, 29.7, 34.1",
          {"ramen": RAMEN, "no pruning": Variant("ramen", {"graph.prune": "false"}),
           "no query graph": Variant("ramen", {"graph.sides": "labels"}),
           "no label graph": Variant("ramen", {"graph.sides": "queries"})}, P,
          _all_more("ramen", ["no pruning", "no query graph", "no label graph"])),
    Claim(21, "RAMEN beats the ground truth augmented by the same graphs", "Table 8, P@1: 35.2 against 15.6",
          {"ramen": RAMEN, "augmented": Variant("ramen", {"graph.sides": "none", "graph.augment": "true"})}, P,
          _all_more("ramen", ["augmented"])),
    Claim(23, "SiameseXML: drawing labels by frequency^0.45 beats powers 0 and 1", "Figure 2",
          {"0.45": Variant("siamesexml"), "0": Variant("siamesexml", {"power": "0"}),
           "1": Variant("siamesexml", {"power": "1"})}, P, _all_more("0.45", ["0", "1"])),
    Claim(25, "SiameseXML: classifiers beat the Siamese scores", "Table 4: by 2 to 6 points of P@1",
          {"siamesexml": Variant("siamesexml")}, ("validation/P/1/classifiers", "validation/P/1/embeddings"),
          lambda found: found.more("siamesexml", "siamesexml", "validation/P/1/classifiers",
                                   "validation/P/1/embeddings")),
    Claim(26, "SiameseXML++ gains in P", "Table 1",
          {"++": Variant("siamesexml++"), "plain": Variant("siamesexml")}, P, _all_more("++", ["plain"])),
]


def main() -> None:
    """Print a block a claim, and how many hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--queries", type=int, default=20_000, help="training queries, 0 = all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--claims", default="", help="numbers, by default all")
    asked = parser.parse_args()
    lab = Lab(asked.home, asked.queries, asked.seeds)
    wanted = {int(number) for number in asked.claims.split(",") if number}
    print(f"{lab.corpus.name}: {len(lab.corpus.training_rows()):,} training queries, {lab.corpus.n_labels:,} labels, "
          f"{asked.seeds} seeds, CPU presets")
    verdicts = {}
    for claim in (each for each in CLAIMS if not wanted or each.number in wanted):
        results = lab.results(claim)
        verdicts[claim.number] = claim.holds(results)
        print(f"\n{claim.number}. {claim.says}\n   paper: {claim.paper}")
        for variant in claim.variants:
            figures = "  ".join(f"{name.replace('/', '@', 1)} {results.of(variant, name).mean():.2f} "
                                f"({results.of(variant, name).std():.2f})" for name in claim.shown)
            print(f"   {variant:<18}{figures}")
        print(f"   {'holds' if verdicts[claim.number] else 'does not hold'}", flush=True)
    print(f"\n{sum(verdicts.values())} of {len(verdicts)} hold")


if __name__ == "__main__":
    main()
