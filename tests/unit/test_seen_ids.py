"""The ids that a run has seen: a set of strings in less room."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event_id

from runfold.ids import uuid7
from runfold_projections.seen_ids import SeenIds

steps = st.lists(st.none() | st.lists(st.integers(0, 300), max_size=40), max_size=8)


@given(st.lists(st.integers(0, 300), max_size=20), steps)
def test_it_contains_what_was_added(first: list[int], steps: list[list[int] | None]) -> None:
    seen, expected = SeenIds(map(event_id, first)), set(first)

    for step in steps:
        if step is None:
            seen.pack()
        for number in step or ():
            seen.add(event_id(number))
            expected.add(number)

    assert {number for number in range(301) if event_id(number) in seen} == expected


def test_many_ids_are_packed_without_being_asked_to() -> None:
    ids = [str(uuid7()) for _ in range(5_000)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        seen = SeenIds()
        for each in ids:
            seen.add(each)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert taken < 5_000 * 40
    assert all(each in seen for each in ids)
    assert not any(str(uuid7()) in seen for _ in range(100))
