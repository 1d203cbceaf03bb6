"""The folder that a retriever is, without a pickle in it.

    retriever.json     format, method, data, how long shortlists are, what scores them
    encoder/           the encoder (`xcmodels.nn.encoders`); its view "query" makes query vectors
    tokenizer/         its tokenizer
    index/<name>/      what proposes labels (`proposers`)
    ...                what scores need beside the indexes (`scorers`, `fusion`, `centroid_mix`)
    examples/          training texts of each label, to explain predictions (`examples`)
    label.uid.* label.title.*    what labels are called
    removed.npy        ids of labels that are predicted no more
    trained.npy        digests of the texts it was trained on (`xcmodels.data.seen_texts`)

What is large is mapped when it is opened.
"""

import json
from pathlib import Path
from typing import Any

FORMAT = 9
FACTS, REMOVED = "retriever.json", "removed.npy"


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write retriever.json."""
    (folder / FACTS).write_text(json.dumps({**facts, "format": FORMAT}, indent=1, sort_keys=True) + "\n")


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what retriever.json says; ValueError for a format that this version does not read."""
    facts: dict[str, Any] = json.loads((folder / FACTS).read_text())
    if facts["format"] != FORMAT:
        raise ValueError(f"{folder} is a retriever of format {facts['format']}, this version reads {FORMAT}; "
                         "install the version of xcflow that made it")
    return facts
