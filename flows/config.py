"""Parameters of the flows: validated, and shown as forms in Prefect's UI."""

import shlex
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from xcmodels.methods.presets import PRESETS

Until = Literal["prepare", "train", "evaluate", "register", "report"]
Overlap = Literal["auto", "always", "never"]
ABSOLUTE = r"^/[^\x00]*$"
PRESET_NAMES = sorted({name for presets in PRESETS.values() for name in presets})


class RunConfig(BaseModel):
    """What to run on which data, and where its state lives."""

    data: Path = Field(description="Folder of the raw data set")
    method: str = Field("ngame", description="Method to train")
    preset: str = Field("cpu", description="Named settings; see: xc presets")
    settings: dict[str, str] = Field(default_factory=dict, description="Settings that differ from the preset")
    home: Path = Field(Path(".xc"), description="Folder for all state")
    name: str = Field("", description="Name of the registered model; the data set's name where empty")
    mlflow: str = Field("", description="URI of an MLflow server; sqlite in the home folder where empty")
    dask: str = Field("", description="Address of a Dask scheduler; embedded workers where empty")
    workers: int = Field(2, ge=1, le=256, description="Embedded Dask workers")
    overlap: Overlap = Field("auto", description="Refresh while training goes on: auto is where a GPU trains")
    processes: int = Field(0, ge=0, le=64, description="Processes that train together; one a GPU where 0")
    command: str = Field("", description="The command that reproduces the run")


def entry(position: int, title: str, description: str, default: Any = ..., **bounds: Any) -> Any:
    """Return a field of a form; the UI shows its `bounds`, and the server refuses values outside of them."""
    shown = {"position": position, **bounds.pop("shown", {})}
    return Field(default, title=title, description=description, json_schema_extra=shown, **bounds)


class RefreshForm(BaseModel):
    """Whose labels to refresh."""

    model_config = ConfigDict(extra="forbid")

    name: str = entry(0, "Model", "Name of the registered model", pattern=r"^[^/:@'\"]+$", max_length=200)
    home: str = entry(1, "Home", "Folder for all state on the worker's machine, an absolute path",
                      pattern=ABSOLUTE, max_length=4096)
    mlflow: str = entry(2, "MLflow", "Address of an MLflow server; the home's own where empty", "",
                        pattern=r"^(https?://[^\s/]+.*)?$", max_length=300)


class PrepareForm(BaseModel):
    """What to prepare, as which method's preset wants it."""

    model_config = ConfigDict(extra="forbid")

    data: str = entry(0, "Data", "Folder of the raw data set on the worker's machine, an absolute path",
                      pattern=ABSOLUTE, max_length=4096)
    method: str = entry(1, "Method", "Method to train", "ngame", shown={"enum": list(PRESETS)})
    preset: str = entry(2, "Preset", "Named settings of the method; see: xc presets", "cpu",
                        shown={"enum": PRESET_NAMES})
    settings: dict[str, str] = entry(3, "Settings", 'Settings that differ from the preset: {"m1.epochs": "6"}', {},
                                     max_length=200)
    home: str = entry(6, "Home", "Folder for all state on the worker's machine, an absolute path",
                      pattern=ABSOLUTE, max_length=4096)
    dask: str = entry(7, "Dask scheduler", "Address, tcp://HOST:PORT; embedded workers where empty", "",
                      pattern=r"^(tcp://[^\s/]+:\d+)?$", max_length=300)
    workers: int = entry(8, "Workers", "Embedded Dask workers (processes)", 2, ge=1, le=256)
    patience: float = entry(9, "Patience", "How long to wait for another run of the home to end (hours)", 12.0,
                            ge=0.0, le=168.0)

    @model_validator(mode="after")
    def _preset_is_the_methods(self) -> "PrepareForm":
        if self.method not in PRESETS or self.preset not in PRESETS[self.method]:
            raise ValueError(f"no preset {self.preset!r} of a method {self.method!r}; see: xc presets")
        return self

    @property
    def subject(self) -> str:
        """The name of the data set."""
        return Path(self.data).name

    def run(self, verb: str) -> RunConfig:
        """Return the run that the form describes; its command is the one that does the same by hand."""
        values = self.model_dump(exclude={"patience"})
        command = ["xc", verb, "--data", self.data, "--method", self.method, "--preset", self.preset,
                   *[word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")],
                   "--home", self.home, *(["--name", values["name"]] if values.get("name") else [])]
        return RunConfig.model_validate({**values, "command": shlex.join(command)})


class EvaluateForm(PrepareForm):
    """On what data to measure which model."""

    name: str = entry(4, "Model", "Name to register the model under; the data set's name where empty", "",
                      pattern=r"^[^/:@'\"]*$", max_length=200)
    mlflow: str = entry(5, "MLflow", "Address of an MLflow server; the home's own where empty", "",
                        pattern=r"^(https?://[^\s/]+.*)?$", max_length=300)

    @property
    def subject(self) -> str:
        """The name of the model."""
        return self.name or Path(self.data).name


class RetrainForm(EvaluateForm):
    """What to train, measure and register, and what to leave in the home afterwards."""

    keep_days: float = entry(10, "Keep", "What no run has asked for in so many days is removed at the end, unless it "
                                         "is registered or served (days)", 14.0, ge=0.0, le=36_500.0)
