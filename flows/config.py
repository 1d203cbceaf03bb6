"""The parameters of a flow, checked before a run is created and shown as a form in Prefect's UI."""

from pathlib import Path

from pydantic import BaseModel, Field


class RunConfig(BaseModel):
    """What to run on which data, and where its state lives."""

    data: Path = Field(description="Folder of the raw data set", json_schema_extra={"position": 0})
    method: str = Field("ngame", description="Method to train", json_schema_extra={"position": 1})
    preset: str = Field("cpu", description="Named settings; see: xc presets", json_schema_extra={"position": 2})
    settings: dict[str, str] = Field(default_factory=dict, description="Settings that differ from the preset",
                                     json_schema_extra={"position": 3})
    home: Path = Field(Path(".xc"), description="Folder for all state", json_schema_extra={"position": 4})
    name: str = Field("", description="Name of the registered model; the data set's name where empty",
                      json_schema_extra={"position": 5})
    mlflow: str = Field("", description="URI of an MLflow server; sqlite in the home folder where empty",
                        json_schema_extra={"position": 6})
    dask: str = Field("", description="Address of a Dask scheduler; embedded workers where empty",
                      json_schema_extra={"position": 7})
    workers: int = Field(2, ge=1, le=256, description="Embedded Dask workers", json_schema_extra={"position": 8})
    command: str = Field("", description="The command that reproduces the run", json_schema_extra={"position": 9})
