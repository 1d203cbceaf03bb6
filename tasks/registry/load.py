"""Loading a registered model from Python."""

from pathlib import Path

from data_contracts.errors import UsageError
from tasks.registry.resolve import resolve
from tasks.tracking.tracker import Tracker
from xcmodels.retrieval.retriever import Retriever


def load(model: str = "", home: Path | str = ".xc", mlflow: str = "") -> Retriever:
    """Open the retriever that "NAME", "NAME@alias", "NAME/3" or "models:/NAME@alias" names, verified.

    An empty name means the only model of the home. Raises UsageError with the nearest name, DamagedArtifact where the
    files are not those that were registered.
    """
    if not isinstance(model or "", str):
        raise UsageError(f"{model!r} is not the name of a model",
                         hint="NAME, NAME@alias or NAME/3; xcflow.Retriever.load opens a folder")
    return Retriever.load(resolve(Tracker(Path(home), mlflow or None), model or None).folder)
