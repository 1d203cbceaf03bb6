"""The files of what was mined and of fixed vectors, as training reads them."""

from pathlib import Path

import numpy as np

from xcmodels.method import Mined

SIDES = ("queries", "labels")
CLUSTERS, NEGATIVES, KEPT = "clusters.npy", "negatives.npy", "kept."


def read_mined(mined: Path | None, vectors: Path | None) -> Mined:
    """Map into memory what a round is given, from the folders of its mined files and of its fixed vectors."""
    def there(name: str) -> np.ndarray | None:
        return np.load(mined / name, mmap_mode="r") if mined and (mined / name).exists() else None

    kept = {file.name.removeprefix(KEPT).removesuffix(".npy"): np.load(file, mmap_mode="r")
            for file in sorted(mined.glob(f"{KEPT}*"))} if mined else {}
    return Mined(there(CLUSTERS), there(NEGATIVES), kept, read_vectors(vectors))


def read_vectors(folder: Path | None) -> dict[str, np.ndarray]:
    """Map the vectors of an embed step into memory, by side; none where there was no such step."""
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in SIDES} if folder else {}
