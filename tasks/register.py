"""The model registry: a retriever becomes a version, the better version becomes the champion, a name becomes a folder.

A version names the digest of its retriever and what it scored on which test set; the alias `champion` moves only to a
version that beats the present one on the same test set. MLflow keeps no history of aliases, so each move is a record
in a tag of the version.
"""

import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from data_contracts.errors import DamagedArtifact, ServerError, UsageError
from tasks.artifacts import MANIFEST, Artifact, Store, file_digest
from tasks.code import modules
from tasks.tracking import Client, Tracker, user_name

CHAMPION, CHALLENGER = "champion", "challenger"
DIGEST, TEST, METRICS, PROMOTIONS = "xc.retriever", "xc.test", "xc.metrics", "xc.promotions"
INSIDE = "artifacts/retriever"    # where the retriever is in the model's folder
PACKAGES = ("mlflow", "numpy", "pandas", "torch", "tokenizers", "safetensors", "faiss-cpu", "scipy", "transformers")
_log = logging.getLogger(__name__)
Version = Any                     # mlflow.entities.model_registry.ModelVersion
Remeasure = Callable[[Version], Mapping[str, float] | None]


@dataclass(frozen=True)
class Registration:
    """What became of a retriever; champion: {"version", "metrics"} of the one there was before.

    Its metrics are those on the same test set, empty where they are not known.
    """

    version: str
    reused: bool
    promoted: bool
    reason: str
    champion: dict[str, Any] | None


class Resolved(NamedTuple):
    """A version of a registered model, and the verified folder of its retriever."""

    name: str
    version: str
    folder: Path
    digest: str


def register(tracker: Tracker, run_id: str, name: str, *, retriever_dir: Path, retriever_digest: str,
             evaluation: Mapping[str, float], test_digest: str, card: str, primary: str = "P/1",
             remeasure: Remeasure | None = None) -> Registration:
    """Make the retriever a version of `name`, and the champion if it beats the present one on `primary`.

    A retriever that is a version already stays that version, with its measurement renewed. run_id: "" means the
    tracker's run, also where MLflow had not answered yet. remeasure: gives a champion's metrics on this test set where
    it was measured on another. Raises ServerError where MLflow fails.
    """
    if set("/:@'\"") & set(name) or not name.strip():
        raise UsageError(f"{name!r} cannot be the name of a model", hint="leave out / : @ and quotes")
    if primary not in evaluation:
        raise UsageError(f"no metric {primary!r}{_nearest(primary, list(evaluation))}")
    if file_digest(retriever_dir / MANIFEST) != retriever_digest:
        raise DamagedArtifact(f"{retriever_dir} is not the retriever {retriever_digest[:12]}",
                              hint="give the folder of an artifact, HOME/objects/<digest>")
    tags = {DIGEST: retriever_digest, TEST: test_digest, METRICS: json.dumps(dict(evaluation), sort_keys=True)}
    with tracker.required() as client:
        run_id = run_id or _run_of(tracker)
        version = _version_of(client, name, retriever_digest)
        reused = version is not None
        if version is None:
            model = _logged_model(tracker.home, client, run_id, retriever_dir, retriever_digest)
            # a database resolves models:/ addresses by MLflow's global state, which may be another database
            source = model.artifact_location if tracker.embedded else model.model_uri
            version = client.create_model_version(name, source, run_id, tags=tags, description=card,
                                                  model_id=model.model_id)
        elif any(version.tags.get(key) != value for key, value in tags.items()) or version.description != card:
            for key, value in tags.items():
                client.set_model_version_tag(name, version.version, key, value)
            client.update_model_version(name, version.version, card)
        champion = champion_of(client, name)
        theirs = _measured(champion, test_digest, remeasure)
        better, reason = _verdict(version, champion, evaluation, theirs, primary)
        if champion is None or champion.version != version.version:
            client.set_registered_model_alias(name, CHALLENGER, version.version)
        if better:
            promote(client, name, version.version, reason)
    compared = champion and {"version": str(champion.version), "metrics": dict(theirs or {})}
    return Registration(str(version.version), reused, better, reason, compared)


def _run_of(tracker: Tracker) -> str:
    missing = tracker.close()
    if tracker.run_id is None:
        raise ServerError(f"MLflow at {tracker.address} has no run to register with, {', '.join(missing)} is missing",
                          hint="run the same command again")
    return tracker.run_id


def promote(client: Client, name: str, version: str, why: str) -> None:
    """Make a version the champion; the record is written first, and not twice when a kill comes in between."""
    before = champion_of(client, name)
    records = json.loads(client.get_model_version(name, version).tags.get(PROMOTIONS, "[]"))
    record = {"from": before and str(before.version), "to": str(version), "why": why}
    if not records or {key: records[-1][key] for key in record} != record:
        stamp = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "who": user_name()}
        client.set_model_version_tag(name, version, PROMOTIONS, json.dumps([*records, {**stamp, **record}]))
    client.set_registered_model_alias(name, CHAMPION, version)


def champion_of(client: Client, name: str) -> Version | None:
    """Return the champion; None where the model, the alias or the version it names is not there (any more)."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def registered_digests(tracker: Tracker) -> set[str]:
    """Return the digests of every version's retriever: what a garbage collection has to keep."""
    with tracker.required() as client:
        return {version.tags[DIGEST] for version in client.search_model_versions() if DIGEST in version.tags}


def resolve(tracker: Tracker, spec: str | None = None) -> Resolved:
    """Return the version that "NAME", "NAME@alias" or "NAME/3" names, and the folder of its retriever, verified.

    NAME alone is its champion, or its newest version without one; None is the only model there is. Raises UsageError
    with the nearest name, DamagedArtifact where the files are not those that were registered.
    """
    nothing = UsageError(f"no model is registered in {tracker.address}", hint="xc run --data DIR")
    if tracker.embedded and not (tracker.home / "mlflow.db").exists():
        raise nothing    # making a database takes seconds
    with tracker.required() as client:
        models = [model.name for model in client.search_registered_models()]
        if not models:
            raise nothing
        if spec is None and len(models) > 1:
            raise UsageError(f"there are {len(models)} models: {', '.join(models)}", hint="name one of them")
        name, mark, which = _parsed(models[0] if spec is None else spec)
        if name not in models:
            raise UsageError(f"no model {name!r}{_nearest(name, models)}")
        versions = {str(each.version): each for each in client.search_model_versions(f"name = '{name}'")}
        number = _number(name, mark, which, client.get_registered_model(name).aliases, versions)
        digest = versions[number].tags.get(DIGEST, "")
        if not digest:
            raise UsageError(f"{name}/{number} was not registered by xc", hint=f"name another version of {name}")
        return Resolved(name, number, _stored(tracker.home, digest)
                        or _fetched(tracker, client, versions[number], digest), digest)


def _parsed(spec: str) -> tuple[str, str, str]:
    """Return (name, "@" or "/" or "", alias or version)."""
    spec = spec.removeprefix("models:/")
    mark = "@" if "@" in spec else "/"
    name, found, which = spec.partition(mark)
    return name, found, which


def _number(name: str, mark: str, which: str, aliases: Mapping[str, Any], versions: Mapping[str, Version]) -> str:
    """Return the version that is meant."""
    if not versions:
        raise UsageError(f"model {name!r} has no version", hint="xc run --data DIR")
    if mark == "/":
        if which not in versions:
            raise UsageError(f"{name} has no version {which!r}{_nearest(which, list(versions))}")
        return which
    if not mark and CHAMPION not in aliases:
        return max(versions, key=int)
    alias = which if mark else CHAMPION
    if alias not in aliases:
        raise UsageError(f"{name} has no alias {alias!r}{_nearest(alias, list(aliases))}")
    if str(aliases[alias]) not in versions:
        raise UsageError(f"{name}@{alias} is version {aliases[alias]}, which was deleted",
                         hint=f"name another: {', '.join(f'{name}/{each}' for each in versions)}")
    return str(aliases[alias])


def _measured(champion: Version | None, test_digest: str, remeasure: Remeasure | None) -> Mapping[str, float] | None:
    """Return the champion's metrics on this test set, None where they are not known."""
    if champion is None:
        return None
    if champion.tags.get(TEST) == test_digest:
        known: Mapping[str, float] = json.loads(champion.tags.get(METRICS, "{}"))
        return known
    return remeasure(champion) if remeasure else None


def _verdict(version: Version, champion: Version | None, ours: Mapping[str, float],
             theirs: Mapping[str, float] | None, primary: str) -> tuple[bool, str]:
    """Return whether the version is to be the champion, and why."""
    if champion is None:
        return True, "there was no champion"
    if champion.version == version.version:
        return False, "it is the champion already"
    if theirs is None:
        return False, f"champion v{champion.version} was measured on another test set, so they cannot be compared"
    what, new, old = primary.replace("/", "@"), ours[primary], theirs.get(primary)
    if old is None:
        return False, f"champion v{champion.version} has no {what} to compare with"
    better = new > old or (math.isnan(old) and not math.isnan(new))
    return better, f"{what} {new:.2f} against {old:.2f} of champion v{champion.version} ({new - old:+.2f})"


def _version_of(client: Client, name: str, digest: str) -> Version | None:
    """Return the version that holds this retriever, None where there is none; the model is made if it has to be."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return next((each for each in client.search_model_versions(f"name = '{name}'")
                 if each.tags.get(DIGEST) == digest and each.status == "READY"), None)


def _logged_model(home: Path, client: Client, run_id: str, retriever: Path, digest: str) -> Any:
    """Return the model of the run that holds the retriever; one that a kill left half written is written again."""
    experiment = client.get_run(run_id).info.experiment_id
    found = client.search_logged_models([experiment], filter_string=f"tags.`{DIGEST}` = '{digest}'")
    model = found[0] if found else client.create_logged_model(
        experiment, "retriever", run_id, tags={DIGEST: digest}, model_type="retriever")
    if str(model.status) == "READY":
        return model
    if (place := _local(model.artifact_location)) is not None:
        _write_model(place, model, retriever, digest)
    else:
        staging = home / "scratch" / f"register-{digest}"
        _write_model(staging, model, retriever, digest)
        client.log_model_artifacts(model.model_id, str(staging))
        shutil.rmtree(staging)
    return client.finalize_logged_model(model.model_id, "READY")


def _write_model(out: Path, model: Any, retriever: Path, digest: str) -> None:
    """Write a pyfunc model; the retriever is linked, not copied: MLflow's own way copies its 300 MB twice."""
    import mlflow
    import pandas as pd
    from mlflow.models.model import Model

    shutil.rmtree(out, ignore_errors=True)
    about = Model(artifact_path=model.artifact_location, run_id=model.source_run_id, model_uuid=model.model_id,
                  model_id=model.model_id)
    packages = sorted({each.partition(".")[0] for each in modules("xcmodels.retrieval")})
    mlflow.pyfunc.save_model(
        str(out), python_model=str(Path(__file__).with_name("pyfunc_model.py")), mlflow_model=about,
        code_paths=[str(Path(__file__).parents[1] / each) for each in packages],
        signature=_signature(), input_example=(pd.DataFrame({"text": ["a member of the genus Canis"]}), {"k": 5}),
        pip_requirements=_requirements())
    shutil.copytree(retriever, out / INSIDE, copy_function=_link)
    about.flavors["python_function"]["artifacts"] = {"retriever": {"path": INSIDE, "uri": f"objects/{digest}"}}
    about.model_size_bytes = sum(each.stat().st_size for each in out.rglob("*") if each.is_file())
    about.save(str(out / "MLmodel"))


def _signature() -> Any:
    """Return the types of params and outputs; with columns for the input, MLflow would refuse a list of texts."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    text, number, whole = DataType.string, DataType.double, DataType.long
    outputs: list[Any] = [ColSpec(Array(kind), name) for name, kind in
                          (("labels", text), ("scores", number), ("ids", whole), ("uids", text))]
    return ModelSignature(outputs=Schema(outputs), params=ParamSchema([ParamSpec("k", whole, 10)]))


def _requirements() -> list[str]:
    """Return what is installed of the packages that a retriever needs, pinned, without a local part like +cpu."""
    out = []
    for each in PACKAGES:
        with suppress(PackageNotFoundError):
            out.append(f"{each}=={installed(each).partition('+')[0]}")
    return out


def _stored(home: Path, digest: str) -> Path | None:
    """Return the verified object in HOME, None where there is none or it is damaged."""
    artifact = Artifact.of(digest)
    if not (home / artifact.path).is_dir():
        return None
    try:
        return Store(home, create=False).open(artifact)
    except (DamagedArtifact, UsageError) as error:
        _log.warning("%s; MLflow's copy is used", error.what)
        return None


def _fetched(tracker: Tracker, client: Client, version: Version, digest: str) -> Path:
    """Return MLflow's copy, verified: in place where it is on this machine, else downloaded once to HOME/downloads."""
    from mlflow.artifacts import download_artifacts

    if (place := _local(version.source)) is not None:
        return _verified(place / INSIDE, digest)
    folder = tracker.home / "downloads" / digest
    if folder.exists():
        return _verified(folder, digest)
    part = folder.with_suffix(f".{os.getpid()}.part")
    part.mkdir(parents=True, exist_ok=True)
    try:
        source = client.get_model_version_download_uri(version.name, version.version)
        download_artifacts(f"{source}/{INSIDE}", dst_path=str(part), tracking_uri=tracker.uri)
        with suppress(OSError):    # another process was faster
            os.rename(_verified(next(each.parent for each in part.rglob(MANIFEST)), digest), folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return _verified(folder, digest)


def _verified(folder: Path, digest: str) -> Path:
    """Return a copy of the object `digest` once every byte of it is known to be right; else DamagedArtifact."""
    try:
        wrong = None if file_digest(folder / MANIFEST) == digest else MANIFEST
        if wrong is None:
            listed = {each["path"]: each["sha256"] for each in json.loads((folder / MANIFEST).read_bytes())["files"]}
            found = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if not each.is_dir()}
            strange = listed.keys() ^ (found - {MANIFEST})
            wrong = next((path for path in sorted(listed.keys() | strange) if path in strange
                          or file_digest(folder / path) != listed[path]), None)
    except OSError as error:
        wrong = f"{error.filename}: {error.strerror}"
    if wrong is not None:
        raise DamagedArtifact(f"{folder} is not the retriever {digest[:12]} as it was registered: {wrong}",
                              hint="run the pipeline again, which rebuilds it, or name another version")
    return folder


def _local(uri: str) -> Path | None:
    """Return the folder that an artifact location is on this machine; None where it is behind a server."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(uri) if not parts.scheme else None


def _link(source: str, target: str) -> None:
    """Give a file a second name: objects never change, so it is as good as a copy; on another disk, copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _nearest(word: str, options: list[str]) -> str:
    from xcmodels.presets import nearest  # takes torch along, so only where there is something to explain

    return nearest(word, options) if options else ""


def model_card(title: str, *, use: str, data: Mapping[str, Any], metrics: Mapping[str, float],
               deciles: Sequence[Mapping[str, float]], command: str) -> str:
    """Return a version's description in Markdown; its limits are what the evaluation measured.

    data: facts by name, shown as they are. metrics and deciles: those of the evaluation step.
    """
    facts = [f"- {name}: {value:,}" if isinstance(value, int) else f"- {name}: {value}" for name, value in data.items()]
    shown = [key for key in ("P/1", "P/3", "P/5", "nDCG/5", "PSP/1", "PSP/3", "PSP/5", "recall/10", "recall/100")
             if key in metrics]
    table = ["| " + " | ".join(key.replace("/", "@") for key in shown) + " |", "|" + " --- |" * len(shown),
             "| " + " | ".join(f"{metrics[key]:.2f}" for key in shown) + " |"]
    return "\n".join([
        f"# {title}", "", "## Intended use", "", use, "", "## Data", "", *facts, "", "## Metrics", "",
        "In percent, on the test queries, filter pairs left out.", "", *table, "", "Measured by:", "",
        f"    {command}", "", "## Limits", "", *_limits(metrics, deciles), ""])


def _limits(metrics: Mapping[str, float], deciles: Sequence[Mapping[str, float]]) -> list[str]:
    """Return what the measurement says about where the retriever fails, one line each."""
    out = ["- It answers every text with labels from its own list, also one that none of them fits."]
    if "P/1" in metrics:
        out.append(f"- The best label is wrong for {100 - metrics['P/1']:.1f}% of the test queries.")
    if {"P/1/low", "P/1/high"} <= metrics.keys():
        out.append(f"- P@1 lies between {metrics['P/1/low']:.2f} and {metrics['P/1/high']:.2f} (95% interval).")
    judged = [each for each in deciles if each["positives"]]
    if judged:
        low, high = judged[0], judged[-1]
        key = next(key for key in low if key.startswith("recall/"))
        out.append(f"- Rare labels: of the true labels seen at most {low['max_frequency']:,.0f} times in training, "
                   f"{low[key]:.1f}% are among the best {key.partition('/')[2]}; "
                   f"of the most frequent ones {high[key]:.1f}%.")
    if metrics.get("left_out"):
        out.append(f"- {metrics['left_out']:,.0f} test queries without a true label were not judged.")
    out += [f"- The index {key.split('/')[1]!r} finds {value:.1f}% of what exact search finds."
            for key, value in metrics.items() if key.startswith("index/") and value < 99.95]
    return out
