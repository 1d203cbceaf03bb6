"""Promotion of versions to champion, by the gates or by a person."""

import json
import logging
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.errors import GateRefused, ProjectError, UsageError
from tasks.evaluation.gates import Comparison, Gate, Incomparable, Score, evaluate_gates
from tasks.registry.champions import move, replaced_by_a_person, score_of
from tasks.registry.resolve import Resolved, resolve
from tasks.registry.tags import (
    BASE,
    GATES,
    TEST,
    Version,
    champion_of,
    trained_version,
    version_of_retriever,
)
from tasks.tracking.mlflow_client import Client
from tasks.tracking.tracker import Tracker

Compare = Callable[[Resolved, Resolved], Comparison]    # compares a version with the champion on the same test queries
# Keeps others from editing labels, and yields what returns a version with the labels that were edited so far.
Edits = Callable[[], AbstractContextManager[Callable[[str], str]]]
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
                     dry_run: bool = False, edits: Edits | None = None) -> PromotionDecision:
    """Check a version by the gates against the champion, and promote it where all of them hold.

    compare: compares both; without one, their recorded metrics are compared, if they are of the same test set. Where
    another version has become the champion meanwhile, it is compared with that one. A champion that a person replaced
    is not promoted again: the gates had let it pass before. edits: the labels that were edited meanwhile, with which it
    is promoted. dry_run: a person asks what the gates say, and nothing is moved or kept.
    """
    with tracker.required() as client:
        while True:
            ours, champion = client.get_model_version(name, version), champion_of(client, name)
            if champion is not None and trained_version(champion) == trained_version(ours):
                current = {**_champion_facts(champion, score_of(champion)), "version": version}
                return PromotionDecision(False, "it is the champion already", champion=current)
            if not dry_run and (record := replaced_by_a_person(client, ours)):
                again = f"xc promote {shlex.quote(f'{name}/{version}')} --reason WHY"
                reason = f"{record['who']} replaced it as champion ({record['why']}); {again} makes it that again"
                return PromotionDecision(False, reason, champion=champion and _champion_facts(champion))
            decision = _decide(tracker, ours, champion, compare)
            if dry_run:
                return decision
            with edits() if edits and decision.promoted else nullcontext() as edited:
                became = edited(version) if edited else version    # which takes long: the champion may have changed
                if not _is_still(champion, client, name):
                    continue
                record = {"promoted": decision.promoted, "reason": str(decision),
                          "gates": [gate.to_json() for gate in decision.gates]}
                client.set_model_version_tag(name, version, GATES, json.dumps(record))
                if decision.promoted:
                    decision = replace(decision, became=became)
                    move(client, name, str(decision.became), str(decision), how="gates")
                return decision


def decision_on_record(tracker: Tracker, name: str, retriever_digest: str) -> tuple[str, PromotionDecision] | None:
    """Return the version that holds a retriever, and what the gates said of it; None where there is none."""
    with tracker.required() as client:
        version = version_of_retriever(client, name, retriever_digest)
        if version is None:
            return None
        told, champion = json.loads(version.tags.get(GATES, "{}")), champion_of(client, name)
    reigns = champion is not None and trained_version(champion) == trained_version(version)
    facts = champion and _champion_facts(champion, score_of(champion))
    if facts and reigns:
        facts["version"] = str(version.version)
    reason = "it was the champion" if told.get("promoted") else told.get("reason", "the gates have not judged it")
    return str(version.version), PromotionDecision(
        False, reason, [Gate.of_json(gate) for gate in told.get("gates", ())], facts)


def _is_still(champion: Version | None, client: Client, name: str) -> bool:
    """Return whether a version is the champion still, whatever was done to its labels."""
    now = champion_of(client, name)
    return (now and trained_version(now)) == (champion and trained_version(champion))


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


def _champion_facts(champion: Version, score: Score | None = None,
                    ours: Score | None = None) -> dict[str, Any]:
    """Return the champion as in `PromotionDecision`; ours: the score of the version that it is compared with."""
    metrics = dict(score.metrics) if score else {}
    gains = {key: ours.metrics[key] - value for key, value in metrics.items() if key in ours.metrics} if ours else {}
    return {"version": str(champion.version), "metrics": metrics, "gains": gains,
            "deciles": [dict(row) for row in score.deciles] if score else []}


def promote(tracker: Tracker, name: str, version: str, reason: str, *, compare: Compare | None = None,
            edits: Edits | None = None, force: bool = False, dry_run: bool = False) -> PromotionDecision:
    """Make a version the champion because a person says so, if it passes the gates or with `force`.

    compare, edits: as in `promote_by_gates`. Raises GateRefused, which names the gate, and UsageError where it is the
    champion already, or another has become it meanwhile.
    """
    with tracker.required() as client:
        ours, champion = client.get_model_version(name, version), champion_of(client, name)
        if champion is not None and trained_version(champion) == trained_version(ours):
            if str(champion.version) == version:
                raise UsageError(f"{name}/{version} is the champion already")
            raise UsageError(f"{name}/{version} is the champion already, as {name}/{champion.version}: its labels were "
                             "edited", hint="xc labels list shows the edits; one is undone by its opposite")
        decision = PromotionDecision(True, reason) if force else promote_by_gates(
            tracker, name, version, compare, dry_run=True)
        if not decision.promoted:
            raise GateRefused(f"{name}/{version} does not pass the gates: {decision}", hint=
                              f"xc promote {shlex.quote(f'{name}/{version}')} --force --reason '...' overrules them")
        if dry_run:
            return decision
        with edits() if edits else nullcontext() as edited:
            decision = replace(decision, became=edited(version) if edited else version)
            if not force and not _is_still(champion, client, name):
                raise UsageError(f"{name} has another champion since the gates were measured",
                                 hint="run the same command again: it compares with that one")
            move(client, name, str(decision.became), reason if force else f"{reason} ({decision})",
                 how="forced" if force else "promoted")
    return decision
