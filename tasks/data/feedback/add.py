"""The step that adds feedback to a data set's tables: new training queries, corrected ones, and rejected labels."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_contracts.errors import ContractError
from data_contracts.schemas import SCHEMAS, kind_of
from tasks.core.step import StepContext
from tasks.core.wording import plural
from tasks.data.feedback.decisions import Decision, Decisions
from tasks.data.sources.train_test import key_of
from tasks.data.tables import count_rows, shards
from xcmodels.data.text import EXAMPLE_LENGTH
from xcmodels.retrieval.label_editing import link_or_copy

FACTS = "feedback.json"         # counts of what was added
HELD_OUT = "held_out.jsonl"     # decisions kept out of training to measure it
Pair = tuple[int, int]    # a training query and a label, by row


@dataclass(frozen=True)
class FeedbackRules:
    """held_out: share of the texts that only measure; most: feedback's share of the training queries, at most.

    weight_power: a positive weighs its relevance to this power in training.
    """

    held_out: float
    most: float
    weight_power: float


@dataclass
class Additions:
    """What feedback changes in the tables; each pair with its line in the journal."""

    texts: list[Decision] = field(default_factory=list)    # new training queries, after those of the data
    right: dict[Pair, int] = field(default_factory=dict)
    wrong: dict[Pair, int] = field(default_factory=dict)
    held_out: list[Decision] = field(default_factory=list)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)    # ("text" or "decision", which) -> how many


def add_feedback(decisions: Decisions, rules: FeedbackRules, context: StepContext) -> None:
    """Write the tables of a data set with feedback; those that it does not change are links.

    A text that is no training query becomes one. One that is gets the labels that are right for it, and loses those
    that are wrong. Rejected pairs go to the table `rejected.train`. Left out are decisions on a text of the test split,
    or on an example of one that is no training query, and labels that the data does not have. Raises ContractError
    where feedback is more than `rules.most` of the training queries.
    """
    tables = context.inputs["tables"]
    queries, texts = count_rows(tables / "queries.train"), {decision.text for decision in decisions.items}
    found = _sort_out(decisions, rules, tables, queries, texts)
    taught = len(found.texts)
    if taught > rules.most * (queries + taught):
        raise ContractError(
            f"feedback is {taught / (queries + taught):.0%} of the training queries, and at most {rules.most:.0%} may "
            "be", where=decisions.journal, hint="look through it: xc feedback list; allow it: --set prepare."
                                                "feedback_most=1; or train without it: xc run --feedback ignore")
    removed = found.wrong.keys() & _positives_of({query for query, _ in found.wrong}, tables)
    for table in sorted(path for path in tables.iterdir() if path.is_dir()):
        (context.out / table.name).mkdir()
        for shard in shards(table):
            target = context.out / table.name / shard.name
            if table.name != "positives.train" or not _write_without(removed, shard, target):
                link_or_copy(str(shard), str(target))
    _write_rows(found, queries, _mean_relevance(tables, rules.weight_power), decisions.journal, context.out)
    corrected = {uid for decision in decisions.items for uid in (*decision.right, *decision.wrong)}
    left_out = [f"{plural(count, noun)} {which}" for (noun, which), count in sorted(found.left_out.items())]
    facts = {"texts": len(decisions), "labels": sorted(corrected), "new queries": taught, "right": len(found.right),
             "wrong": len(found.wrong), "removed": len(removed), "held out": len(found.held_out),
             "left out": left_out}
    (context.out / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    with (context.out / HELD_OUT).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(decision), ensure_ascii=False) + "\n" for decision in found.held_out)
    context.say(f"feedback on {plural(len(decisions), 'text')}: {plural(len(found.right), 'pair')} of training query "
                f"and label right, {len(found.wrong):,} wrong, {plural(len(found.held_out), 'text')} held out to "
                "measure it")    # a text that stands twice in the data is two training queries
    for line in left_out:
        context.say(f"left out: {line}")


def _sort_out(decisions: Decisions, rules: FeedbackRules, tables: Path, queries: int, texts: set[str]) -> Additions:
    uids = {uid for decision in decisions.items for uid in (*decision.right, *decision.wrong)}
    labels = {uid: row for row, uid in _rows_with(tables / "labels", uids, "uid")}
    tested = {text for _, text in _rows_with(tables / "queries.test", texts)}
    examples = _examples(tables / "queries.test", texts)
    places: dict[str, list[int]] = {}
    for row, text in _rows_with(tables / "queries.train", texts):
        places.setdefault(text, []).append(row)
    known = _positives_of({row for rows in places.values() for row in rows}, tables)
    found = Additions()
    for decision in decisions.items:
        if decision.text in tested or (decision.text in examples and decision.text not in places):
            found.left_out["text", "of the test split"] += 1
            continue
        right, wrong = ([labels[uid] for uid in given if uid in labels] for given in (decision.right, decision.wrong))
        found.left_out["decision", "on labels that the data does not have"] += \
            len(decision.right) + len(decision.wrong) - len(right) - len(wrong)
        if not right and not wrong:
            continue
        if decision.text not in places and decision.held_out(rules.held_out):
            found.held_out.append(decision)
            continue
        rows = places.get(decision.text)
        if rows is None:
            rows = [queries + len(found.texts)]
            found.texts.append(decision)
        found.right |= {(row, label): decision.line for row in rows for label in right if (row, label) not in known}
        found.wrong |= {(row, label): decision.line for row in rows for label in wrong}
    found.left_out = +found.left_out    # without zeros
    return found


def _rows_with(table: Path, values: Collection[str], column: str = "") -> Iterator[tuple[int, str]]:
    """Yield id and value of the rows whose value in a column is one of `values`.

    By default the value is the row's text: its title and its content, with a space between.
    """
    wanted = pa.array(sorted(values), pa.string())
    for shard in shards(table):
        part = pq.read_table(shard, columns=["id", *([column] if column else ["title", "content"])])
        found = part[column] if column else pc.utf8_trim(
            pc.binary_join_element_wise(part["title"], part["content"], " "), " ")
        hit = pc.is_in(found, value_set=wanted)
        yield from zip(part["id"].filter(hit).to_pylist(), found.filter(hit).to_pylist(), strict=True)


def _examples(table: Path, values: Collection[str]) -> set[str]:
    """Return those values that are the `example` of a row, as the page of `xc serve` offers test texts."""
    found, wanted = set[str](), pa.array(sorted(values), pa.string())
    for shard in shards(table):
        part = pq.read_table(shard, columns=["title", "content"])
        whole = pc.if_else(pc.equal(part["title"], ""), part["content"], part["title"])
        begun = pc.utf8_trim(pc.utf8_slice_codeunits(whole, 0, EXAMPLE_LENGTH), " ")
        found.update(begun.filter(pc.is_in(begun, value_set=wanted)).to_pylist())
    return found


def _positives_of(rows: set[int], tables: Path) -> set[Pair]:
    """Return the positives of some training queries."""
    wanted, out = pa.array(sorted(rows), pa.int64()), set[Pair]()
    for shard in shards(tables / "positives.train"):
        part = pq.read_table(shard, columns=["query", "label"])
        part = part.filter(pc.is_in(part["query"], value_set=wanted))
        out |= set(zip(part["query"].to_pylist(), part["label"].to_pylist(), strict=True))
    return out


def _write_without(pairs: Collection[Pair], shard: Path, target: Path) -> bool:
    """Write a shard of positives without some pairs; return False, and write nothing, where it has none of them."""
    keys = pa.array(sorted(query << 31 | label for query, label in pairs), pa.int64())
    if not len(keys):
        return False
    part = pq.read_table(shard)
    hit = pc.is_in(pc.bit_wise_or(pc.shift_left(part["query"], 31), part["label"]), value_set=keys)
    if not pc.any(hit).as_py():
        return False
    pq.write_table(part.filter(pc.invert(hit)), target, compression="zstd")
    return True


def _write_rows(found: Additions, queries: int, relevance: float, journal: str, out: Path) -> None:
    """Write a further shard of training queries and of positives, and the table of rejected pairs."""
    uids = [f"feedback:{key_of(decision.title, decision.content):016x}" for decision in found.texts]
    ids = list(range(queries, queries + len(found.texts)))
    _write("queries.train", out, journal, [decision.line for decision in found.texts], {
        "id": ids, "uid": uids, "title": [decision.title for decision in found.texts],
        "content": [decision.content for decision in found.texts]})
    for table, pairs in (("positives.train", found.right), ("rejected.train", found.wrong)):
        columns: dict[str, Sequence[Any]] = {
            name: [pair[side] for pair in pairs] for side, name in enumerate(("query", "label"))}
        if table == "positives.train":
            columns["relevance"] = [relevance] * len(pairs)
        _write(table, out, journal, list(pairs.values()), columns)


def _mean_relevance(tables: Path, power: float) -> float:
    """Return the relevance whose power is the mean power of the data's, so that a positive of feedback weighs it."""
    parts = [pq.read_table(shard, columns=["relevance"])["relevance"].to_numpy()
             for shard in shards(tables / "positives.train")]
    values = np.concatenate(parts) if parts else np.ones(1, np.float32)
    return float((values.astype(np.float64) ** power).mean() ** (1 / power)) if len(values) and power else 1.0


def _write(table: str, out: Path, journal: str, lines: Sequence[int], columns: Mapping[str, Sequence[Any]]) -> None:
    folder = out / table
    folder.mkdir(exist_ok=True)
    schema = SCHEMAS[kind_of(table)]
    file = pa.DictionaryArray.from_arrays(pa.array([0] * len(lines), pa.int32()), pa.array([journal]))
    arrays = {**columns, "file": file, "line": lines}
    rows = pa.table([arrays[name] for name in schema.names], schema=schema) if lines else schema.empty_table()
    pq.write_table(rows, folder / f"part-{len(shards(folder)):05d}.parquet", compression="zstd")
