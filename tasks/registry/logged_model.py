"""A retriever logged to MLflow as a pyfunc model, with its code and requirements.

The manifest of its folder lists every file, code too; its digest is a tag of the model (`tasks.registry.fetch`).
"""

import hashlib
import shutil
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from tasks.core.code_digest import modules
from tasks.core.files import write_file
from tasks.core.manifest import MANIFEST, VERSION, canonical, sealed
from tasks.registry.tags import DIGEST, FILES, RETRIEVER_PATH, local_folder
from tasks.tracking.mlflow_client import Client
from xcmodels.retrieval.label_editing import link_or_copy

PACKAGES = ("mlflow", "numpy", "pandas", "torch", "tokenizers", "safetensors", "faiss-cpu", "scipy", "transformers")


def logged_model(home: Path, client: Client, run_id: str, retriever: Path, digest: str, *, anew: bool = False) -> Any:
    """Return the run's logged model of the retriever, written if it is missing or incomplete.

    Its tag FILES is the digest of its manifest. anew: write its files again in any case.
    """
    experiment = client.get_run(run_id).info.experiment_id
    models = client.search_logged_models([experiment], filter_string=f"tags.`{DIGEST}` = '{digest}'")
    model = models[0] if models else client.create_logged_model(
        experiment, "retriever", run_id, tags={DIGEST: digest}, model_type="retriever")
    if str(model.status) == "READY" and not anew:
        return model
    if (place := local_folder(model.artifact_location)) is not None:
        files = _write_model(place, model, retriever, digest)
    else:
        staging = home / "scratch" / f"register-{digest}"
        files = _write_model(staging, model, retriever, digest)
        client.log_model_artifacts(model.model_id, str(staging))
        shutil.rmtree(staging)
    client.set_logged_model_tags(model.model_id, {FILES: files})
    return client.finalize_logged_model(model.model_id, "READY")


def _write_model(out: Path, model: Any, retriever: Path, digest: str) -> str:
    """Write a pyfunc model, then a manifest of its files; return the digest of the manifest.

    The retriever is linked, not copied: MLflow itself would copy its 300 MB twice.
    """
    import mlflow
    import pandas as pd
    from mlflow.models.model import Model

    shutil.rmtree(out, ignore_errors=True)
    about = Model(artifact_path=model.artifact_location, run_id=model.source_run_id, model_uuid=model.model_id,
                  model_id=model.model_id)
    packages = sorted({module.partition(".")[0] for module in modules("xcmodels.retrieval.retriever")})
    mlflow.pyfunc.save_model(
        str(out), python_model=str(Path(__file__).with_name("pyfunc_model.py")), mlflow_model=about,
        code_paths=[str(Path(__file__).parents[2] / package) for package in packages],
        signature=_signature(), input_example=(pd.DataFrame({"text": ["a member of the genus Canis"]}), {"k": 5}),
        pip_requirements=_requirements(), model_config={"retriever": digest})
    shutil.copytree(retriever, out / RETRIEVER_PATH, copy_function=link_or_copy)
    about.flavors["python_function"]["artifacts"] = {"retriever": {"path": RETRIEVER_PATH, "uri": f"objects/{digest}"}}
    about.model_size_bytes = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    about.save(str(out / "MLmodel"))
    manifest = canonical({"version": VERSION, "kind": "model", "files": sealed(out)[0]})
    write_file(out / MANIFEST, manifest)
    return hashlib.sha256(manifest).hexdigest()


def _signature() -> Any:
    """Return the types of params and outputs; with input columns, MLflow would refuse a list of texts."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    text, number, whole = DataType.string, DataType.double, DataType.long
    outputs: list[Any] = [ColSpec(Array(kind), name) for name, kind in (
        ("labels", text), ("scores", number), ("confidences", number), ("ids", whole), ("uids", text))]
    params = ParamSchema([ParamSpec("k", whole, 10), ParamSpec("threshold", number, 0.0),
                          ParamSpec("only", text, [], (-1,)), ParamSpec("without", text, [], (-1,))])
    return ModelSignature(outputs=Schema(outputs), params=params)


def _requirements() -> list[str]:
    """Return the installed packages that a retriever needs, pinned, without a local part like +cpu."""
    pinned = []
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            pinned.append(f"{package}=={installed(package).partition('+')[0]}")
    return pinned
