"""Which version is the champion: moved by the gates, by a person with a reason, and back again.

MLflow keeps no history of aliases, so each move is a record in a tag of the version that it made the champion; the
record is written before the alias moves, and not twice when a kill comes in between.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.errors import GateRefused, ProjectError, UsageError
from tasks.evaluation.gates import Comparison, Gate, Incomparable, Score, weigh
from tasks.registry.resolve import Resolved, resolve
from tasks.registry.tags import BASE, CHAMPION, DECILES, DIGEST, GATES, METRICS, PROMOTIONS, TEST, Version, champion_of
from tasks.tracking.mlflow_client import Client
from tasks.tracking.mlflow_run import user_name
from tasks.tracking.tracker import Tracker

Ground = Callable[[Resolved, Resolved], Comparison]    # of a version and the champion, on the same test queries
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decision:
    """What became of a version at the gates.

    champion: of the one there was before, "version", "metrics" and "deciles", and "gains", how much higher the
    version's metrics are, all measured on the same test queries; empty where that is not known. note: what has to be
    said beside these figures. became: the version that took the champion's place, this one or this one with the labels
    that were edited meanwhile.
    """

    promoted: bool
    reason: str
    gates: list[Gate] = field(default_factory=list)
    champion: dict[str, Any] | None = None
    note: str = ""
    became: str | None = None

    def __str__(self) -> str:
        return f"{self.reason}; {self.note}" if self.note else self.reason


def contest(tracker: Tracker, name: str, version: str, ground: Ground | None = None, *,
            dry_run: bool = False, edited: Callable[[], str] | None = None) -> Decision:
    """Let a version pass the gates against the champion; it becomes the champion where all of them hold.

    ground: compares both; without one, they are compared by what was measured of each, if on the same test set.
    edited: gives the version that takes its place as the champion, the same with the labels that were edited meanwhile.
    """
    with tracker.required() as client:
        ours, champion = client.get_model_version(name, version), champion_of(client, name)
        if champion is not None and _trained(champion) == _trained(ours):
            own = {**_named(champion, score_of(champion)), "version": version}
            return Decision(False, "it is the champion already", champion=own)
        decision = _judged(tracker, ours, champion, ground)
        if not dry_run:
            told = {"promoted": decision.promoted, "reason": str(decision),
                    "gates": [gate.to_json() for gate in decision.gates]}
            client.set_model_version_tag(name, version, GATES, json.dumps(told))
            if decision.promoted:
                decision = replace(decision, became=edited() if edited else version)
                move(client, name, str(decision.became), str(decision), how="gates")
        return decision


def _judged(tracker: Tracker, ours: Version, champion: Version | None, ground: Ground | None) -> Decision:
    if champion is None:
        return _weighed(Comparison([score_of(ours)]), None, "there was no champion")
    try:
        found = resolve(tracker, f"{champion.name}/{champion.version}")
    except ProjectError as error:
        _log.warning("champion v%s of %s cannot be opened: %s", champion.version, champion.name, error.what)
        found = None
    own = resolve(tracker, f"{ours.name}/{ours.version}") if found else None
    try:
        if ground and own and found:
            compared, note = _measured(ours, champion, partial(ground, own, found))
        else:
            compared, note = _recorded(ours, champion, "no test set is prepared here (xc prepare --data DIR)" if found
                                       else "its files cannot be opened")
    except Incomparable as error:
        return Decision(False, f"it cannot be compared with champion v{champion.version}: {error}",
                        champion=_named(champion))
    score, theirs = compared.scores
    score = replace(score, metrics={**_indexes(ours), **score.metrics})
    if own and found:
        score, theirs = _timed((score, own.folder), (theirs, found.folder))
    return replace(_weighed(replace(compared, scores=[score, theirs]), champion), note=note)


def _measured(ours: Version, champion: Version, measure: Callable[[], Comparison]) -> tuple[Comparison, str]:
    """Return what both reach on the same test queries, measured now, and what has to be said beside it."""
    try:
        compared = measure()
    except Incomparable:
        raise
    except ValueError as error:    # a champion of a format that is no longer read
        _log.warning("v%s and v%s are not measured again: %s", ours.version, champion.version, error)
        return _recorded(ours, champion, str(error))
    return compared, compared.note(f"v{ours.version}", f"v{champion.version}")


def _recorded(ours: Version, champion: Version, why: str) -> tuple[Comparison, str]:
    """Return what was measured of both before; why: they are not measured now."""
    if champion.tags.get(TEST) != ours.tags.get(TEST):
        raise Incomparable(f"it was measured on another test set, and {why}")
    edited = [f"v{each.version} is compared by what v{each.tags[BASE]} reached, before its labels were edited"
              for each in (ours, champion) if BASE in each.tags]
    return Comparison([score_of(ours), score_of(champion)]), "; ".join(edited)


def _weighed(compared: Comparison, champion: Version | None, reason: str = "") -> Decision:
    """Return what the gates say of a version and the champion; reason: why it is promoted where there is none."""
    score, theirs = compared.scores[0], compared.scores[1] if champion else None
    gates = weigh(score, theirs, errors=compared.errors)
    broken = [gate for gate in gates if not gate.holds]
    if broken:
        reason = "; ".join(map(str, broken[:3]))
    elif champion is not None:
        reason = f"{gates[0]} of champion v{champion.version}; {len(gates)} gates hold"
    return Decision(not broken, reason, gates, champion and _named(champion, theirs, score))


def _timed(*judged: tuple[Score, Path]) -> list[Score]:
    """Return each score with what one text takes the retriever in its folder; without, where one cannot be read."""
    from tasks.registry.comparison import latencies
    from xcmodels.retrieval.retriever import Retriever

    try:
        loaded = [Retriever.load(folder) for _, folder in judged]
    except ValueError as error:    # a champion of a format that is no longer read
        _log.warning("latencies are not compared: %s", error)
        return [score for score, _ in judged]
    return [replace(score, latency=each) for (score, _), each in zip(judged, latencies(loaded), strict=True)]


def score_of(version: Version) -> Score:
    """Return what a version's tags say that it reached."""
    return Score(json.loads(version.tags.get(METRICS, "{}")), json.loads(version.tags.get(DECILES, "[]")))


def _indexes(version: Version) -> dict[str, float]:
    """Return the recalls of a version's own indexes, which do not depend on what it is compared with."""
    return {key: value for key, value in score_of(version).metrics.items() if key.startswith("index/")}


def _named(champion: Version, score: Score | None = None, ours: Score | None = None) -> dict[str, Any]:
    """Return the champion as `Decision` has it; ours: of the version that it is compared with."""
    metrics = dict(score.metrics) if score else {}
    gains = {key: ours.metrics[key] - value for key, value in metrics.items() if key in ours.metrics} if ours else {}
    return {"version": str(champion.version), "metrics": metrics, "gains": gains,
            "deciles": [dict(row) for row in score.deciles] if score else []}


def _trained(version: Version) -> str:
    """Return the version that was trained, of one whose labels may have been edited since."""
    return str(version.tags.get(BASE, version.version))


def promote(tracker: Tracker, name: str, version: str, reason: str, *, ground: Ground | None = None,
            edited: Callable[[], str] | None = None, force: bool = False, dry_run: bool = False) -> Decision:
    """Make a version the champion because a person says so; the gates are asked unless `force`.

    ground, edited: as `contest` takes them. Raises GateRefused, which names the gate, and UsageError where it is the
    champion already.
    """
    with tracker.required() as client:
        ours, champion = client.get_model_version(name, version), champion_of(client, name)
        if champion is not None and _trained(champion) == _trained(ours):
            if str(champion.version) == version:
                raise UsageError(f"{name}/{version} is the champion already")
            raise UsageError(f"{name}/{version} is the champion already, as {name}/{champion.version}: its labels were "
                             "edited", hint="xc labels list shows the edits; one is undone by its opposite")
        decision = Decision(True, reason) if force else contest(tracker, name, version, ground, dry_run=True)
        if not decision.promoted:
            raise GateRefused(f"{name}/{version} does not pass the gates: {decision}",
                              hint=f"xc promote {name}/{version} --force --reason '...' overrules them")
        if not dry_run:
            decision = replace(decision, became=edited() if edited else version)
            move(client, name, str(decision.became), reason if force else f"{reason} ({decision})",
                 how="forced" if force else "promoted")
    return decision


def rollback(tracker: Tracker, name: str, reason: str, *, dry_run: bool = False) -> tuple[str, str]:
    """Make the champion before the present one the champion again; -> (from, to).

    A second rollback goes back one further. Raises UsageError where there is none to go back to.
    """
    with tracker.required() as client:
        there = {str(each.version) for each in client.search_model_versions(f"name = '{name}'")}
        champion = champion_of(client, name)
        now = str(champion.version) if champion else ""
        before = [each for each in _before(_reigns(history(client, name)), now) if each in there]
        while before and before[-1] == now:    # what reigned in between was deleted
            before.pop()
        if not before:
            raise UsageError(f"{name} has had no champion before {'v' + now if now else 'now'}",
                             hint=f"name one: xc promote {name}/VERSION --force --reason '...'")
        if not dry_run:
            move(client, name, before[-1], reason, how="rollback")
        return now, before[-1]


def _reigns(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the versions that reigned, the last one last, each as often as it did.

    Left out are reigns that a rollback took back, and versions that were given edited labels: the version that has
    those reigns in their place.
    """
    reigns: list[str] = []
    for record in records:
        to, last, how = record["to"], record.get("from"), record.get("how")
        if last and last not in reigns:
            reigns.append(last)    # the alias was moved by other means, or the record of it went with its version
        reigns = [*_before(reigns, last), last] if last else []
        if how == "labels":
            reigns = reigns[:-1]
        elif how == "rollback":
            reigns = _before(reigns[:-1], to)
        reigns.append(to)
    return reigns


def _before(reigns: list[str], version: str) -> list[str]:
    """Return the reigns before the last one of a version; all of them where it has none."""
    return reigns[:len(reigns) - 1 - reigns[::-1].index(version)] if version in reigns else reigns


def history(client: Client, name: str) -> list[dict[str, Any]]:
    """Return every move of the alias `champion`, the first one first."""
    records = [record for version in client.search_model_versions(f"name = '{name}'")
               for record in json.loads(version.tags.get(PROMOTIONS, "[]"))]
    return sorted(records, key=lambda record: (record["when"], record.get("n", 0)))


def move(client: Client, name: str, version: str, why: str, *, how: str) -> None:
    """Make a version the champion and keep the record of it; how: gates | promoted | forced | rollback | labels."""
    before, known = champion_of(client, name), history(client, name)
    record = {"from": before and str(before.version), "to": str(version), "why": why, "how": how}
    if not known or {key: known[-1].get(key) for key in record} != record:
        stamp = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "who": user_name(), "n": len(known) + 1}
        own = json.loads(client.get_model_version(name, version).tags.get(PROMOTIONS, "[]"))
        client.set_model_version_tag(name, version, PROMOTIONS, json.dumps([*own, {**stamp, **record}]))
    client.set_registered_model_alias(name, CHAMPION, version)


def listing(tracker: Tracker) -> list[dict[str, Any]]:
    """Return every version of every model: name, version, aliases, metrics, moves of the alias to it, gates.

    test: the digest of the test set that the metrics were measured on. base: the version they were measured of, where
    this is that one with edited labels, else "".
    """
    if tracker.embedded and not (tracker.home / "mlflow.db").exists():
        return []
    with tracker.required() as client:
        rows = []
        for model in client.search_registered_models():
            # What is searched for comes without aliases.
            aliases = client.get_registered_model(model.name).aliases
            for each in client.search_model_versions(f"name = '{model.name}'"):
                rows.append({
                    "name": model.name, "version": str(each.version),
                    "aliases": sorted(alias for alias, of in aliases.items() if str(of) == str(each.version)),
                    "digest": each.tags.get(DIGEST, ""), "metrics": dict(score_of(each).metrics),
                    "test": each.tags.get(TEST, ""), "base": each.tags.get(BASE, ""),
                    "moves": json.loads(each.tags.get(PROMOTIONS, "[]")),
                    "gates": json.loads(each.tags.get(GATES, "{}"))})
        return sorted(rows, key=lambda row: (row["name"], int(row["version"])))
