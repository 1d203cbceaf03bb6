"""UniDEC, and the dual encoders that are settings of it, as methods."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from xcmodels.data.corpus import Corpus
from xcmodels.method import Method
from xcmodels.methods.retriever_builder import BaseRetrieverBuilder
from xcmodels.methods.unidec.config import UnidecConfig
from xcmodels.methods.unidec.stages import STAGE, UnidecStage
from xcmodels.nn.autograd import normalise
from xcmodels.nn.encoders import LABEL, QUERY, encode_all, encoders_on_device
from xcmodels.retrieval.builder import Trained
from xcmodels.retrieval.serving_config import CLASSIFIER, ENCODER
from xcmodels.training.checkpoint import read_model


class UnidecRetrieverBuilder(BaseRetrieverBuilder[UnidecConfig, UnidecStage]):
    """Serves the dual encoder, the classifier, or both concatenated (section 3.4)."""

    @property
    def settings(self) -> Mapping[str, object]:
        """The settings of every retriever, and whether classifiers have unit length."""
        return {**super().settings, "unit": self.config.unit}

    def trained(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray]) -> Trained:
        """Return the encoder with the label embeddings and classifiers that are served."""
        config, model = self.config, encoders_on_device(read_model(self.stage, corpus, models[STAGE]))
        encoder, labels = model.encoder, {}
        if config.balance > 0 and config.serve != CLASSIFIER:
            labels[ENCODER] = encode_all(encoder, corpus.sides["label"], LABEL)
        if model.labels is not None and config.serve != ENCODER:
            weight = model.labels.weight.cpu().to(model.labels.dtype)
            labels[CLASSIFIER] = (normalise(weight) if config.unit else weight).numpy()
        views = {ENCODER: encoder.layout.views[QUERY], CLASSIFIER: encoder.layout.views.get(CLASSIFIER, ())}
        return Trained(encoder, labels, {name: views[name] for name in labels}, tuple(labels))


def unidec(config: UnidecConfig, name: str = "unidec") -> Method:
    """Return the method for one configuration, called `name`."""
    stage = UnidecStage(config)
    return Method(name, config.seed, [stage], UnidecRetrieverBuilder(name, config, stage), config.encoder, config.dim)
