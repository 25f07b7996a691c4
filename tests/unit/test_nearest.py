"""Nearest vectors are those of the plain definition, and the threshold of duplicates loses none of the facts below."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from runfold.embeddings import DUPLICATE_DISTANCE, nearest
from runfold.embeddings.local import LocalEmbedder

SAME = [
    ("The user likes tea", "the user likes tea", True),
    ("The user is a vegetarian", "The user is vegetarian", True),
    ("The user prefers window seats", "User prefers a window seat", False),
    ("The user is allergic to peanuts", "The user has a peanut allergy", False),
    ("The user lives in Lisbon", "The user's home is in Lisbon", False),
]
"""One fact twice, and whether the threshold finds it."""

DIFFERENT = [
    ("The user likes tea", "The user dislikes tea"),
    ("The user can eat nuts", "The user cannot eat nuts"),
    ("The user's budget is 500 euros", "The user's budget is 900 euros"),
    ("The user's flight leaves on Monday", "The user's flight leaves on Tuesday"),
    ("The user's order number is 8841", "The user's order number is 8842"),
]

NOT_TOLD_APART = [
    ("The user's IBAN is DE89370400440532013000", "The user's IBAN is DE89370400440532013001"),
    ("The user likes 😀", "The user likes 🎈"),
]
"""Different facts under the threshold: why nobody should merge by distance alone."""


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


@pytest.mark.parametrize(("one", "other", "is_found"), SAME)
async def test_a_fact_in_other_words_is_found_only_where_it_is_nearly_the_same_text(one, other, is_found):
    assert (await distance(one, other) < DUPLICATE_DISTANCE) is is_found


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
async def test_facts_of_different_substance_are_no_duplicates(one, other):
    assert await distance(one, other) > DUPLICATE_DISTANCE * 1.4


@pytest.mark.parametrize(("one", "other"), NOT_TOLD_APART)
async def test_some_different_facts_are_under_the_threshold_all_the_same(one, other):
    assert await distance(one, other) < DUPLICATE_DISTANCE


async def distance(one: str, other: str) -> float:
    async with LocalEmbedder() as embedder:
        first, second = await embedder.embed([one, other])
    [(_, found)] = nearest(first, second[np.newaxis], limit=1)
    return found
