"""`xc predict`: tag texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.options import HOME, Home, Mlflow, Spec, open_tracker
from flows.config import shared


@Parameter(name="*")
@dataclass
class InputOptions:
    """Texts in a file, and where in it."""

    source: Annotated[str, Parameter(name="--input", allow_leading_hyphen=True,
                                     help="CSV, TSV, JSONL, Parquet, or a text a line; - is stdin.")] = ""
    text: Annotated[str, Parameter(help="Its column of texts; text or title by default.")] = ""
    content: Annotated[str, Parameter(help="Its column of longer texts; content by default.")] = ""
    uid: Annotated[str, Parameter(help="Its column of ids; uid by default.")] = ""

    @property
    def columns(self) -> dict[str, str]:
        """Role -> column, for the columns that were named."""
        named = {"uid": self.uid, "text": self.text, "content": self.content}
        return {role: name for role, name in named.items() if name}

    def check(self) -> None:
        """Raise UsageError for a column without a file, or a file that is not there: before a model is loaded."""
        if self.columns and not self.source:
            role = next(iter(self.columns))
            raise UsageError(f"--{role} names a column of a file", hint="give the file: --input FILE")
        if self.source:
            from tasks.data.sources.files import require_file

            require_file(self.source)


NO_INPUT = InputOptions()
K = Annotated[int, shared("k", "Labels a text.", variable=False)]
Threshold = Annotated[float, shared("threshold", "Least confidence of a label, 0 to 1; a text may get none.",
                                    variable=False)]


def _labels(role: str) -> Parameter:
    return Parameter(negative=(), allow_leading_hyphen=True, help=f"{role}, by uid, or branch:UID for a concept of the "
                     "vocabulary and all that is narrower; @FILE has one a line. Can be repeated.")


def predict(*texts: str, given: InputOptions = NO_INPUT, k: K = 10, threshold: Threshold = 0.0,
            only: Annotated[tuple[str, ...], _labels("Label to choose from")] = (),
            without: Annotated[tuple[str, ...], _labels("Label to leave out")] = (),
            form: Annotated[Literal["json", "csv"], Parameter(
                name="--format", help="One JSON object a text, or CSV with a row a label.")] = "json",
            model: Spec = "", home: Home = HOME, mlflow: Mlflow = "") -> None:
    """Tag texts, in their order."""
    from flows.cli.predict import predict_file, predict_texts, select

    if given.source.startswith("--"):
        raise UsageError(f"--input is followed by {given.source}", hint="name a file, or - for stdin")
    if given.source and Path(given.source).is_dir():
        raise UsageError(f"--input {given.source} is a folder", hint="name a file of it, or - for stdin")
    if texts and given.source:
        raise UsageError(f"there is --input {given.source} and a text beside it, {texts[0]!r}",
                         hint="leave one of them out; a text of several words needs quotes")
    if not texts and not given.source:
        raise UsageError("give either texts or --input", hint="xc predict 'a large wild cat'")
    given.check()
    if k < 1:
        raise UsageError(f"--k must be at least 1, got {k}")
    if not 0 <= threshold <= 1:
        raise UsageError(f"--threshold must be between 0 and 1, got {threshold:g}")
    retriever = open_retriever(model, home, mlflow)
    selection = select(retriever, only, without) if only or without else None
    if texts:
        predict_texts(retriever, texts, k, form, threshold=threshold, selection=selection)
    else:
        predict_file(retriever, given.source, k, form, given.columns, threshold=threshold, selection=selection)


def open_retriever(model: str, home: Path, mlflow: str) -> Any:
    """Return the retriever that `model` names in the registry, "" for the only model."""
    tracker = open_tracker(home, mlflow)
    from tasks.registry.resolve import resolve
    from xcmodels.retrieval.retriever import Retriever

    return Retriever.load(resolve(tracker, model or None).folder)
