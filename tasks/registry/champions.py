"""Champions: moves of the alias, each on record, rollback, and the list of all versions.

MLflow keeps no history of aliases, so each move is a record in a tag of the version that it made the champion; the
record is written before the alias moves, and not twice when a kill comes in between.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from data_contracts.errors import UsageError
from tasks.evaluation.gates import Score
from tasks.registry.tags import (
    BASE,
    CHAMPION,
    DECILES,
    DIGEST,
    GATES,
    METRICS,
    PROMOTIONS,
    TEST,
    Version,
    champion_of,
    trained_version,
    versions_of,
)
from tasks.tracking.mlflow_client import Client, all_pages
from tasks.tracking.mlflow_run import user_name
from tasks.tracking.tracker import Tracker

BY_A_PERSON = ("promoted", "forced", "rollback")    # how the alias moved; otherwise by the gates, or edits of labels


def score_of(version: Version) -> Score:
    """Return the score recorded in a version's tags."""
    return Score(json.loads(version.tags.get(METRICS, "{}")), json.loads(version.tags.get(DECILES, "[]")))


def rollback(tracker: Tracker, name: str, reason: str, *, dry_run: bool = False,
             expected: tuple[str, str] | None = None) -> tuple[str, str]:
    """Make the previous champion the champion again; return the versions (from, to).

    A second rollback goes back one further. expected: what a dry run returned. Raises UsageError where there is no
    earlier champion, and where the versions are no longer those that were expected.
    """
    with tracker.required() as client:
        existing = {str(each.version) for each in versions_of(client, name)}
        champion = champion_of(client, name)
        now = str(champion.version) if champion else ""
        before = [number for number in _before(_champions(history(client, name)), now) if number in existing]
        while before and before[-1] == now:    # the champion in between was deleted
            before.pop()
        if not before and champion and BASE in champion.tags:
            raise UsageError(f"{name} has had no champion before v{now} but the same without label edits, which no "
                             "rollback undoes", hint="xc labels list shows the edits; one is undone by its opposite")
        if not before:
            raise UsageError(f"{name} has had no champion before {'v' + now if now else 'now'}",
                             hint=f"name one: xc promote {shlex.quote(f'{name}/VERSION')} --force --reason '...'")
        if expected and (now, before[-1]) != expected:
            raise UsageError(f"{name} has another champion since it was looked at", hint="run the same command again")
        if not dry_run:
            move(client, name, before[-1], reason, how="rollback")
        return now, before[-1]


def _champions(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the versions that were champion, in order, each as often as it was.

    Left out are champions that a rollback took back, and versions whose labels were edited: the version with the edits
    stands in their place.
    """
    champions: list[str] = []
    for record in records:
        to, last, how = record["to"], record.get("from"), record.get("how")
        if last and last not in champions:
            champions.append(last)    # the alias was moved by other means, or its record was deleted with the version
        champions = [*_before(champions, last), last] if last else []
        if how == "labels":
            champions = champions[:-1]
        elif how == "rollback":
            champions = _before(champions[:-1], to)
        champions.append(to)
    return champions


def _before(champions: list[str], version: str) -> list[str]:
    """Return the champions before the last time that `version` was; all of them where it never was."""
    return champions[:len(champions) - 1 - champions[::-1].index(version)] if version in champions else champions


def history(client: Client, name: str) -> list[dict[str, Any]]:
    """Return every move of the alias `champion`, the first one first."""
    records = [record for version in versions_of(client, name)
               for record in json.loads(version.tags.get(PROMOTIONS, "[]"))]
    return sorted(records, key=lambda record: (record.get("n", 0), record["when"]))    # the clock may have been set


def replaced_by_a_person(client: Client, version: Version) -> dict[str, Any] | None:
    """Return the last move that concerns a version, if by it a person replaced it as champion.

    A version with edited labels counts as the trained version behind it.
    """
    trained = {str(each.version): trained_version(each) for each in versions_of(client, version.name)}
    ours = trained_version(version)
    for record in reversed(history(client, version.name)):
        before, after = (trained.get(record.get(end), record.get(end)) for end in ("from", "to"))
        if before != after and ours in (before, after):
            return record if ours == before and record.get("how") in BY_A_PERSON else None
    return None


def move(client: Client, name: str, version: str, why: str, *, how: str) -> None:
    """Make a version the champion and record the move; how: gates | promoted | forced | rollback | labels."""
    before, records = champion_of(client, name), history(client, name)
    record = {"from": before and str(before.version), "to": str(version), "why": why, "how": how}
    if not records or {key: records[-1].get(key) for key in record} != record:
        number = max((each.get("n", 0) for each in records), default=0) + 1    # deleted versions took theirs along
        stamp = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "who": user_name(), "n": number}
        earlier = json.loads(client.get_model_version(name, version).tags.get(PROMOTIONS, "[]"))
        client.set_model_version_tag(name, version, PROMOTIONS, json.dumps([*earlier, {**stamp, **record}]))
    client.set_registered_model_alias(name, CHAMPION, version)


def listing(tracker: Tracker) -> list[dict[str, Any]]:
    """Return every version of every model: name, version, aliases, metrics, moves of the alias to it, gates.

    test: the digest of the test set that the metrics were measured on. base: for a version with edited labels, the
    trained version, which was measured; else "".
    """
    if tracker.is_empty:
        return []
    with tracker.required() as client:
        rows = []
        for model in all_pages(client.search_registered_models):
            # Search results come without aliases.
            aliases = client.get_registered_model(model.name).aliases
            for version in versions_of(client, model.name):
                number, tags = str(version.version), version.tags
                rows.append({
                    "name": model.name, "version": number,
                    "aliases": sorted(alias for alias, target in aliases.items() if str(target) == number),
                    "digest": tags.get(DIGEST, ""), "metrics": dict(score_of(version).metrics),
                    "test": tags.get(TEST, ""), "base": tags.get(BASE, ""),
                    "moves": json.loads(tags.get(PROMOTIONS, "[]")), "gates": json.loads(tags.get(GATES, "{}"))})
        return sorted(rows, key=lambda row: (row["name"], int(row["version"])))
