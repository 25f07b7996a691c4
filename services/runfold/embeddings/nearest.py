"""Which vectors are near to another one. All of them are looked at: memories of one scope are
hundreds, rarely thousands.
"""

from typing import Final, NamedTuple

import numpy as np

from runfold.embeddings.embedder import Vector, Vectors

DUPLICATE_DISTANCE: Final = 0.1
"""Under this distance two facts may be one fact in other words. Chosen with the local model, for
few false merges, since a false merge loses a fact and a missed one only repeats it. No distance
tells the two apart:

- The same in other words is far: "lives in Lisbon" and "home is in Lisbon" are at 0.46. This
  threshold finds little more than another article, full stop or capital letter.
- Another substance is near: "can eat nuts" and "cannot eat nuts" are at 0.37, flights on Monday and
  on Tuesday at 0.24, orders 8841 and 8842 at 0.15. In a long fact one digit weighs less still:
  below this threshold, down to 0.07.
- What the model does not read is at 0: accents, capital letters, most emoji.

So it says which facts are worth comparing as texts. To merge them takes a look at least at their
numbers and negations. Vectors of an endpoint's model lie at other distances, and were not measured.
"""


class Neighbour(NamedTuple):
    row: int
    distance: float


def nearest(query: Vector, matrix: Vectors, *, limit: int) -> list[Neighbour]:
    """Rows of `matrix` by their Euclidean distance, the smallest first, then by row. Between
    vectors of length 1 it is 0 for the same direction, 1.41 for nothing in common and 2 for the
    opposite.
    """
    assert limit >= 0
    if len(matrix) == 0:
        return []
    distances = np.linalg.norm(matrix - query, axis=1)
    order = np.argsort(distances, kind="stable")[:limit]
    return [Neighbour(int(row), float(distances[row])) for row in order]
