"""Parameters of the deployed flows: validated, and shown as forms in Prefect's UI."""

import shlex
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

from cyclopts import Parameter
from pydantic import BaseModel, Field, TypeAdapter, model_validator

from flows.config import DeployOptions, RunConfig
from tasks.core.remote import name_of, without_passwords
from xcmodels.methods.presets import PRESETS

PRESET_NAMES = sorted({name for presets in PRESETS.values() for name in presets})
HELP = {name: each.help.removesuffix(".") for name, hint in get_type_hints(DeployOptions, include_extras=True).items()
        for each in hint.__metadata__ if isinstance(each, Parameter) and each.help}
BOUNDS = {field.name: field.metadata for field in fields(DeployOptions)}
OPTIONAL = ("store", "name", "mlflow", "dask", "workers")    # what a command gives where it is not the default
ABSOLUTE = r"/[^\x00]*"
ADDRESS = r"[A-Za-z][A-Za-z0-9+.-]*://[^/@?\x00]*(/[^?\x00]*)?"    # without what credentials could be in
THERE = " on the worker's machine, an absolute path"
Folder = Annotated[str, Field(pattern=f"^{ABSOLUTE}$", max_length=4096)]
DataFolder = Annotated[str, Field(pattern=f"^({ABSOLUTE}|{ADDRESS})$", max_length=4096)]
Server = Annotated[str, Field(pattern=r"^(https?://[^\s/@][^\s@]*)?$", max_length=300)]    # without a password, too


def entry(position: int, option: str, title: str | None = None, note: str = "", *, choices: list[str] | None = None,
          **more: Any) -> Any:
    """Return a form's field for an option of `xc deploy`: the UI shows its help, the server checks its bounds."""
    shown: dict[str, Any] = {"position": position, **({"enum": choices} if choices else {})}
    default = getattr(DeployOptions, option, ...)
    about = {"description": HELP[option] + note, "default": default, **BOUNDS[option], **more}
    return Field(title=title, json_schema_extra=shown, **about)


class ApplyLabelsForm(BaseModel, extra="forbid"):
    """The model whose champion is to get the label edits."""

    name: str = entry(0, "name", "Model", description="Name of the registered model", default=...,
                      pattern=r"^[^/:@'\"]+$", max_length=200)
    home: Folder = entry(1, "home", note=THERE, default=...)
    mlflow: Server = entry(2, "mlflow", "MLflow")


class PrepareForm(BaseModel, extra="forbid"):
    """What to prepare, as which method's preset wants it."""

    data: DataFolder = entry(0, "data", note=f";{THERE}, or an address")
    method: str = entry(1, "method", choices=list(PRESETS))
    preset: str = entry(2, "preset", choices=PRESET_NAMES)
    settings: dict[str, str] = entry(3, "overrides", "Settings", default={}, max_length=200,
                                     description='Settings that differ from the preset: {"m1.epochs": "6"}')
    name: str = entry(4, "name", "Model", pattern=r"^[^/:@'\"]*$", max_length=200)
    home: Folder = entry(6, "home", note=THERE, default=...)
    store: str = entry(7, "store", "Store", pattern=f"^({ADDRESS})?$", max_length=4096)
    dask: str = entry(8, "dask", "Dask scheduler", pattern=r"^(tcp://[^\s/]+:\d+)?$", max_length=300)
    workers: int = entry(9, "workers")
    patience: float = Field(12.0, description="How long to wait for another run of the home to end (hours)", ge=0.0,
                            le=168.0, json_schema_extra={"position": 10})

    @model_validator(mode="after")
    def _preset_is_the_methods(self) -> "PrepareForm":
        if self.method not in PRESETS or self.preset not in PRESETS[self.method]:
            raise ValueError(f"no preset {self.preset!r} of a method {self.method!r}; see: xc presets")
        return self

    @property
    def subject(self) -> str:
        """The name of the model, where it was given; else of the data set's folder."""
        return self.name or name_of(self.data)

    def to_run_config(self, verb: str) -> RunConfig:
        """Return the run that the form describes; its command is the one that does the same by hand."""
        values = self.model_dump()
        overrides = [f"{key}={value}" for key, value in self.settings.items()]
        given = {option: str(values[option]) for option in OPTIONAL
                 if option in values and values[option] != getattr(DeployOptions, option)}
        command = ["xc", verb, "--data", self.data, "--method", self.method, "--preset", self.preset,
                   *[word for pair in overrides for word in ("--set", pair)], "--home", self.home,
                   *[word for option, value in given.items() for word in (f"--{option}", value)]]
        values |= {"overrides": overrides, "command": without_passwords(shlex.join(command)),
                   "nodes": 1}    # whatever the environment is
        return TypeAdapter(RunConfig).validate_python(values, extra="ignore")


class EvaluateForm(PrepareForm):
    """On what data to measure which model."""

    mlflow: Server = entry(5, "mlflow", "MLflow")


class RetrainForm(EvaluateForm):
    """What to train, measure and register, and what to leave in the home afterwards."""

    keep_days: float = entry(11, "keep_days", "Keep")
