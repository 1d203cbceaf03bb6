"""The copy with more training queries, on which the benchmark of preparation ends, is a data set."""

import numpy as np
from scipy import sparse

from benchmarks.bench_prepare import enlarge
from tasks.data.sources import describe
from tasks.data.sources.raw import GROUPS
from tasks.data.sources.reading import read_shards
from tests.support.planted import write_planted


def pairs(folder, group):
    """Return the rows and the ids of a group of pairs, (2, n)."""
    shards = [part for _, _, part in read_shards(describe(folder), group, (0, 1), 1000)]
    return np.hstack([np.array([part.column(place) for place in (0, 1)]) for part in shards])


def test_the_copies_of_a_query_have_its_group_its_edges_and_filter_pairs(tmp_path):
    """A data set with anchors or groups ended the benchmark: their file was as long as before."""
    small = write_planted(tmp_path / "small", train=30, test=5, labels=20)
    (small / "filter_labels_train.txt").write_text("0 3\n7 1\n")
    (small / GROUPS).write_text("".join(f"{'' if row % 2 else row}\n" for row in range(30)))
    large = enlarge(small, tmp_path / "large", 10)
    assert (large / GROUPS).read_text().splitlines() == [
        "" if row % 2 else str(row) for row in range(30) for _ in range(10)]
    rows, anchors = pairs(small, "edges.group.train")
    repeated = [10 * row + number for row in rows for number in range(10)], np.repeat(anchors, 10)
    order = np.lexsort(repeated[::-1])
    assert (pairs(large, "edges.group.train") == np.array(repeated)[:, order]).all()
    assert pairs(large, "filters.train").tolist() == [[*range(10), *range(70, 80)], [3] * 10 + [1] * 10]
    values = np.ones(len(rows), np.float32)
    sparse.save_npz(small / "group_trn_X_Y.npz", sparse.csr_matrix((values, (rows, anchors)), shape=(30, 2)))
    (small / "group_trn_X_Y.txt").unlink()
    assert (pairs(enlarge(small, tmp_path / "npz", 10), "edges.group.train") == pairs(
        large, "edges.group.train")).all()
