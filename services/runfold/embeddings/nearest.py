"""Finds the nearest vectors to a vector by comparing all of them. A scope has hundreds of memories,
rarely thousands.
"""

from typing import NamedTuple

import numpy as np

from runfold.embeddings.embedder import Vector, Vectors


class Neighbour(NamedTuple):
    """A row of a matrix and its distance to the query."""

    row: int
    distance: float


def nearest(query: Vector, matrix: Vectors, *, limit: int) -> list[Neighbour]:
    """The rows of `matrix` with the smallest Euclidean distances to `query`, sorted by distance,
    then by row. Between vectors of length 1 the distance is 0 for the same direction, 1.41 for
    orthogonal vectors and 2 for the opposite direction.
    """
    assert limit >= 0
    if len(matrix) == 0:
        return []
    distances = np.linalg.norm(matrix - query, axis=1)
    order = np.argsort(distances, kind="stable")[:limit]
    return [Neighbour(int(row), float(distances[row])) for row in order]
