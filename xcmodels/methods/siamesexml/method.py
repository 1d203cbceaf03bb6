"""SiameseXML and SiameseXML++ as methods: their modules, and their retriever."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from xcmodels.data.corpus import Corpus
from xcmodels.method import Method
from xcmodels.methods.retriever_builder import BaseRetrieverBuilder
from xcmodels.methods.siamesexml.config import MIXED, SiamesexmlConfig
from xcmodels.methods.siamesexml.shortlist import proposers, shortlists
from xcmodels.methods.siamesexml.stages import EXTREME, INTERMEDIATE, ExtremeModule, SiameseModule
from xcmodels.nn.autograd import normalise
from xcmodels.nn.encoders import QUERY, Encoder, encode_all, encoders_on_device
from xcmodels.predictions import match
from xcmodels.retrieval.builder import Trained, save_retriever
from xcmodels.retrieval.calibration import ScoredPairs, calibrate
from xcmodels.retrieval.centroid_mix import CentroidMix
from xcmodels.retrieval.proposers import Proposer, best_of
from xcmodels.retrieval.serving_config import CLASSIFIER, ENCODER
from xcmodels.training.checkpoint import read_model


class SiamesexmlRetrieverBuilder(BaseRetrieverBuilder[SiamesexmlConfig, ExtremeModule]):
    """Serves embeddings mixed with classifiers over three indexes (section 4), or as other methods are served."""

    @property
    def settings(self) -> Mapping[str, object]:
        """The settings of every retriever, and those of the mix."""
        return {**super().settings, "scored_centroid": self.config.scored_centroid,
                "scored_query": self.config.scored_query}

    def __call__(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray],
                 out: Path) -> dict[str, float]:
        """Write the retriever to `out`; a mix has the alpha that is best on the validation split.

        Once alpha is chosen, validation queries propose labels and count in centroids like the others.
        """
        if self.config.serve != MIXED:
            return super().__call__(corpus, models, vectors, out)
        config, trained = self.config, self.trained(corpus, models, vectors)
        classifiers, queries, labels = trained.labels[CLASSIFIER], trained.queries, trained.labels[ENCODER]
        assert queries is not None
        fitted = proposers(config, corpus, queries, labels)
        alpha, measured, pairs = self._best_alpha(self._mix(classifiers, labels, fitted), fitted, trained.encoder,
                                                  corpus)
        served = proposers(config, corpus, queries, labels, with_validation=True)
        save_retriever(out, corpus, method=self.method, encoder=trained.encoder, proposers=served,
                       shortlist=config.shortlist, scorer=self._mix(classifiers, labels, served, alpha),
                       calibration=calibrate(corpus, pairs))
        return measured

    def trained(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray]) -> Trained:
        """Return the encoder with the intermediate embeddings of labels and queries, and the classifiers."""
        model = read_model(self.stage, corpus, models[EXTREME])
        if self.config.joint:    # its backbone was trained after these vectors were computed
            vectors = {side: make() for side, make in self.stage.vectors(encoders_on_device(model), corpus).items()}
            model.encoder.cpu()
        views = model.encoder.layout.views
        classifiers = normalise(model.labels.weight.to(model.labels.dtype)).numpy()
        return Trained(model.encoder, {ENCODER: vectors["labels"], CLASSIFIER: classifiers},
                       {ENCODER: views[INTERMEDIATE], CLASSIFIER: views[EXTREME]}, (ENCODER, CLASSIFIER),
                       vectors["queries"])

    def _mix(self, classifiers: np.ndarray, labels: np.ndarray, proposing: Mapping[str, Proposer],
             alpha: float = 0.5) -> CentroidMix:
        """Return the mixed score of classifiers, label embeddings, and the centroids in an index of `proposing`."""
        share, centroids = self.config.scored_centroid, proposing["centroids"].index.vectors
        return CentroidMix(classifiers, labels + np.float32(share) * centroids, centroids, self.config.partitions,
                           alpha, share, self.config.scored_query == "intermediate")

    def _best_alpha(self, mix: CentroidMix, proposing: Mapping[str, Proposer], encoder: Encoder,
                    corpus: Corpus) -> tuple[float, dict[str, float], ScoredPairs]:
        """Return the alpha of highest P@1 on the validation split, the P@1, and the pairs as it scores them.

        Without a split, the mix's alpha, and no pairs.
        """
        rows = corpus.validation
        if not len(rows):
            return mix.alpha, {}, ScoredPairs.of(np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32))
        queries = encode_all(encoder, corpus.sides["train"], QUERY, rows=rows)
        filters = corpus.filters["train"].subset(rows).keys(corpus.n_labels)
        ids = shortlists(proposing, queries, self.config.shortlist, filters, corpus.n_labels)
        # -inf, the score of a missing label, times an alpha of 0 would be NaN
        classified, similar = (np.maximum(replace(mix, alpha=alpha)(queries, ids), -1e9) for alpha in (1.0, 0.0))
        truth, p1 = corpus.positives["train"].subset(rows), {}

        def scores(alpha: float) -> np.ndarray:
            return np.where(ids >= 0, alpha * classified + (1 - alpha) * similar, -np.inf)

        for alpha in np.linspace(0, 1, 11).round(1).tolist():
            best, _ = best_of(ids, scores(alpha), 1)
            p1[alpha] = 100 * float(match(best, truth, None, corpus.n_labels).hits.mean())
        alpha = max(p1, key=p1.__getitem__)
        return alpha, {"alpha": alpha, "validation/P/1": p1[alpha], "validation/P/1/classifiers": p1[1.0],
                       "validation/P/1/embeddings": p1[0.0]}, ScoredPairs.of(ids, scores(alpha))


def siamesexml(config: SiamesexmlConfig) -> Method:
    first, second = SiameseModule(config), ExtremeModule(config)
    name = "siamesexml++" if config.joint else "siamesexml"
    return Method(name, config.seed, [first, second], SiamesexmlRetrieverBuilder(name, config, second), config.encoder)
