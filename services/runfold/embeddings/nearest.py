"""Finds the nearest vectors to a vector by comparing all of them. A scope has hundreds of memories,
rarely thousands.
"""

from typing import Final, NamedTuple

import numpy as np

from runfold.embeddings.embedder import Vector, Vectors

DUPLICATE_DISTANCE: Final = 0.1
"""Below this distance two facts may be the same fact in other words. The value was chosen with the
local model for few false merges, because a false merge loses a fact and a missed merge only repeats
it. No distance separates the two cases:

- Facts with the same meaning can be far apart: "lives in Lisbon" and "home is in Lisbon" have the
  distance 0.46. Below the threshold are little more than another article, full stop or capital
  letter.
- Facts with another meaning can be near: "can eat nuts" and "cannot eat nuts" have 0.37, flights on
  Monday and on Tuesday 0.24, orders 8841 and 8842 0.15. In a long fact one digit changes the
  distance even less, down to 0.07.
- The model ignores accents, capital letters and most emoji: such facts have the distance 0.

So the threshold selects facts whose texts are worth comparing. Before merging, at least numbers and
negations must be compared. The vectors of an endpoint's model have other distances, which were not
measured.
"""


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
