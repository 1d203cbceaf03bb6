"""The retriever as an MLflow model: texts in; label texts, scores, confidences, ids and uids out.

MLflow stores a copy of this file with the model and runs it wherever the model is loaded, so it may import only what
is stored with it: `xcmodels` and the packages in the model's requirements.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel
from pandas.api.types import is_list_like


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

        model_input: a data frame with a column "text" and maybe "content", whose index is kept; such columns or records
        as dicts; or a list of texts. params: at most how many labels, and their least confidence, {"k": 10,
        "threshold": 0.0}; and the uids of labels to choose from and to leave out, {"only": ["printer"], "without": []},
        where an empty `only` is all labels. Raises ValueError for what is no text.
        """
        frame = as_frame(model_input)
        texts, contents = columns(frame)
        given = params or {}
        only, without = (list(map(str, given.get(name, ()))) for name in ("only", "without"))
        predictions = self.retriever.predict(texts, int(given.get("k", 10)), contents, float(given.get("threshold", 0)),
                                             only=only or None, without=without)
        return pd.DataFrame({column: [[getattr(label, field) for label in row] for row in predictions] for column, field
                             in (("labels", "text"), ("scores", "score"), ("confidences", "confidence"), ("ids", "id"),
                                 ("uids", "uid"))}, index=frame.index)


def verify(folder: Path, digest: str) -> None:
    """Raise ValueError unless a folder's manifest has this sha256, and each file the sha256 listed there."""
    manifest = (folder / "MANIFEST.json").read_bytes()
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise ValueError(f"{folder} is not the retriever {digest[:12]}: MANIFEST.json is another one")
    for file in json.loads(manifest)["files"]:
        with open(folder / file["path"], "rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != file["sha256"]:
                raise ValueError(f"{folder / file['path']} is not as it was registered")


def as_frame(model_input: Any) -> pd.DataFrame:
    """Return texts, records or columns as a data frame; what is no text stays what it is, for the retriever to refuse.

    MLflow's scoring server makes arrays of what a body has, even of one text.
    """
    if isinstance(model_input, pd.DataFrame):
        return model_input
    if isinstance(model_input, pd.Series):
        return model_input.to_frame("text")
    given = _without_arrays(model_input)
    if isinstance(given, dict) and any(map(is_list_like, given.values())):
        return pd.DataFrame(given, dtype=object)
    rows = list(given) if is_list_like(given) and not isinstance(given, dict) else [given]
    if rows and all(isinstance(row, dict) for row in rows):
        return pd.DataFrame(rows, dtype=object)
    return pd.DataFrame({"text": pd.Series(rows, dtype=object)})


def _without_arrays(value: Any) -> Any:
    """Return a value with lists, or single values, in place of NumPy's arrays."""
    if isinstance(value, dict):
        return {name: _without_arrays(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_arrays(inner) for inner in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def columns(frame: pd.DataFrame) -> tuple[list[Any], list[Any]]:
    """Return texts and contents; a missing content is empty. Raises ValueError without texts."""
    names = frame.columns.tolist()
    if "text" not in names:
        raise ValueError(f'need a column "text", got {", ".join(map(str, names)) or "none"}')
    if twice := [name for name in ("text", "content") if names.count(name) > 1]:
        raise ValueError(f'need one column "{twice[0]}", got {names.count(twice[0])}')
    texts = frame["text"].tolist()
    if "content" not in names:
        return texts, [""] * len(texts)
    contents = frame["content"].astype(object)
    return texts, contents.where(contents.notna(), "").tolist()


set_model(RetrieverModel())
