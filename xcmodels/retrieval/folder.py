"""The files of a retriever's folder, none of them a pickle.

    retriever.json     format, method, data, length of shortlists, kind of scorer
    encoder/           the encoder (`xcmodels.nn.encoders`); its view "query" makes query vectors
    tokenizer/         its tokenizer
    index/<name>/      indexes that propose labels (`proposers`)
    ...                data of the scorer that the indexes do not hold (`scorers`, `fusion`, `centroid_mix`)
    calibration.json   what turns a score into the chance that its label is right (`calibration`)
    examples/          training texts of each label, to explain predictions (`examples`)
    label.uid.* label.title.*    uids and texts of the labels
    label.read.npy     digests of what is read of the labels' texts (`xcmodels.data.seen_texts`)
    branch.uid.* branch.broader.*    the broader relation of its vocabulary, if any (`xcmodels.data.label_branches`)
    removed.npy        ids of labels that are no longer predicted
    trained.npy        digests of the texts it was trained on (`xcmodels.data.seen_texts`)

Large files are mapped when they are opened.
"""

import json
from pathlib import Path
from typing import Any

from xcmodels.checks import Unusable

FORMAT, OLDEST = 15, 13    # written; the oldest that is read, too
FACTS, REMOVED = "retriever.json", "removed.npy"


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    (folder / FACTS).write_text(json.dumps({**facts, "format": FORMAT}, indent=1, sort_keys=True) + "\n")


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the contents of retriever.json; raise Unusable for a format that this version does not read."""
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
    if not OLDEST <= facts["format"] <= FORMAT:
        raise Unusable(f"{folder} is a retriever of format {facts['format']}, this version reads {OLDEST} to {FORMAT}; "
                       "train it again, or install the version of xcflow that made it")
    return facts
