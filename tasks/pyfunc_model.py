"""The retriever as an MLflow model: texts in; label texts, scores, ids and uids out.

MLflow keeps a copy of this file beside the model and runs it wherever the model is loaded, so it may import nothing but
what goes with it: `xcmodels` and the packages in the model's requirements.
"""

from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class RetrieverModel(PythonModel):
    """Tags texts with the best labels of the retriever in the model's folder."""

    def load_context(self, context: Any) -> None:
        """Open the retriever; its matrices are mapped into memory."""
        from xcmodels.retrieval import Retriever

        self.retriever = Retriever.load(context.artifacts["retriever"])

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return a row a text, its lists best first: labels, scores, ids and uids.

        model_input: a data frame with a column "text" and maybe "content", or a list of texts. params: {"k": 10}.
        """
        texts, contents = columns(model_input)
        found = self.retriever.predict(texts, int((params or {}).get("k", 10)), contents)
        return pd.DataFrame({
            "labels": [[label.text for label in row] for row in found],
            "scores": [[label.score for label in row] for row in found],
            "ids": [[label.id for label in row] for row in found],
            "uids": [[label.uid for label in row] for row in found]})


def columns(model_input: Any) -> tuple[list[str], list[str]]:
    """Return texts and contents; a missing content is empty. Raises ValueError without texts."""
    if not isinstance(model_input, pd.DataFrame):
        texts = [model_input] if isinstance(model_input, str) else [str(each) for each in model_input]
        return texts, [""] * len(texts)
    if "text" not in model_input.columns:
        raise ValueError(f'need a column "text", got {", ".join(map(str, model_input.columns))}')
    texts = model_input["text"].tolist()
    contents = model_input["content"].tolist() if "content" in model_input.columns else [""] * len(texts)
    return texts, [each if isinstance(each, str) else "" for each in contents]


set_model(RetrieverModel())
