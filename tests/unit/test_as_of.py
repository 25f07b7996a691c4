"""Prefixes of logs, and which events belong to a turn."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.builders import event

from runfold_projections.admission import Admitted
from runfold_projections.as_of import AsOf, CurrentTurn
from runfold_schemas.codec import Record
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import PlannerNote


def log(*turns: str | None, **outcomes: Any) -> list[Admitted]:
    """Events with these turns, appended one second after the other."""
    return [
        Admitted(
            Record(offset, 1000 * offset, None, (), b"{}"),
            outcomes.get(f"at_{offset}", "accepted"),
            event(PlannerNote(note=""), turn_id=turn_id),
        )
        for offset, turn_id in enumerate(turns)
    ]


def end(as_of: AsOf, records: list[Admitted]) -> int:
    return as_of.end("run-1", records, log_end=len(records))


def test_an_event_without_a_turn_belongs_to_the_turn_before_it():
    current = CurrentTurn()

    turns = [current.take(each) for each in log(None, "a", None, "b", None, None)]

    assert turns == [None, "a", "a", "b", "b", "b"]


def test_a_record_that_does_not_count_begins_no_turn():
    current = CurrentTurn()

    turns = [current.take(each) for each in log("a", "b", None, at_1="duplicate")]

    assert turns == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (("a", None, None), 3),
        ((None, "a", None, "b", None), 3),
        (("a", "b", "a", None, "c"), 4),
        (("b", "a"), 2),
    ],
)
def test_a_turn_lasts_until_the_next_one_begins(turns: tuple[str | None, ...], expected: int):
    assert end(AsOf(turn="a"), log(*turns)) == expected


def test_a_prefix_before_a_turn_ends_at_its_first_event():
    assert end(AsOf(before_turn="a"), log(None, "b", None, "a", "b", "a")) == 3


@pytest.mark.parametrize(
    ("as_of", "expected"),
    [
        (AsOf(), 4),
        (AsOf(offset=2), 3),
        (AsOf(offset=9), 4),
        (AsOf(time=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)), 2),
        (AsOf(time=datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)), 4),
    ],
)
def test_a_prefix_ends_at_an_offset_or_a_time(as_of: AsOf, expected: int):
    assert end(as_of, log(None, None, None, None)) == expected


@pytest.mark.parametrize("field", ["turn", "before_turn"])
def test_an_unknown_turn_is_refused(field: str):
    with pytest.raises(InvalidEventError, match="run 'run-1' has no turn 'c'"):
        end(AsOf(**{field: "c"}), log("a", "b"))


def test_two_ends_are_refused():
    with pytest.raises(InvalidEventError, match="only one of as_of_offset and before_turn"):
        AsOf(offset=1, before_turn="a")
