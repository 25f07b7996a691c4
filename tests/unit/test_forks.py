"""The events that a fork copies: no effects beyond the fork, and everything that names an offset
names the right event.
"""

from collections.abc import Sequence

import pytest
from tests.builders import event, events
from tests.unit.test_effects import EFFECTS, WITHOUT_EFFECTS

from runfold_projections.admission import Admitted
from runfold_projections.effects import effects_of
from runfold_projections.forks import copies_of
from runfold_projections.ledger import build_messages_from_log
from runfold_projections.state import changes_others, forwards
from runfold_schemas.codec import Record, encode
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    PlannerNote,
    StandIn,
    TokenUsage,
    UserMessage,
)
from runfold_schemas.runs import RunLabeled, RunOpened
from runfold_schemas.sessions import StateChanged
from runfold_schemas.summaries import Summary

LOG_ID = "0" * 32
HELLO, HI = UserMessage(message="hello"), AssistantMessage(message="hi")


def log(events: Sequence[AnyEvent], **outcomes: str) -> list[Admitted]:
    return [
        Admitted(
            Record(offset, 0, None, (), encode(each)),
            outcomes.get(f"at_{offset}", "accepted"),  # type: ignore[arg-type]
            each,
        )
        for offset, each in enumerate(events)
    ]


@pytest.mark.parametrize(
    "data", [*(data for data, _ in EFFECTS), *WITHOUT_EFFECTS], ids=lambda data: type(data).__name__
)
def test_copies_have_no_effects(data):
    delta = {"app:a": 1, "user:u": 2, "temp:t": 3, "own": 4}

    [_, copy] = copies_of(log([event(HELLO), event(data, state_delta=delta)]), "fork")

    assert effects_of(copy, app="desk", user="ann") == []
    assert forwards(copy, app="desk", user="ann") == []
    assert not changes_others(copy)
    assert copy.state_delta == {"own": 4}
    assert copy.run_id == "fork"


def test_a_copy_keeps_what_it_is_and_when_it_was():
    source = event(HELLO, turn_id="t-1", message_id="m-1", labels={"k": "v"}, expected_offset=0)

    [copy] = copies_of(log([event(RunOpened(agent_id="a", log_id=LOG_ID)), source]), "fork")

    assert copy == source.model_copy(update={"run_id": "fork", "expected_offset": None})


def test_what_is_about_the_source_alone_is_not_copied():
    source = events(
        RunOpened(agent_id="a", log_id=LOG_ID),
        HELLO,
        TokenUsage(input_tokens=9),
        RunLabeled(labels={"k": "v"}),
        StateChanged(),
        HI,
    )

    assert [each.type for each in copies_of(log(source), "fork")] == ["user_message", "assistant_message"]


def test_the_state_of_an_opening_is_copied_and_that_of_a_late_event_is_not():
    opening = event(RunOpened(agent_id="a", log_id=LOG_ID), state_delta={"own": 1, "user:u": 2})
    late = event(HELLO, state_delta={"own": 2})

    copies = copies_of(log([opening, late], at_1="late"), "fork")

    assert [(each.type, each.state_delta) for each in copies] == [
        ("state_changed", {"own": 1}),
        ("user_message", None),
    ]
    assert copies[0].event_id == opening.event_id


def test_amendments_and_summaries_name_the_same_events_in_the_fork():
    stand_in = StandIn(type="user_message", data={"message": "amended"})
    source = events(
        RunOpened(agent_id="a", log_id=LOG_ID),
        TokenUsage(),
        HELLO,
        HI,
        EventAmended(offset=2, stand_ins=(stand_in,), reason="r"),
        Summary(text="so far", end_offset=3),
        EventAmended(offset=1, stand_ins=(stand_in,), reason="of an event that is not copied"),
        EventAmended(offset=99, reason="of no event"),
    )

    copies = copies_of(log(source), "fork")

    assert [each.type for each in copies] == [
        "planner_note",
        "user_message",
        "assistant_message",
        "event_amended",
        "summary",
        "event_amended",
    ]
    data = [each.data for each in copies]
    assert [each.offset for each in data if isinstance(each, EventAmended)] == [2, 1]
    assert [each.end_offset for each in data if isinstance(each, Summary)] == [3]
    assert build_messages_from_log(enumerate(copies, start=1)) == build_messages_from_log(enumerate(source))


def test_records_that_do_not_count_are_not_copied():
    source = events(RunOpened(agent_id="a", log_id=LOG_ID), HELLO, HI, PlannerNote(note="n"))

    copies = copies_of(log(source, at_1="duplicate", at_2="rejected"), "fork")

    assert [each.type for each in copies] == ["planner_note"]
