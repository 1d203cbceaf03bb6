"""The files that a training round reads: clusters, hard negatives, edges and vectors."""

from pathlib import Path

import numpy as np

from xcmodels.method import Mined

SIDES = ("queries", "labels")
CLUSTERS, NEGATIVES, EDGES = "clusters.npy", "negatives.npy", "kept."


def load_mined(mined: Path | None, vectors: Path | None) -> Mined:
    """Map the mined files and the fixed vectors that a round trains on into memory."""
    def load(name: str) -> np.ndarray | None:
        return np.load(mined / name, mmap_mode="r") if mined and (mined / name).exists() else None

    kept = {file.name.removeprefix(EDGES).removesuffix(".npy"): np.load(file, mmap_mode="r")
            for file in sorted(mined.glob(f"{EDGES}*"))} if mined else {}
    return Mined(load(CLUSTERS), load(NEGATIVES), kept, read_vectors(vectors))


def read_vectors(folder: Path | None) -> dict[str, np.ndarray]:
    """Map the vectors of an embed step into memory, by side; none where there was no such step."""
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in SIDES} if folder else {}
