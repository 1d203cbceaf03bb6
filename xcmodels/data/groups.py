"""Groups of texts that belong together: those of one thing in several languages, say, or of one customer."""

import numpy as np


def components(texts: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return a number for each row (n,), the same for rows that are bound: by one text or one group, directly or not.

    texts (n,): the number of each row's text, from 0. groups (n,): of its group, from 0; -1 where it has none.
    """
    has = np.flatnonzero(groups >= 0)
    if not len(has):
        return texts
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first = int(texts.max()) + 1    # of the nodes of groups, after those of texts
    nodes = first + int(groups.max()) + 1
    edges = coo_array((np.ones(len(has), dtype=bool), (texts[has], first + groups[has])), shape=(nodes, nodes))
    _, component = connected_components(edges, directed=False)
    return component[texts]
