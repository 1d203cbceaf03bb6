"""The options of a run, each once: for commands, xc.toml, runs and forms.

Bounds are a field's metadata, which pydantic checks; those of an annotation, cyclopts would check with another message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from data_contracts.errors import UsageError
from tasks.core.remote import Source, name_of

Until = Literal["prepare", "train", "evaluate", "register", "report"]
HOME = Path(".xc")
SHARED = dict[str, list[Parameter]]()    # the options that xc.toml may set, by name


def shared(name: str, text: str, *, variable: bool = True, **more: Any) -> Parameter:
    """Return an option that commands of a project share: xc.toml may set it too, and an `XC_` variable."""
    variables = f"XC_{name.upper().replace('-', '_')}" if variable else None
    option = Parameter(name=f"--{name}", help=text, env_var=variables, **more)
    SHARED.setdefault(name, []).append(option)
    return option


def pairs(option: str, words: Sequence[str], example: str) -> dict[str, str]:
    """Return the values of an option that takes KEY=VALUE, by key; raise UsageError for another form."""
    out = {}
    for pair in words:
        key, mark, value = pair.partition("=")
        if not mark:
            raise UsageError(f"{option} takes KEY=VALUE, got {pair!r}", hint=f"{option} {example}")
        out[key] = value
    return out


Home = Annotated[Path, shared("home", "Folder for all state.")]
Share = Annotated[str, shared("store", "Address where results of steps are shared with other homes: "
                                       "s3://BUCKET/FOLDER; none where empty.")]
Mlflow = Annotated[str, shared("mlflow", "Address of an MLflow server; the home's own where empty.")]


@Parameter(name="*")
@dataclass
class CommonOptions:
    """The options that runs and deployments share: what to do on which data, and by whom."""

    data: Annotated[Source, shared("data", "Folder of the raw data set, or its address: s3://BUCKET/FOLDER.")]
    method: Annotated[str, shared("method", "Method to train.")] = "ngame"
    preset: Annotated[str, shared("preset", "Named settings of the method; see: xc presets.")] = "cpu"
    overrides: Annotated[list[str], Parameter(name="--set", help="A setting to change in the preset, KEY=VALUE; "
                                                                 "repeatable.")] = field(default_factory=list)
    home: Home = HOME
    store: Share = ""
    dask: Annotated[str, shared("dask", "Dask scheduler, tcp://HOST:PORT; embedded workers where empty.")] = ""
    workers: Annotated[int, shared("workers", "Embedded Dask workers (processes); 0 for the run's own process alone.",
                                   variable=False)] = field(default=2, metadata={"ge": 0, "le": 256})

    @property
    def subject(self) -> str:
        """The name of the data set's folder."""
        return name_of(self.data)

    @property
    def settings(self) -> dict[str, str]:
        """The settings that differ from the preset's; UsageError where one is not KEY=VALUE."""
        return pairs("--set", self.overrides, "m1.epochs=5")

    @property
    def recipe(self) -> tuple[str, str, dict[str, str]]:
        """Method, preset and changed settings: by them a training is known whose feedback is kept for it."""
        return self.method, self.preset, self.settings


@dataclass
class TrainingOptions(CommonOptions):
    """The options of a run that trains, which every step of it takes."""

    overlap: Annotated[Literal["auto", "always", "never"], Parameter(
        help="Mine on a Dask worker while training continues; auto: only where a GPU trains. It helps methods that "
             "mine with an older model (astra).")] = "auto"
    processes: Annotated[int, Parameter(
        help="Processes that train together, each with a share of the label vectors; one a GPU by default.")] = field(
            default=0, metadata={"ge": 0, "le": 64})
    nodes: Annotated[int, Parameter(
        help="Machines that train together, each by this command; by default as many as the environment names, "
             "or 1.")] = field(default=0, metadata={"ge": 0, "le": 1024})
    rendezvous: Annotated[str, Parameter(help="HOST:PORT of the machine that leads: there the others join it.")] = ""
    node: Annotated[int | None, Parameter(
        help="This machine's number; 0 leads. By default the machine leads whose address HOST is.")] = None
    rendezvous_seconds: Annotated[float, Parameter(help="How long to wait for the other machines.")] = field(
        default=600.0, metadata={"gt": 0, "le": 86_400})


@Parameter(name="*")
@dataclass
class NameOptions:
    """Of which model a run is, whose feedback it prepares along with the data."""

    name: Annotated[str, shared("name", "Name to register the model under; the data set's name where empty.",
                                variable=False)] = ""


@dataclass
class PrepareOptions(NameOptions, TrainingOptions):
    """What is prepared, for which model."""


@dataclass
class TrackingOptions(NameOptions):
    """Where a run is tracked, and as what."""

    mlflow: Mlflow = ""


@dataclass
class RunConfig(TrackingOptions, TrainingOptions):
    """A run; command: the one that reproduces it."""

    wanted_precision: Annotated[float, Parameter(
        help="Share of the answers that are to be right, 0 to 1: the report recommends a threshold for it.")] = field(
            default=0.8, metadata={"gt": 0, "le": 1})
    feedback: Annotated[Literal["use", "ignore"], Parameter(
        help="Whether it learns from what reviewers said of the model's answers; see: xc feedback.")] = "use"
    command: Annotated[str, Parameter(parse=False)] = ""


@dataclass
class DeployOptions(TrackingOptions, CommonOptions):
    """What the deployments work on, and what a retraining leaves in the home."""

    keep_days: Annotated[float, Parameter(
        help="Days for which unused results are kept; older ones are removed after each retraining, unless they are "
             "registered or served.")] = field(default=14.0, metadata={"ge": 0.0, "le": 36_500.0})


@Parameter(name="*")
@dataclass(frozen=True)
class Ports:
    """The ports of a home's services on loopback."""

    prefect: Annotated[int, shared("prefect-port", "Port of the Prefect server.")] = 4200
    mlflow: Annotated[int, shared("mlflow-port", "Port of the MLflow server.")] = 5000
    app: Annotated[int, shared("port", "Port of the app, which answers with labels.")] = 8000

    def check(self, *, prefect: str, mlflow: str) -> None:
        """Raise UsageError for a number that is no port, and for one that two parts would have.

        prefect, mlflow: addresses of servers that are used and not started.
        """
        options: dict[int, str] = {}
        for option, port, address in (("--prefect-port", self.prefect, prefect), ("--mlflow-port", self.mlflow, mlflow),
                                      ("--port", self.app, "")):
            if not 0 < port < 1 << 16:
                raise UsageError(f"{option} must be from 1 to 65535, got {port}")
            if not address and (other := options.setdefault(port, option)) != option:
                raise UsageError(f"{other} and {option} are both {port}", hint=f"choose another: {option} PORT")


PORTS = Ports()
