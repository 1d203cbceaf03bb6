"""`xc predict` and `xc presets`: asking what there is."""

import json
from typing import Annotated

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.commands.options import HOME, Home, Json, Mlflow, Spec, environment, require_home


def predict(*texts: str,
            source: Annotated[str, Parameter(name="--input", allow_leading_hyphen=True,
                                             help="File of texts or XC JSON lines; - is stdin.")] = "",
            k: Annotated[int, Parameter(help="Labels a text.")] = 10,
            model: Spec = "", home: Home = HOME, mlflow: Mlflow = "") -> None:
    """Tag texts: one JSON object a line, in the order of the texts."""
    from flows.predict import open_retriever, predict_file, predict_texts
    from flows.services import mlflow_of

    if source.startswith("--"):
        raise UsageError(f"--input is followed by {source}", hint="name a file, or - for stdin")
    if bool(texts) == bool(source):
        raise UsageError("give either texts or --input", hint="xc predict 'a large wild cat'")
    if k < 1:
        raise UsageError(f"--k must be at least 1, got {k}")
    require_home(home)
    environment(home)
    retriever = open_retriever(model, home, mlflow_of(home, mlflow))
    if texts:
        predict_texts(retriever, texts, k)
    else:
        predict_file(retriever, source, k)


def presets(*, as_json: Json = False) -> None:
    """List the presets of each method; with --json, every setting of each."""
    from xcmodels.presets import PRESETS, flat

    if as_json:
        print(json.dumps({method: {name: {"about": each.about, "settings": flat(each.settings())}
                                   for name, each in named.items()} for method, named in PRESETS.items()}, indent=1))
        return
    rows = [(method, name, each.about) for method, named in PRESETS.items() for name, each in named.items()]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    for method, name, about in rows:
        print(f"{method:<{first}} {name:<{second}} {about}")
