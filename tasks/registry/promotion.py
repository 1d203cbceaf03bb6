"""Promotion of versions to champion, by the gates or by a person, and rollback.

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
from tasks.evaluation.gates import Comparison, Gate, Incomparable, Score, evaluate_gates
from tasks.registry.resolve import Resolved, resolve
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
    versions_of,
)
from tasks.tracking.mlflow_client import Client, all_pages
from tasks.tracking.mlflow_run import user_name
from tasks.tracking.tracker import Tracker

Compare = Callable[[Resolved, Resolved], Comparison]    # compares a version with the champion on the same test queries
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromotionDecision:
    """Whether a version was promoted, and why.

    champion: "version", "metrics" and "deciles" of the previous champion, and "gains", how much higher the version's
    metrics are, all measured on the same test queries; empty where that is not known. note: a remark on these figures.
    became: the version that is champion now, this one or this one with the labels that were edited meanwhile.
    """

    promoted: bool
    reason: str
    gates: list[Gate] = field(default_factory=list)
    champion: dict[str, Any] | None = None
    note: str = ""
    became: str | None = None

    def __str__(self) -> str:
        return f"{self.reason}; {self.note}" if self.note else self.reason


def promote_by_gates(tracker: Tracker, name: str, version: str, compare: Compare | None = None, *,
                     dry_run: bool = False, edited: Callable[[], str] | None = None) -> PromotionDecision:
    """Check a version by the gates against the champion, and promote it where all of them hold.

    compare: compares both; without one, their recorded metrics are compared, if they are of the same test set.
    edited: returns the version to promote in its place, the same with the labels that were edited meanwhile.
    """
    with tracker.required() as client:
        ours, champion = client.get_model_version(name, version), champion_of(client, name)
        if champion is not None and _trained(champion) == _trained(ours):
            current = {**_champion_facts(champion, score_of(champion)), "version": version}
            return PromotionDecision(False, "it is the champion already", champion=current)
        decision = _decide(tracker, ours, champion, compare)
        if not dry_run:
            record = {"promoted": decision.promoted, "reason": str(decision),
                      "gates": [gate.to_json() for gate in decision.gates]}
            client.set_model_version_tag(name, version, GATES, json.dumps(record))
            if decision.promoted:
                decision = replace(decision, became=edited() if edited else version)
                move(client, name, str(decision.became), str(decision), how="gates")
        return decision


def _decide(tracker: Tracker, ours: Version, champion: Version | None, compare: Compare | None) -> PromotionDecision:
    if champion is None:
        return _apply_gates(Comparison([score_of(ours)]), None, "there was no champion")
    try:
        champion_opened = resolve(tracker, f"{champion.name}/{champion.version}")
    except ProjectError as error:
        _log.warning("champion v%s of %s cannot be opened: %s", champion.version, champion.name, error.what)
        champion_opened = None
    opened = resolve(tracker, f"{ours.name}/{ours.version}") if champion_opened else None
    try:
        if compare and opened and champion_opened:
            comparison, note = _measure(ours, champion, partial(compare, opened, champion_opened))
        else:
            comparison, note = _recorded(ours, champion, "no test set is prepared here (xc prepare --data DIR)"
                                         if champion_opened else "its files cannot be opened")
    except Incomparable as error:
        return PromotionDecision(False, f"it cannot be compared with champion v{champion.version}: {error}",
                        champion=_champion_facts(champion))
    score, champion_score = comparison.scores
    score, champion_score = (replace(compared, metrics={**_of_itself(version), **compared.metrics})
                             for compared, version in ((score, ours), (champion_score, champion)))
    if opened and champion_opened:
        score, champion_score = _with_latency((score, opened.folder), (champion_score, champion_opened.folder))
    return replace(_apply_gates(replace(comparison, scores=[score, champion_score]), champion), note=note)


def _of_itself(version: Version) -> dict[str, float]:
    """Return what no comparison measures again: the recall of a version's indexes, and its calibration."""
    return {key: value for key, value in score_of(version).metrics.items()
            if key.startswith(("index/", "calibration/"))}


def _measure(ours: Version, champion: Version, compare: Callable[[], Comparison]) -> tuple[Comparison, str]:
    """Return what both reach on the same test queries, measured now, and a note on it."""
    try:
        comparison = compare()
    except Incomparable:
        raise
    except ValueError as error:    # the champion has a format that is no longer supported
        _log.warning("v%s and v%s are not measured again: %s", ours.version, champion.version, error)
        return _recorded(ours, champion, str(error))
    return comparison, comparison.note(f"v{ours.version}", f"v{champion.version}")


def _recorded(ours: Version, champion: Version, why: str) -> tuple[Comparison, str]:
    """Return the recorded metrics of both, and a note on them; why: they are not measured now."""
    if champion.tags.get(TEST) != ours.tags.get(TEST):
        raise Incomparable(f"it was measured on another test set, and {why}")
    notes = [f"v{version.version} is compared by what v{version.tags[BASE]} reached, before its labels were edited"
             for version in (ours, champion) if BASE in version.tags]
    return Comparison([score_of(ours), score_of(champion)]), "; ".join(notes)


def _apply_gates(comparison: Comparison, champion: Version | None, reason: str = "") -> PromotionDecision:
    """Return the decision of the gates; reason: why the version is promoted where there is no champion."""
    score, champion_score = comparison.scores[0], comparison.scores[1] if champion else None
    gates = evaluate_gates(score, champion_score, errors=comparison.errors)
    failed = [gate for gate in gates if not gate.holds]
    if failed:
        reason = "; ".join(map(str, failed[:3]))
    elif champion is not None:
        reason = f"{gates[0]} of champion v{champion.version}; {len(gates)} gates hold"
    return PromotionDecision(not failed, reason, gates, champion and _champion_facts(champion, champion_score, score))


def _with_latency(*scored: tuple[Score, Path]) -> list[Score]:
    """Return each score with the latency of the retriever in its folder; unchanged where one cannot be loaded."""
    from tasks.registry.comparison import latencies
    from xcmodels.retrieval.retriever import Retriever

    try:
        loaded = [Retriever.load(folder) for _, folder in scored]
    except ValueError as error:    # the champion has a format that is no longer supported
        _log.warning("latencies are not compared: %s", error)
        return [score for score, _ in scored]
    return [replace(score, latency=latency) for (score, _), latency in zip(scored, latencies(loaded), strict=True)]


def score_of(version: Version) -> Score:
    """Return the score recorded in a version's tags."""
    return Score(json.loads(version.tags.get(METRICS, "{}")), json.loads(version.tags.get(DECILES, "[]")))


def _champion_facts(champion: Version, score: Score | None = None,
                    ours: Score | None = None) -> dict[str, Any]:
    """Return the champion as in `PromotionDecision`; ours: the score of the version that it is compared with."""
    metrics = dict(score.metrics) if score else {}
    gains = {key: ours.metrics[key] - value for key, value in metrics.items() if key in ours.metrics} if ours else {}
    return {"version": str(champion.version), "metrics": metrics, "gains": gains,
            "deciles": [dict(row) for row in score.deciles] if score else []}


def _trained(version: Version) -> str:
    """Return the trained version behind a version whose labels may have been edited."""
    return str(version.tags.get(BASE, version.version))


def promote(tracker: Tracker, name: str, version: str, reason: str, *, compare: Compare | None = None,
            edited: Callable[[], str] | None = None, force: bool = False, dry_run: bool = False) -> PromotionDecision:
    """Make a version the champion because a person says so, if it passes the gates or with `force`.

    compare, edited: as in `promote_by_gates`. Raises GateRefused, which names the gate, and UsageError where it is the
    champion already.
    """
    with tracker.required() as client:
        ours, champion = client.get_model_version(name, version), champion_of(client, name)
        if champion is not None and _trained(champion) == _trained(ours):
            if str(champion.version) == version:
                raise UsageError(f"{name}/{version} is the champion already")
            raise UsageError(f"{name}/{version} is the champion already, as {name}/{champion.version}: its labels were "
                             "edited", hint="xc labels list shows the edits; one is undone by its opposite")
        decision = PromotionDecision(True, reason) if force else promote_by_gates(
            tracker, name, version, compare, dry_run=True)
        if not decision.promoted:
            raise GateRefused(f"{name}/{version} does not pass the gates: {decision}",
                              hint=f"xc promote {name}/{version} --force --reason '...' overrules them")
        if not dry_run:
            decision = replace(decision, became=edited() if edited else version)
            move(client, name, str(decision.became), reason if force else f"{reason} ({decision})",
                 how="forced" if force else "promoted")
    return decision


def rollback(tracker: Tracker, name: str, reason: str, *, dry_run: bool = False) -> tuple[str, str]:
    """Make the previous champion the champion again; return the versions (from, to).

    A second rollback goes back one further. Raises UsageError where there is no earlier champion.
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
                             hint=f"name one: xc promote {name}/VERSION --force --reason '...'")
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
    return sorted(records, key=lambda record: (record["when"], record.get("n", 0)))


def move(client: Client, name: str, version: str, why: str, *, how: str) -> None:
    """Make a version the champion and record the move; how: gates | promoted | forced | rollback | labels."""
    before, records = champion_of(client, name), history(client, name)
    record = {"from": before and str(before.version), "to": str(version), "why": why, "how": how}
    if not records or {key: records[-1].get(key) for key in record} != record:
        stamp = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "who": user_name(), "n": len(records) + 1}
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
