"""NGAME as a method: its two modules, and its retriever."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from xcmodels.data.corpus import Corpus
from xcmodels.method import Method
from xcmodels.methods.ngame.config import NgameConfig
from xcmodels.methods.ngame.stages import ClassifierModule
from xcmodels.methods.ngame_m1 import EncoderModule
from xcmodels.methods.retriever_builder import BaseRetrieverBuilder
from xcmodels.nn.encoders import QUERY
from xcmodels.retrieval.builder import Trained
from xcmodels.retrieval.serving_config import CLASSIFIER, ENCODER
from xcmodels.training.checkpoint import read_model


class NgameRetrieverBuilder(BaseRetrieverBuilder[NgameConfig, EncoderModule]):
    """Serves embeddings and classifiers on one query vector; in a fusion the classifiers propose (Appendix C)."""

    def __init__(self, method: str, config: NgameConfig, encoder: EncoderModule, classifier: ClassifierModule) -> None:
        super().__init__(method, config, encoder)
        self.classifier = classifier

    def trained(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray]) -> Trained:
        """Return M1's encoder with M2's classifiers; embeddings are those that M2 was trained on."""
        classifiers = read_model(self.classifier, corpus, models[ClassifierModule.name], vectors).vectors()
        encoder = read_model(self.stage, corpus, models[EncoderModule.name])
        view = encoder.layout.views[QUERY]
        return Trained(encoder, {ENCODER: vectors["labels"], CLASSIFIER: classifiers},
                       {ENCODER: view, CLASSIFIER: view}, (CLASSIFIER,), vectors["queries"])


def ngame(config: NgameConfig) -> Method:
    encoder, classifier = EncoderModule(config), ClassifierModule(config)
    builder = NgameRetrieverBuilder("ngame", config, encoder, classifier)
    return Method("ngame", config.seed, [encoder, classifier], builder, config.encoder)
