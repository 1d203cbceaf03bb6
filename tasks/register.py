"""The model registry: a retriever becomes a version, and the better version becomes the champion.

A version names the digest of its retriever and what it scored on which test set; the alias `champion` moves only to a
version that beats the present one on the same test set. MLflow keeps no history of aliases, so each move is a record
in a tag of the version.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_contracts.errors import DamagedArtifact, ServerError, UsageError
from tasks.artifacts import MANIFEST
from tasks.files import file_digest
from tasks.logged_model import logged_model
from tasks.mlflow_client import Client
from tasks.mlflow_run import user_name
from tasks.registry import (
    CHALLENGER,
    CHAMPION,
    DIGEST,
    EXAMPLES,
    METRICS,
    PROMOTIONS,
    TEST,
    Version,
    champion_of,
    did_you_mean,
)
from tasks.tracking import Tracker

EXAMPLE = 200    # characters of an example that are kept
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


def register(tracker: Tracker, run_id: str, name: str, *, retriever_dir: Path, retriever_digest: str,
             evaluation: Mapping[str, float], test_digest: str, card: str, examples: Sequence[str] = (),
             primary: str = "P/1", remeasure: Remeasure | None = None) -> Registration:
    """Make the retriever a version of `name`, and the champion if it beats the present one on `primary`.

    A retriever that is a version already stays that version, with its measurement renewed. run_id: "" means the
    tracker's run, also where MLflow had not answered yet. examples: texts of the test set to try it on. remeasure:
    gives a champion's metrics on this test set where it was measured on another. Raises ServerError where MLflow fails.
    """
    if set("/:@'\"") & set(name) or not name.strip():
        raise UsageError(f"{name!r} cannot be the name of a model", hint="leave out / : @ and quotes")
    if primary not in evaluation:
        raise UsageError(f"no metric {primary!r}{did_you_mean(primary, list(evaluation))}")
    if file_digest(retriever_dir / MANIFEST) != retriever_digest:
        raise DamagedArtifact(f"{retriever_dir} is not the retriever {retriever_digest[:12]}",
                              hint="give the folder of an artifact, HOME/objects/<digest>")
    tags = {DIGEST: retriever_digest, TEST: test_digest, METRICS: json.dumps(dict(evaluation), sort_keys=True),
            EXAMPLES: json.dumps([text[:EXAMPLE] for text in examples])}
    with tracker.required() as client:
        run_id = run_id or _run_of(tracker)
        version = _version_of(client, name, retriever_digest)
        reused = version is not None
        if version is None:
            model = logged_model(tracker.home, client, run_id, retriever_dir, retriever_digest)
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
