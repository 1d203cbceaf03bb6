"""`xc predict` and `xc presets`: asking what there is."""

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from data_contracts.errors import UsageError
from flows.cli.config_file import FILE, GIVEN
from flows.cli.options import HOME, Home, Json, Mlflow, Spec, columns, environment, require_home


@Parameter(name="*")
@dataclass
class Input:
    """Texts in a file, and where in it."""

    source: Annotated[str, Parameter(name="--input", allow_leading_hyphen=True,
                                     help="CSV, TSV, JSONL, Parquet, or a text a line; - is stdin.")] = ""
    text: Annotated[str, Parameter(help="Its column of texts; text or title by default.")] = ""
    content: Annotated[str, Parameter(help="Its column of longer texts; content by default.")] = ""
    uid: Annotated[str, Parameter(help="Its column of ids; uid by default.")] = ""

    def columns(self) -> dict[str, str]:
        """Return the columns that were named, by role."""
        named = {"uid": self.uid, "text": self.text, "content": self.content}
        return {role: name for role, name in named.items() if name}


NO_INPUT = Input()


def predict(*texts: str, given: Input = NO_INPUT, k: Annotated[int, Parameter(help="Labels a text.")] = 10,
            form: Annotated[Literal["json", "csv"], Parameter(
                name="--format", help="One JSON object a text, or CSV with a row a label.")] = "json",
            model: Spec = "", home: Home = HOME, mlflow: Mlflow = "") -> None:
    """Tag texts, in their order."""
    from flows.cli.predict import open_retriever, predict_file, predict_texts
    from flows.services.catalogue import mlflow_of

    if given.source.startswith("--"):
        raise UsageError(f"--input is followed by {given.source}", hint="name a file, or - for stdin")
    if bool(texts) == bool(given.source):
        raise UsageError("give either texts or --input", hint="xc predict 'a large wild cat'")
    if texts and (columns := given.columns()):
        raise UsageError(f"--{next(iter(columns))} names a column of a file", hint="give the file: --input FILE")
    if k < 1:
        raise UsageError(f"--k must be at least 1, got {k}")
    require_home(home)
    environment(home)
    retriever = open_retriever(model, home, mlflow_of(home, mlflow))
    if texts:
        predict_texts(retriever, texts, k, form)
    else:
        predict_file(retriever, given.source, k, form, given.columns())


def presets(*, method: Annotated[str, Parameter(help="Method whose settings are explained.")] = "",
            preset: Annotated[str, Parameter(help="Preset whose values are shown with them.")] = "cpu",
            as_json: Json = False) -> None:
    """List the presets of each method; with --method, its settings and what each is; with --json, all of that."""
    from xcmodels.methods.presets import PRESETS, flat, resolve
    from xcmodels.methods.settings_help import explained

    # What xc.toml says of runs is no question about a method.
    method, preset = (default if GIVEN.sources.get(name) == FILE else value for name, value, default in (
        ("method", method, ""), ("preset", preset, "cpu")))
    try:
        shown = resolve(method, preset, {}) if method else None
    except ValueError as error:
        raise UsageError(str(error), hint="xc presets") from error
    wanted = {method: PRESETS[method]} if method else PRESETS
    if as_json:
        print(json.dumps({each: {name: {"about": made.about, "settings": flat(made.settings()),
                                        "explained": explained(made.settings())}
                                 for name, made in named.items()} for each, named in wanted.items()}, indent=1))
        return
    print("\n".join(columns([(each, name, made.about) for each, named in wanted.items()
                             for name, made in named.items()])))
    if shown is not None:
        told = explained(shown)
        print("\n".join(["", *columns([(key, value, told[key]) for key, value in flat(shown).items()])]))
