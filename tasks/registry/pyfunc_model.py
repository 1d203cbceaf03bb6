"""The retriever as an MLflow model: texts in; label texts, scores, confidences, ids and uids out.

MLflow stores a copy of this file with the model and runs it wherever the model is loaded, so it may import only what
is stored with it: `xcmodels` and the packages in the model's requirements.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class RetrieverModel(PythonModel):
    """Tags texts with the best labels of the retriever in the model's folder."""

    def load_context(self, context: Any) -> None:
        """Verify and open the retriever; its files are mapped into memory.

        Raises ValueError where they are not those that were registered.
        """
        from xcmodels.retrieval.retriever import Retriever

        verify(Path(context.artifacts["retriever"]), context.model_config["retriever"])
        self.retriever = Retriever.load(context.artifacts["retriever"])

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return one row per text with lists, best first: labels, scores, confidences, ids and uids.

        model_input: a data frame with a column "text" and maybe "content", or a list of texts. params: at most how many
        labels, and their least confidence, {"k": 10, "threshold": 0.0}; and the uids of labels to choose from and to
        leave out, {"only": ["printer"], "without": []}, where an empty `only` is all labels.
        """
        texts, contents = columns(model_input)
        given = params or {}
        only, without = (list(map(str, given.get(name, ()))) for name in ("only", "without"))
        predictions = self.retriever.predict(texts, int(given.get("k", 10)), contents, float(given.get("threshold", 0)),
                                             only=only or None, without=without)
        return pd.DataFrame({column: [[getattr(label, field) for label in row] for row in predictions] for column, field
                             in (("labels", "text"), ("scores", "score"), ("confidences", "confidence"), ("ids", "id"),
                                 ("uids", "uid"))})


def verify(folder: Path, digest: str) -> None:
    """Raise ValueError unless a folder's manifest has this sha256, and each file the sha256 listed there."""
    manifest = (folder / "MANIFEST.json").read_bytes()
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise ValueError(f"{folder} is not the retriever {digest[:12]}: MANIFEST.json is another one")
    for file in json.loads(manifest)["files"]:
        with open(folder / file["path"], "rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != file["sha256"]:
                raise ValueError(f"{folder / file['path']} is not as it was registered")


def columns(model_input: Any) -> tuple[list[str], list[str]]:
    """Return texts and contents; a missing content is empty. Raises ValueError without texts."""
    if not isinstance(model_input, pd.DataFrame):
        texts = [model_input] if isinstance(model_input, str) else [str(text) for text in model_input]
        return texts, [""] * len(texts)
    if "text" not in model_input.columns:
        raise ValueError(f'need a column "text", got {", ".join(map(str, model_input.columns))}')
    texts = model_input["text"].tolist()
    contents = model_input["content"].tolist() if "content" in model_input.columns else [""] * len(texts)
    return texts, [content if isinstance(content, str) else "" for content in contents]


set_model(RetrieverModel())
