"""Nearest vectors are those of the plain definition, and whoever asks for the nearest memories of a
scope reads few of them.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.builders import EPOCH, event_id

from runfold.embeddings import Vectors, nearest
from runfold.query.similarity import StoredSimilarity
from runfold.store.memories import MemoryVectorName
from runfold_projections.memory import MemoryRecord
from runfold_schemas.memories import Memory


def matrices(rows: st.SearchStrategy[int]) -> st.SearchStrategy[np.ndarray]:
    """Few directions, so that ties are frequent."""
    return rows.flatmap(lambda count: arrays(np.float32, (count, 3), elements=st.sampled_from([-1, 0, 1])))


@given(matrices(st.just(1)), matrices(st.integers(0, 12)), st.integers(0, 15))
def test_the_nearest_are_the_first_of_all_in_the_order_of_distance_and_index(query, matrix, limit):
    distances = [float(np.sqrt(((row - query[0]) ** 2).sum(dtype=np.float64))) for row in matrix]
    expected = sorted(range(len(matrix)), key=lambda index: (round(distances[index], 5), index))[:limit]

    found = nearest(query[0], matrix, limit=limit)

    assert [index for index, _ in found] == expected
    assert [distance for _, distance in found] == pytest.approx([distances[index] for index in expected])


@given(matrices(st.integers(1, 12)), st.integers(0, 11))
def test_a_vector_is_at_distance_zero_of_itself(matrix, index):
    index %= len(matrix)

    found = nearest(matrix[index], matrix, limit=len(matrix))

    assert (index, 0.0) in found
    assert found[0].distance == 0.0


def test_among_no_vectors_none_is_near():
    assert nearest(np.ones(3, dtype=np.float32), np.empty((0, 0), dtype=np.float32), limit=5) == []


class Scope:
    """A scope's memories and their vectors, in the place of an edition in MongoDB and of what is
    decided.
    """

    def __init__(self, count: int, stored: dict[str, bytes] | None = None) -> None:
        self.names, self.memories, self.vectors = self, self, self
        self._records = {f"k{number}": record(f"fact {number}") for number in range(count)}
        self.stored = {} if stored is None else stored
        self.reads: list[int] = []

    async def edition_of_topic(self, _: Any) -> "Scope":
        return self

    async def vector_names(self, *_: Any, **__: Any) -> list[MemoryVectorName]:
        return [MemoryVectorName(key, f"v{key}") for key in self._records]

    async def get(self, names: Any, keys: Sequence[str] | None = None, **_: Any) -> dict[str, Any]:
        if keys is not None:
            return {key: self.stored[key] for key in keys if key in self.stored}
        self.reads.append(len(names))
        return {key: self._records[key] for key in names}

    async def save(self, _: str, vectors: dict[str, bytes]) -> None:
        self.stored |= vectors


class Numbers:
    """Embeds texts by their last number, in two dimensions."""

    model, dimensions = "numbers", None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None: ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        angles = [int(text.split()[-1]) / 1000 for text in texts]
        return np.array([[np.cos(angle), np.sin(angle)] for angle in angles], dtype=np.float32)


def record(fact: str) -> MemoryRecord:
    memory = Memory(fact=fact, scope={"user": "ann"})
    return MemoryRecord(
        bank_id="b",
        memory_id=fact,
        memory=memory,
        revision_id=event_id(1),
        created_at=EPOCH,
        updated_at=EPOCH,
    )


async def asked(scope: Any, matches: Any = None) -> list[str]:
    similarity = StoredSimilarity(scope, Numbers)
    found = await similarity.nearest("b", {"user": "ann"}, "fact 7", limit=3, matches=matches)
    return [near.record.memory.fact for near in found]


async def test_a_filter_that_holds_of_nothing_costs_few_reads():
    scope = Scope(1_000)
    await asked(scope)
    scope.reads.clear()

    assert await asked(scope, lambda _: False) == []

    assert sum(scope.reads) == 1_000
    assert len(scope.reads) <= 10


async def test_what_the_filter_holds_of_is_found_however_far_it_is():
    assert await asked(Scope(300), lambda one: one.memory.fact in ("fact 0", "fact 299")) == [
        "fact 0",
        "fact 299",
    ]


async def test_without_a_filter_no_more_is_read_than_answered():
    scope = Scope(300)
    await asked(scope)

    assert scope.reads == [300, 3]  # once for the vectors


async def test_a_stored_vector_of_another_length_is_made_anew():
    scope = Scope(20, {f"vk{number}": np.ones(3, dtype="<f4").tobytes() for number in range(20)})

    assert (await asked(scope))[0] == "fact 7"

    assert {len(vector) for vector in scope.stored.values()} == {8}
