"""Base classes that build a method's retriever from its trained models."""

from collections.abc import Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np

from xcmodels import checks
from xcmodels.data.corpus import Corpus
from xcmodels.method import EncoderStage, Stage
from xcmodels.mining.nearest_labels import nearest_labels
from xcmodels.nn.encoders import LABEL, QUERY, encode_all, encoders_on_device
from xcmodels.retrieval.builder import Trained, build_retriever
from xcmodels.retrieval.serving_config import ENCODER, FUSED, ServingConfig
from xcmodels.training.checkpoint import read_model

C = TypeVar("C", bound=ServingConfig)
S = TypeVar("S", bound=Stage[Any])


class BaseRetrieverBuilder(Generic[C, S]):
    """Builds a retriever from what `trained` returns, the only function that a method must define.

    stage: the one whose model `trained` reads.
    """

    def __init__(self, method: str, config: C, stage: S) -> None:
        self.method, self.config, self.stage = method, config, stage

    def named(self, method: str) -> Self:
        """Return a builder that writes `method` into the retriever."""
        other = copy(self)
        other.method = method
        return other

    @property
    def settings(self) -> Mapping[str, object]:
        """The method's name in the retriever, the seed, and the settings of serving."""
        return {"method": self.method, "seed": self.stage.seed, **self.config.serving}

    def trained(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray]) -> Trained:
        """Return the trained parts of the method that can be served."""
        raise NotImplementedError

    def measure(self, corpus: Corpus, models: Mapping[str, Path], trained: Trained) -> dict[str, float]:
        """Return measurements of the trained models by name; by default none."""
        return {}

    def __call__(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray],
                 out: Path) -> dict[str, float]:
        """Write the retriever to `out`."""
        trained = self.trained(corpus, models, vectors)
        measured = build_retriever(trained, self.config, corpus, out, method=self.method,
                                   seed=self.stage.seed, nearest=partial(nearest_labels, seed=self.stage.seed))
        return measured | self.measure(corpus, models, trained)


class EncoderRetrieverBuilder(BaseRetrieverBuilder[ServingConfig, EncoderStage[Any]]):
    """Builds the retriever of a method whose only stage trains an encoder, without label vectors."""

    def __init__(self, method: str, config: ServingConfig, stage: EncoderStage[Any]) -> None:
        """Raise ValueError where other scores than its embeddings' are to be served."""
        checks.one_of(config, serve=(ENCODER, FUSED))
        super().__init__(method, config, stage)

    def trained(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray]) -> Trained:
        """Return the encoder, and its embeddings of label texts."""
        encoder = self.stage.encoder(encoders_on_device(read_model(self.stage, corpus, models[self.stage.name])))
        return Trained(encoder, {ENCODER: encode_all(encoder, corpus.sides["label"], LABEL)},
                       {ENCODER: encoder.layout.views[QUERY]}, (ENCODER,))
