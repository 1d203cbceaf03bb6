"""`xc export ...`: vectors and predictions as files for other programs."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from data_contracts.errors import UsageError
from flows.cli.commands.predict import NO_INPUT, InputOptions, K, open_retriever
from flows.cli.options import HOME, Home, Mlflow, Spec, say

export = App(name="export", help="Write vectors or predictions of many texts to a file for other programs.")
Out = Annotated[Path, Parameter(help="The file to write: .parquet; of texts' vectors also .npy.")]


@export.command
def embeddings(*, out: Out, given: InputOptions = NO_INPUT, model: Spec = "", home: Home = HOME,
               mlflow: Mlflow = "") -> None:
    """Write the vectors of the texts of --input; without one, those of the labels, a column an index."""
    from flows.cli.export import checked, export_embeddings, export_labels

    checked(out, "embeddings")
    retriever = open_retriever(model, home, mlflow)
    rows = export_embeddings(retriever, _texts(given), out) if given.source else export_labels(retriever, out)
    say(f"{rows:,} rows in {out}")


@export.command
def predictions(*, out: Out, given: InputOptions = NO_INPUT, k: K = 10, model: Spec = "",
                home: Home = HOME, mlflow: Mlflow = "") -> None:
    """Write the best labels of the texts of --input, a row a label."""
    from flows.cli.export import checked, export_predictions

    checked(out, "predictions")
    if not given.source:
        raise UsageError("no texts are given", hint="--input FILE")
    if k < 1:
        raise UsageError(f"--k must be at least 1, got {k}")
    rows = export_predictions(open_retriever(model, home, mlflow), _texts(given), k, out)
    say(f"{rows:,} rows in {out}")


def _texts(given: InputOptions) -> Any:
    from flows.cli.predict import queries

    return queries(given.source, given.columns(), [])
