"""`xc export ...`: vectors, predictions and encoders as files for other programs."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from data_contracts.errors import UsageError
from flows.cli.commands.predict import NO_INPUT, InputOptions, K, open_retriever
from flows.cli.completion import versions
from flows.cli.options import HOME, Home, Mlflow, Spec, open_tracker, say

export = App(name="export", help="Write vectors or predictions of texts, or an encoder, to files for other programs.")
Out = Annotated[Path, Parameter(help="The file to write: .parquet; of texts' vectors also .npy.")]


@export.command
def embeddings(*, out: Out, given: InputOptions = NO_INPUT, model: Spec = "", home: Home = HOME,
               mlflow: Mlflow = "") -> None:
    """Write the vectors of the texts of --input; without one, those of the labels, a column an index."""
    from flows.cli.export import check, export_embeddings, export_labels

    check(out, "embeddings")
    given.check()
    retriever = open_retriever(model, home, mlflow)
    rows = export_embeddings(retriever, _texts(given), out) if given.source else export_labels(retriever, out)
    say(f"{rows:,} rows in {out}")


@export.command
def predictions(*, out: Out, given: InputOptions = NO_INPUT, k: K = 10, model: Spec = "",
                home: Home = HOME, mlflow: Mlflow = "") -> None:
    """Write the best labels of the texts of --input, a row a label."""
    from flows.cli.export import check, export_predictions

    check(out, "predictions")
    if not given.source:
        raise UsageError("no texts are given", hint="--input FILE")
    if k < 1:
        raise UsageError(f"--k must be at least 1, got {k}")
    given.check()
    rows = export_predictions(open_retriever(model, home, mlflow), _texts(given), k, out)
    say(f"{rows:,} rows in {out}")


@export.command
def encoder(model: Annotated[str, Parameter(completer=versions)], folder: Path, /, *,
            to: Annotated[Literal["sentence-transformers", "onnx", "hub-folder"], Parameter(
                help="For sentence-transformers, for onnxruntime, or the first as a repository of a model hub.")]
            = "sentence-transformers", home: Home = HOME, mlflow: Mlflow = "") -> None:
    """Write MODEL's encoder to the new FOLDER, with label vectors and a model card; to use it xcflow is not needed."""
    tracker = open_tracker(home, mlflow)
    from tasks.export.export import export_encoder

    done = export_encoder(tracker, model, folder, to)
    say(f"{done.version}: encoder in {folder}, label vectors: {', '.join(done.vectors)}")
    if not done.plain:
        say("its code, xcflow_encoder.py, is run by: SentenceTransformer(FOLDER, trust_remote_code=True)")
    print(folder)


def _texts(given: InputOptions) -> Any:
    from flows.cli.predict import queries

    return queries(given.source, given.columns, [])
