"""RAMEN as a method: graphs regularise the first stage of a base method."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from xcmodels.data.corpus import Corpus
from xcmodels.method import EncoderStage, Method
from xcmodels.methods.ramen.config import RamenConfig
from xcmodels.methods.ramen.stages import GraphStage
from xcmodels.methods.retriever_builder import BaseRetrieverBuilder
from xcmodels.training.checkpoint import read_model, save_model


class RamenRetrieverBuilder:
    """Builds the base's retriever from the base's part of the model, without graphs."""

    def __init__(self, base: BaseRetrieverBuilder[Any, Any], stage: GraphStage) -> None:
        self.base, self.stage = base, stage

    @property
    def settings(self) -> Mapping[str, object]:
        return self.base.settings

    def __call__(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray],
                 out: Path) -> dict[str, float]:
        """Write the retriever to `out`."""
        model = read_model(self.stage, corpus, models[self.stage.name])
        with TemporaryDirectory() as folder:
            save_model(model.base, Path(folder))
            return self.base(corpus, {**models, self.stage.name: Path(folder)}, vectors, out)


def ramen(base: Callable[[Any], Method]) -> Callable[[RamenConfig], Method]:
    """Return the factory of RAMEN over a base method, whose first stage must train an encoder."""
    def make(config: RamenConfig) -> Method:
        method = base(replace(config.base, seed=config.seed))
        first, *others = method.stages
        assert isinstance(first, EncoderStage)
        assert isinstance(method.build_retriever, BaseRetrieverBuilder)
        stage = GraphStage(first, config.graph)
        return replace(method, name="ramen", stages=[stage, *others], base=method.name, needs_graphs=True,
                       build_retriever=RamenRetrieverBuilder(method.build_retriever.named("ramen"), stage))

    return make
