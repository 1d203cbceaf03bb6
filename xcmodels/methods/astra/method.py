"""ASTRA as a method: its stages, its retriever, and how far its classifiers moved."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.method import Method, Stage
from xcmodels.methods.astra.config import STAGE, AstraConfig
from xcmodels.methods.astra.stages import PRIOR_LABELS, AstraStage, untrained_encoder
from xcmodels.methods.ngame_m1 import EncoderModule
from xcmodels.methods.retriever_builder import BaseRetrieverBuilder
from xcmodels.nn.encoders import QUERY, encode_all, encoders_on_device
from xcmodels.retrieval.builder import Trained
from xcmodels.retrieval.serving_config import CLASSIFIER, ENCODER
from xcmodels.training.checkpoint import load_model, read_model


class AstraRetrieverBuilder(BaseRetrieverBuilder[AstraConfig, AstraStage]):
    """Serves the classifiers, or the embeddings of label texts by the encoder that was trained with the classifiers.

    After module M1 a label's text is read by M1's head for labels, which training with classifiers leaves as it is.
    """

    def trained(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray]) -> Trained:
        """Return the encoder and the classifiers, and label embeddings where those are served."""
        model = encoders_on_device(read_model(self.stage, corpus, models[STAGE]))
        labels = {CLASSIFIER: model.classifiers()}
        if self.config.serve != CLASSIFIER:
            labels = {ENCODER: encode_all(model.encoder, corpus.sides["label"], self.config.label_view), **labels}
        return Trained(model.encoder, labels, dict.fromkeys(labels, (QUERY,)), (CLASSIFIER,))

    def measure(self, corpus: Corpus, models: Mapping[str, Path], trained: Trained) -> dict[str, float]:
        """Return how far training moved the classifiers from their start, on a sample of labels."""
        if self.config.start == "random":
            return {}
        rng = seeds.generator(self.config.seed, "displacement")
        labels = np.sort(rng.permutation(corpus.n_labels)[:PRIOR_LABELS])
        encoder = untrained_encoder(self.config, corpus)
        if self.config.pretrained:
            load_model(encoder, models[EncoderModule.name])
        start = encode_all(encoder, corpus.sides["label"], self.config.label_view, labels)
        return displacement(start, trained.labels[CLASSIFIER][labels],
                            corpus.frequencies(corpus.training_rows())[labels])


def displacement(start: np.ndarray, end: np.ndarray, frequencies: np.ndarray) -> dict[str, float]:
    """Return how far training moved classifiers (L, d), ||end - start|| / ||start||, averaged over labels.

    By the number of training queries, 0, 1, 2 to 9, 10 and more, as "moved/0", "moved/1", "moved/2", "moved/10"; groups
    without a label are left out.
    """
    share = np.linalg.norm(end - start, axis=1) / np.maximum(np.linalg.norm(start, axis=1), 1e-12)
    edges = (0, 1, 2, 10)
    group = np.searchsorted(edges, frequencies, side="right") - 1
    return {f"moved/{edge}": float(share[group == i].mean()) for i, edge in enumerate(edges) if (group == i).any()}


def astra(config: AstraConfig) -> Method:
    stage, name = AstraStage(config), "renee" if config.every_label else "astra"
    stages: list[Stage[Any]] = [EncoderModule(config), stage] if config.pretrained else [stage]
    reads_texts = (config.start != "random" or (config.source == "encoder" and config.mined > 0)
                   or config.serve != CLASSIFIER)
    return Method(name, config.seed, stages, AstraRetrieverBuilder(name, config, stage), config.encoder, config.dim,
                  needs_label_texts=reads_texts)
