"""Labels added to and removed from the champion without retraining.

Edits are kept in a journal. A trained version is never changed: a new version is made of it with all edits of the
journal, so that a retraining loses no edit, and the same edits of the same version give the same version.
"""

import difflib
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from data_contracts.errors import ContractError, UsageError
from tasks.core.code_digest import code_digests
from tasks.core.store import Artifact, Store, digest_of
from tasks.core.wording import plural
from tasks.registry.champions import move, score_of
from tasks.registry.edit_journal import Journal, JournalEntry
from tasks.registry.label_files import LabelRow
from tasks.registry.register import register
from tasks.registry.resolve import Resolved, resolve
from tasks.registry.tags import BASE, COMMIT, CONTRACTS, DATA, EDITS, EXAMPLES, TEST, Version, champion_of, versions_of
from tasks.tracking.mlflow_client import Client
from tasks.tracking.tracker import Tracker
from xcmodels.retrieval.label_editing import ADD, REMOVE, Edit, EditedLabels, edit_retriever
from xcmodels.retrieval.retriever import Retriever

COUNTS, COUNTED = "edited.json", "xc.labels"    # how many labels were added and removed: in an artifact, on a version


@dataclass(frozen=True)
class EditedChampion:
    """The champion with the journal's edits, made from version `base`; moved: it became champion just now."""

    name: str
    version: str
    base: str
    added: int
    removed: int
    moved: bool


def edit_labels(store: Store, tracker: Tracker, name: str, op: str, rows: Sequence[LabelRow], *,
                dry_run: bool = False, resume: bool = False) -> int:
    """Write the rows of a file to the journal, to be added or removed when edits are next applied; return how many.

    resume: where the journal ends with these very edits and the champion does not have them, because a command was
    cut off before it applied them, they are not written again. Raises ContractError at the first invalid row, and
    UsageError where no label would be left: then none is written.
    """
    edits = [Edit(op, row.uid, row.text, row.content) for row in rows]
    with tracker.required() as client:
        base = _base_of(tracker, _champion(client, name))
    labels = EditedLabels(Retriever.load(base.folder))
    journal = Journal(store.home, name)
    with journal.alone():
        before = journal.edits()
        if resume and before[-len(edits):] == edits and not journal_of(store, tracker, name)[1]:
            return len(edits)
        for edit in before:
            labels.apply(edit)
        for row in rows:
            _check(labels, op, row)
        if op == REMOVE and len(edits) == sum(uid in labels for uid in labels.ids):
            raise UsageError(f"{name} would have no label left",
                             hint="keep one; or first add others: xc labels add FILE")
        if not dry_run:
            journal.append(edits)
    return len(edits)


def _check(labels: EditedLabels, op: str, row: LabelRow) -> None:
    exists = row.uid in labels
    if op == ADD and exists:
        raise ContractError(f"label {row.uid!r} is there already", where=row.where,
                            hint="leave the row out; or remove the label first, and add it with its new text")
    if op == REMOVE and not exists:
        removed = row.uid in labels.ids
        near = [] if removed else difflib.get_close_matches(
            row.uid, [uid for uid in labels.ids if uid in labels], n=1, cutoff=0.75)
        hint = f"did you mean {near[0]!r}?" if near else "leave the row out"
        state = "was removed already" if removed else "is not there"
        raise ContractError(f"label {row.uid!r} {state}", where=row.where, hint=hint)


def apply_edits(store: Store, tracker: Tracker, name: str) -> EditedChampion | None:
    """Apply the edits of the journal to the champion; return None where there are none.

    Does nothing where it has them. Raises ServerError where MLflow fails; the journal stays.
    """
    journal = Journal(store.home, name)
    if not journal.path.exists():
        return None
    with journal.alone(), store.no_collection():
        if not (edits := journal.edits()):
            return None
        while True:
            with tracker.required() as client:
                before = _champion(client, name)
                edited = _edited_version(store, tracker, client, before, edits)
                if edited.version == str(before.version):
                    return edited
                now = champion_of(client, name)
                if now is None or now.version != before.version:
                    continue    # a run has promoted another version meanwhile
                why = f"labels: +{edited.added} -{edited.removed} on v{edited.base}"
                move(client, name, edited.version, why, how="labels")
                return replace(edited, moved=True)


@contextmanager
def locked_edits(store: Store, tracker: Tracker, name: str) -> Iterator[Callable[[str], str]]:
    """Keep others from editing labels, and yield what returns a version with the edits of the journal.

    That version is created if it does not exist. Raises UsageError where another command edits labels for too long.
    """
    journal = Journal(store.home, name)

    def edited(version: str) -> str:
        if not (edits := journal.edits()):
            return version
        with tracker.required() as client:
            return _edited_version(store, tracker, client, client.get_model_version(name, version), edits).version

    with journal.alone():
        yield edited


def journal_of(store: Store, tracker: Tracker, name: str) -> tuple[list[JournalEntry], bool]:
    """Return the journal's entries, and whether the champion has all of their edits."""
    entries = Journal(store.home, name).entries()
    edits = [entry.edit for entry in entries]
    with tracker.required() as client:
        champion = champion_of(client, name)
        if champion is None or not entries:
            return entries, not entries
        if BASE in champion.tags:
            return entries, champion.tags.get(EDITS) == _digest(edits)
        return entries, EditedLabels(Retriever.load(_base_of(tracker, champion).folder), edits).counts() == (0, 0)


def _edited_version(store: Store, tracker: Tracker, client: Client, version: Version,
                    edits: Sequence[Edit]) -> EditedChampion:
    """Return the version that is the trained version behind this one, with the edits."""
    base = _base_of(tracker, version)
    digest = _digest(edits)
    if version.tags.get(EDITS) == digest and version.tags.get(BASE) == base.version:
        added, removed = json.loads(version.tags[COUNTED])
        return EditedChampion(base.name, str(version.version), base.version, added, removed, moved=False)
    artifact = _edit(store, base, digest, edits)
    added, removed = json.loads((store.open(artifact) / COUNTS).read_text())
    edited = EditedChampion(base.name, base.version, base.version, added, removed, moved=False)
    if added or removed:
        return replace(edited, version=_register(store, tracker, client, edited, artifact, digest=digest))
    return edited


def _edit(store: Store, base: Resolved, digest: str, edits: Sequence[Edit]) -> Artifact:
    """Return the trained retriever with the edits, made or from the store."""
    code = code_digests("xcmodels.retrieval.label_editing")
    about = {"step": "edit labels", "settings": {"edits": digest}, "code": code}
    inputs = {"retriever": base.digest}
    key = digest_of({**about, "inputs": inputs})

    def write(out: Path) -> None:
        counts = edit_retriever(base.folder, edits, out)
        (out / COUNTS).write_text(json.dumps(counts) + "\n")

    return store.find(key) or store.publish(key, "retriever", inputs, write, about)


def _register(store: Store, tracker: Tracker, client: Client, edited: EditedChampion, artifact: Artifact, *,
              digest: str) -> str:
    """Register an edited retriever with the metrics of the trained one; return its version."""
    trained = client.get_model_version(edited.name, edited.base)
    note = f"\n\n## Labels\n\nVersion {edited.base} with {plural(edited.added, 'label')} added and " \
           f"{edited.removed:,} removed; the metrics are those of version {edited.base}.\n"
    facts = {key: trained.tags[key] for key in (DATA, COMMIT, CONTRACTS, EXAMPLES) if key in trained.tags}
    return register(
        tracker, trained.run_id, edited.name, retriever_dir=store.open(artifact), retriever_digest=artifact.digest,
        score=score_of(trained), test_digest=trained.tags.get(TEST, ""), card=(trained.description or "") + note,
        facts=facts | {BASE: edited.base, EDITS: digest, COUNTED: json.dumps([edited.added, edited.removed])},
        challenger=False).version    # it is no challenger of its own


def _digest(edits: Sequence[Edit]) -> str:
    return digest_of(to_jsonable_python(edits))


def _champion(client: Client, name: str) -> Any:
    if (champion := champion_of(client, name)) is None:
        raise UsageError(f"{name} has no champion, so there are no labels to edit",
                         hint=f"xc promote {shlex.quote(f'{name}/VERSION')} --reason '...'")
    return champion


def _base_of(tracker: Tracker, version: Version) -> Resolved:
    """Return the trained version that a version was edited from; itself where it is trained, or that was deleted."""
    base = version.tags.get(BASE)
    with tracker.required() as client:
        existing = {str(each.version) for each in versions_of(client, version.name)}
    return resolve(tracker, f"{version.name}/{base if base in existing else version.version}")
