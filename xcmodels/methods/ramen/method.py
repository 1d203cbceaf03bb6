"""RAMEN as a method: a base's stages, graphs on the first, and the base's retriever, which knows nothing of them."""

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
from xcmodels.methods.served import ComposedRetriever, read_model
from xcmodels.training.checkpoint import save_model


class RamenRetriever:
    """Builds the base's retriever of the base's model."""

    def __init__(self, base: ComposedRetriever, stage: GraphStage) -> None:
        self.base, self.stage = base, stage
        base.method = "ramen"

    @property
    def settings(self) -> Mapping[str, object]:
        """The base's."""
        return self.base.settings

    def __call__(self, corpus: Corpus, models: Mapping[str, Path], vectors: Mapping[str, np.ndarray],
                 out: Path) -> dict[str, float]:
        """Write the retriever to `out`."""
        model = read_model(self.stage, corpus, models[self.stage.name])
        with TemporaryDirectory() as folder:
            save_model(model.base, Path(folder))
            return self.base(corpus, {**models, self.stage.name: Path(folder)}, vectors, out)


def ramen(base: Callable[[Any], Method]) -> Callable[[RamenConfig], Method]:
    """Return what makes RAMEN over a base method, whose first stage trains an encoder."""
    def made(config: RamenConfig) -> Method:
        plain = base(replace(config.base, seed=config.seed))
        first, *others = plain.stages
        assert isinstance(first, EncoderStage)
        assert isinstance(plain.build_retriever, ComposedRetriever)
        stage = GraphStage(first, config.graph)
        return replace(plain, name="ramen", stages=[stage, *others], base=plain.name, needs_graphs=True,
                       build_retriever=RamenRetriever(plain.build_retriever, stage))

    return made
