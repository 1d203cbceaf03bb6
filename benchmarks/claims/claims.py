"""The papers' claims about trained variants: which variants each compares, and which figures decide it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.claims.experiments import Experiments, Results, Variant
from xcmodels.data.batching import Batch
from xcmodels.data.corpus import Corpus
from xcmodels.data.every_label import EveryLabelBatch
from xcmodels.method import Method
from xcmodels.methods.astra.config import AstraConfig
from xcmodels.methods.astra.method import AstraRetrieverBuilder
from xcmodels.methods.astra.stages import AstraStage, OneVsAll
from xcmodels.methods.ngame_m1 import EncoderModule
from xcmodels.methods.presets import flat, resolve
from xcmodels.nn import losses
from xcmodels.training.checkpoint import load_model


@dataclass(frozen=True)
class Claim:
    """A statement of a paper about variants; `holds` decides it by their figures over seeds.

    measure: where no variants need to be trained, returns lines to print and whether the claim holds.
    """

    number: int
    statement: str
    paper: str
    variants: Mapping[str, Variant] = field(default_factory=dict)
    figures: Sequence[str] = ()
    holds: Callable[[Results], bool] = bool
    needs_graphs: bool = False
    measure: Callable[[Experiments], tuple[list[str], bool]] | None = None


class OverTrainedEncoder(AstraStage):
    """ASTRA's stage from module M1's encoder, with classifiers about zero (Figure 1)."""

    def begin(self, model: OneVsAll, corpus: Corpus, before: Path | None) -> None:
        """Load module M1's encoder, and start the bias."""
        assert before is not None
        load_model(model.encoder, before)
        model.bias.data.fill_(self._prior(model, corpus))


class FreshNegatives(OverTrainedEncoder):
    """The same with the hardest negatives of the current model: it scores every label at every step."""

    def loss(self, model: OneVsAll, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the binary cross-entropy over positives and the hardest negatives."""
        assert isinstance(batch, EveryLabelBatch)
        scores = model.logits(model.queries(batch), torch.arange(batch.n_labels))
        block = batch.block(slice(0, batch.n_labels))
        assert block.weights is not None
        negative_scores = scores.detach().masked_fill(block.positives | (block.weights == 0), -torch.inf)
        hardest = torch.zeros_like(scores).scatter(1, negative_scores.topk(self.config.hard, dim=1).indices, 1.0)
        weights = torch.where(block.positives, block.weights, hardest)
        factor = len(scores) if self.config.summed else 1
        return {"hardest": factor * losses.weighted_bce(scores, block.positives, weights)}


def over_trained(config: AstraConfig, stage: type[AstraStage] = OverTrainedEncoder) -> Method:
    """Build ASTRA over module M1's encoder, with classifiers about zero."""
    joint = stage(config)
    builder = AstraRetrieverBuilder("astra", replace(config, start="random"), joint)
    return Method("astra", config.seed, [EncoderModule(config), joint], builder, config.encoder, config.dim)


def fresh(config: AstraConfig) -> Method:
    """Build the same with fresh negatives."""
    return over_trained(config, FreshNegatives)


def _beats_all(one: str, others: Sequence[str]) -> Callable[[Results], bool]:
    return lambda results: all(results.beats(one, other, "P/1") for other in others)


def _astra(**settings: Any) -> Variant:
    """Return ASTRA from an untrained encoder and classifiers near zero, as in the paper, by 30 epochs."""
    base = {"epochs": 30, "refresh_from": 5, "refresh_every": 5, "start": "random", "scale": 1, "summed": True,
            "lr": 2e-3, "token_lr": 2e-3, "label_lr": 0.05}
    return Variant("astra", {name: str(value) for name, value in (base | settings).items()})


def _graph(**settings: str) -> Variant:
    return Variant("ramen-ance", {f"graph.{name}": value for name, value in settings.items()})


def _thousand(make: Callable[[AstraConfig], Method] = over_trained, **settings: Any) -> Variant:
    """Return ASTRA as in its Figure 1: 1,000 labels, classifiers near zero over a trained encoder, 200 negatives."""
    base = {"start": "encoder", "hard": 200, "uniform": 0, "batch_size": 128}
    return replace(_astra(**base | settings), corpus="thousand", build_method=make)


def _m1(**settings: Any) -> Variant:
    """Return NGAME's module M1 on the whole corpus in batches of 128, measured after each round (Figure 2)."""
    base = {"batch_size": 128, "refresh_from": 1, "refresh_every": 1, "cluster_size": 8}
    changed = {f"m1.{name}": str(value) for name, value in (base | settings).items()}
    return Variant("ngame", changed, corpus="whole", alone=True, curve=True)


def _doubling(cluster_max: int) -> Variant:
    """Return NGAME's module M1 with clusters that double from 2 up to `cluster_max`, measured after each round."""
    return Variant("ngame", {"m1.epochs": "12", "m1.refresh_from": "2", "m1.refresh_every": "1", "m1.double_every": "2",
                             "m1.cluster_size": "2", "m1.cluster_max": str(cluster_max)}, alone=True, curve=True)


def epochs_to(results: Results, variant: str, target: float) -> float:
    """Return the first epoch after which a variant's mean P@1 is at least `target`; infinity if there is none."""
    curve = {int(figure.split()[-1]): results.mean(variant, figure)
             for figure in results.by_variant[variant][0] if "epoch" in figure}
    return min((epoch for epoch, precision in curve.items() if precision >= target), default=float("inf"))


def _doubling_is_faster(results: Results) -> bool:
    """Return whether doubled clusters reach the final P@1 of fixed ones in 25% fewer epochs at least, by the means."""
    final = results.mean("fixed", "P/1 epoch 12")
    return epochs_to(results, "doubled", final) <= 0.75 * epochs_to(results, "fixed", final)


def _with_papers_fusion() -> Variant:
    """Return NGAME ranked by one tree over its two scores and the frequency of a label, as in its Appendix C.

    The CPU preset's fusion has more trees and more scores, over words for example.
    """
    published = flat(resolve("ngame", "lf-amazontitles-131k", {}))
    return Variant("ngame", {name: str(value) for name, value in published.items() if name.startswith("fusion.")})


def _gain(results: Results, base: str, figure: str) -> float:
    """Return what RAMEN adds to its base's figure."""
    return results.mean(f"over {base}", figure) - results.mean(base, figure)


P, PSP = ("P/1", "P/5"), ("PSP/1", "PSP/5")
UNIDEC, RAMEN_ANCE, SIAMESEXML = (Variant(name) for name in ("unidec", "ramen-ance", "siamesexml"))
M1 = Variant("ngame", alone=True)
ASTRA = _astra()
IN_BATCH = Variant("unidec", {"negatives": "0", "positives": "9"})

CLAIMS = [
    Claim(1, "ASTRA: hard of classifiers + random beat random alone, hard alone, and hard of embeddings + random",
          "Table 5, LF-AmazonTitles-131K P@1: 46.20 against 44.57, 41.74, 45.55",
          {"both": ASTRA, "random": _astra(negatives="random"), "hard": _astra(negatives="hard"),
           "both, embeddings": _astra(source="encoder"),
           "hard, embeddings": _astra(source="encoder", negatives="hard"),
           "curriculum": _astra(negatives="curriculum")},
          P, _beats_all("both", ["random", "hard", "both, embeddings"])),
    Claim(2, "ASTRA: hard alone is far worse stale than fresh; half of it uniform is close to every label",
          "Figure 1, LF-AmazonTitles-1K P@1: 71.71 over every label, about as much fresh, 47.23 stale",
          {"every label": _thousand(every_label=True),
           "fresh": _thousand(fresh, every_label=True),
           "stale": _thousand(negatives="hard"), "stale + uniform": _thousand(hard=100, uniform=100)},
          P, lambda results: results.beats("fresh", "stale", "P/1")
          and results.mean("every label", "P/1") - results.mean("stale + uniform", "P/1")
          < 0.2 * (results.mean("every label", "P/1") - results.mean("stale", "P/1"))),
    Claim(5, "ASTRA: the index finds more than 92.5% of the hard negatives, and exact search brings nothing more",
          "section 5.2.1: 92.5% to 95%, no significant gain",
          {"hnsw": _astra(index="hnsw"), "exact": ASTRA},
          (*P, "recall of the index"), lambda results: results.mean("hnsw", "recall of the index") > 92.5
          and not results.beats("exact", "hnsw", "P/1")),
    Claim(6, "ASTRA: refreshing more often is better, and so is beginning sooner",
          "Tables 7 and 8, LF-Amazon-131K P@1: 47.13 for tau_r = 5, 46.28 for 10, 46.02 for 20; tau_s likewise. Here "
          "of 30 epochs",
          {"5, 5": ASTRA, "tau_r 10": _astra(refresh_every=10), "tau_r 20": _astra(refresh_every=20),
           "tau_s 10": _astra(refresh_from=10), "tau_s 20": _astra(refresh_from=20)},
          P, lambda results: results.beats("5, 5", "tau_r 20", "P/1") and results.beats("5, 5", "tau_s 20", "P/1")),
    Claim(7, "ASTRA: label texts as training points help", "Table 18",
          {"with": replace(ASTRA, corpus="texts"), "without": ASTRA}, P + PSP, _beats_all("with", ["without"])),
    Claim(8, "NGAME's embeddings beat those of random batches, and of batches clustered once, at equal epochs",
          "Figure 2; here in batches of 128 over the whole corpus, refreshed every epoch",
          {"ngame": _m1(), "random": _m1(refresh_from=1000),
           "once": _m1(refresh_from=0, refresh_every=1000)},
          tuple(f"P/1 epoch {epoch}" for epoch in (1, 2, 4, 6)) + P, _beats_all("ngame", ["random", "once"])),
    Claim(10, "NGAME: doubling the clusters reaches the P@1 of a fixed size in 25 to 40% fewer epochs",
          "section 3; here of the embeddings, 12 epochs, C = 2 or doubled every 2 epochs up to 64",
          {"doubled": _doubling(64), "fixed": _doubling(2)},
          tuple(f"P/1 epoch {epoch}" for epoch in (4, 6, 8, 10, 12)), _doubling_is_faster),
    Claim(11, "NGAME: fused beats classifiers, which beat embeddings", "Table 8",
          {"ngame": _with_papers_fusion()}, ("P/1", "P/1 classifiers", "P/1 embeddings"),
          lambda results: results.beats("ngame", "ngame", "P/1", "P/1 classifiers")
          and results.beats("ngame", "ngame", "P/1 classifiers", "P/1 embeddings")),
    Claim(12, "NGAME: the share of r-hard negatives that clusters miss is under the bound of Theorem 1",
          "Theorem 4; Corollary 5 has e1 + e2 where all queries and labels have as many pairs", {"m1": M1},
          ("hard %", "missed %", "e1 %", "e2 %", "bound %"),
          lambda results: bool((results.by_seed("m1", "missed %") < results.by_seed("m1", "bound %")).all())),
    Claim(13, "UniDEC: both halves end to end beat either", "Table 4",
          {"unidec": UNIDEC}, ("P/1", "P/1 encoder", "P/1 classifier"),
          lambda results: all(results.beats("unidec", "unidec", "P/1", f"P/1 {half}")
                              for half in ("encoder", "classifier"))),
    Claim(14, "UniDEC: the decoupled softmax beats SupCon", "Tables 3 and 5",
          {"decoupled": Variant("unidec", {"loss": "decoupled"}), "supcon": UNIDEC}, (*P, *PSP),
          _beats_all("decoupled", ["supcon"])),
    Claim(15, "UniDEC: BCE added raises P and lowers PSP", "Table 3",
          {"with": Variant("unidec", {"bce": "5"}), "without": UNIDEC}, (*P, *PSP),
          lambda results: results.beats("with", "without", "P/1") and results.beats("without", "with", "PSP/5")),
    Claim(16, "UniDEC: mined negatives raise P and lower PSP, against further positives in their place", "Table 4",
          {"mined": UNIDEC, "positives": IN_BATCH}, (*P, *PSP),
          lambda results: results.beats("mined", "positives", "P/1") and results.beats("positives", "mined", "PSP/5")),
    Claim(17, "UniDEC: a clustered batch holds more positives of a query than the beta that were picked for it",
          "Figure 2b; here beta = 1", {"unidec": UNIDEC}, ("positives, clustered", "positives, random"),
          lambda results: results.beats("unidec", "unidec", "positives, clustered", "positives, random")
          and results.mean("unidec", "positives, clustered") > 1),
    Claim(18, "DEPSL beats DPR, and NGAME's embeddings", "Table 1",
          {"depsl": Variant("depsl"), "dpr": Variant("dpr"), "ngame": M1}, (*P, "PSP/5"),
          _beats_all("depsl", ["dpr", "ngame"])),
    Claim(19, "RAMEN beats its base, most of all on tail labels",
          "Tables 1 and 6, LF-WikiSeeAlsoTitles-320K P@1: 35.46 against NGAME's 32.6; here embeddings, over both bases",
          {"over ngame": Variant("ramen", alone=True), "ngame": M1, "over ance": RAMEN_ANCE, "ance": Variant("ance")},
          (*P, *PSP, "P/5 tail", "P/5 head"),
          lambda results: all(results.beats(f"over {base}", base, "P/1")
                            and _gain(results, base, "P/5 tail") > _gain(results, base, "P/5 head")
                            for base in ("ngame", "ance")), True),
    Claim(20, "RAMEN: without pruning, or without either side's graph, it loses",
          "Table 8, over ANCE, P@1: 35.2 against 31.3, 29.7, 34.1",
          {"ramen": RAMEN_ANCE, "no pruning": _graph(prune="false"), "no query graph": _graph(sides="labels"),
           "no label graph": _graph(sides="queries")},
          P, _beats_all("ramen", ["no pruning", "no query graph", "no label graph"]), True),
    Claim(21, "RAMEN beats the ground truth augmented by the same graphs",
          "Table 8, over ANCE, P@1: 35.2 against 15.6",
          {"ramen": RAMEN_ANCE, "augmented": _graph(sides="none", augment="true")}, P,
          _beats_all("ramen", ["augmented"]), True),
    Claim(22, "RAMEN trains in at most 1.15 of its base's time, and predicts in the same",
          "Table 5, over ANCE; here seconds of one core", {"ramen": RAMEN_ANCE, "ance": Variant("ance")},
          ("seconds", "ms a query"),
          lambda results: results.mean("ramen", "seconds") <= 1.15 * results.mean("ance", "seconds")
          and not results.beats("ramen", "ance", "ms a query"), True),
    Claim(23, "SiameseXML: drawing labels by frequency^0.45 beats powers 0 and 1", "Figure 2",
          {power: Variant("siamesexml", {"power": power}, alone=True) for power in ("0.45", "0", "1")},
          P + PSP, _beats_all("0.45", ["0", "1"])),
    Claim(24, "SiameseXML: label texts and centroids together shortlist more than either", "Table 4; as many labels of "
          "each, half as many of either together", {"siamesexml": SIAMESEXML},
          ("recall of texts", "recall of centroids", "recall of both", "recall of all three"),
          lambda results: results.beats("siamesexml", "siamesexml", "recall of both", "recall of texts")
          and results.beats("siamesexml", "siamesexml", "recall of both", "recall of centroids")),
    Claim(25, "SiameseXML: classifiers beat the Siamese scores z + v", "Table 4: by 2 to 6 points of P@1",
          {"siamesexml": SIAMESEXML}, ("P/1", "P/1 w", "P/1 z + v"),
          lambda results: results.beats("siamesexml", "siamesexml", "P/1", "P/1 z + v")),
    Claim(26, "SiameseXML++ gains in P", "Table 1",
          {"++": Variant("siamesexml++"), "plain": SIAMESEXML}, P, _beats_all("++", ["plain"])),
]
