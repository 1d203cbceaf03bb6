"""A planted data set in the raw format: each label has words of its own, and a query contains words of its labels."""

import gzip
import json
from pathlib import Path

import numpy as np

# Settings of UniDEC and of NGAME with which training takes seconds, with every kind of round.
_ENCODER = {"encoder.dim": "32", "prepare.vocabulary": "2000"}
QUICK_JOINT = _ENCODER | {"epochs": "12", "batch_size": "64", "token_lr": "0.02", "label_lr": "0.01", "warmup": "5",
                          "refresh_from": "4", "refresh_every": "4", "least_steps": "0", "negatives": "3"}
QUICK = _ENCODER | {
    "fusion.shortlist": "20", "fusion.min_leaf": "5",
    "m1.epochs": "12", "m1.batch_size": "64", "m1.table_lr": "0.02", "m1.warmup": "5", "m1.refresh_from": "4",
    "m1.refresh_every": "4", "m1.double_every": "4", "m1.least_steps": "0", "m2.least_steps": "0",
    "m2.epochs": "4", "m2.batch_size": "64", "m2.warmup": "5", "m2.refresh_from": "2", "m2.refresh_every": "2",
    "m2.double_every": "2"}


def words(label: int, count: int = 4) -> list[str]:
    """Return the words of a label."""
    first, last = "bcdfghjklm"[label % 10], "nprstvwxyz"[label // 10 % 10]
    return [f"{first}{'aeiou'[place]}{last}{label}" for place in range(count)]


def write_planted(folder: Path, *, train: int = 1200, test: int = 300, labels: int = 80, seed: int = 0) -> Path:
    """Write the data set to `folder`, with an anchor set that groups labels by ten."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    _lines(folder / "lbl.json.gz", [{"uid": f"L{label}", "title": " ".join(words(label)), "content": ""}
                                    for label in range(labels)])
    truth = {}
    for name, count in (("trn", train), ("tst", test)):
        rows = [sorted(rng.choice(labels, rng.integers(1, 3), replace=False).tolist()) for _ in range(count)]
        truth[name] = rows
        _lines(folder / f"{name}.json.gz", [_query(name, row, of, rng) for row, of in enumerate(rows)])
    (folder / "filter_labels_train.txt").write_text("0 0\n" if 0 not in truth["trn"][0] else "")
    (folder / "filter_labels_test.txt").write_text("")
    (folder / "group.raw.txt").write_text("".join(f"group {group}\n" for group in range(-(-labels // 10))))
    for side, of in (("trn", truth["trn"]), ("tst", truth["tst"]), ("lbl", [[label] for label in range(labels)])):
        groups = [sorted({label // 10 for label in row}) for row in of]
        (folder / f"group_{side}_X_Y.txt").write_text(
            f"{len(of)} {-(-labels // 10)}\n"
            + "".join(" ".join(f"{group}:1.0" for group in row) + "\n" for row in groups))
    return folder


def _query(split: str, row: int, labels: list[int], rng: np.random.Generator) -> dict:
    said = [word for label in labels for word in rng.choice(words(label), 3, replace=False)]
    noise = [f"noise{rng.integers(500)}" for _ in range(4)]
    return {"uid": f"{split}{row}", "title": " ".join(said), "content": " ".join([*noise, f"{split}{row}"]),
            "target_ind": labels, "target_rel": [1.0] * len(labels)}


def _lines(path: Path, rows: list[dict]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
