"""When a stream is due, as data: its log in, the reason and the range out."""

from typing import Any

from tests.builders import event, event_id

from runfold.generation.generator import content_event
from runfold.generation.triggers import (
    OVERLAP_MAX,
    STREAM,
    StreamState,
    TriggerRule,
    apply,
    due,
    due_at,
    first_offset,
)
from runfold_projections.admission import Admitted
from runfold_schemas.codec import Record
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import GenerationRequested, MemoriesGenerated
from runfold_schemas.runs import RunLabeled, RunOpened

TRIGGER, AGAIN = event_id(70_000), event_id(70_001)
SECOND = 1_000


def content(text: str = "x") -> AnyEvent:
    return event(content_event({"role": "user", "parts": [{"text": text}]}))


def labeled(**settings: Any) -> AnyEvent:
    return event(RunLabeled(labels={}, metadata={STREAM: {"scope": {"user": "ann"}, **settings}}))


def requested(*, event_id: str = TRIGGER, **options: Any) -> AnyEvent:
    asked = GenerationRequested(
        bank_id="bank", scope={"user": "ann"}, first_offset=0, end_offset=9, reason="flush", options=options
    )
    return event(asked, event_id=event_id)


def answered(trigger: str = TRIGGER) -> AnyEvent:
    return event(MemoriesGenerated(bank_id="bank", trigger=trigger))


def state_of(*events: AnyEvent, rule: dict[str, Any] | None = None, outcome: str = "accepted") -> StreamState:
    """After these events, which come one second after the other, behind the opening and the
    rule.
    """
    opening = [event(RunOpened(agent_id="bank", log_id="0" * 32)), labeled(rule=rule or {})]
    state = StreamState()
    for offset, one in enumerate([*opening, *events]):
        is_opening = offset < len(opening)
        admitted = Admitted(
            Record(offset, offset * SECOND, None, (), None), "accepted" if is_opening else outcome, one
        )
        state = apply(state, admitted)
    return state


def test_without_a_rule_every_content_is_due_at_once():
    assert due(state_of(content()), 0) == "flush"


def test_nothing_is_due_where_nothing_was_ingested():
    assert due(state_of(), 10**12) is None
    assert state_of().is_settled


def test_so_many_contents_are_due():
    rule = {"event_count": 2}

    assert due(state_of(content(), rule=rule), 10**12) is None
    assert due(state_of(content(), content(), rule=rule), 0) == "event_count"


def test_a_stream_is_due_when_it_has_been_idle_for_so_long():
    state = state_of(content(), content(), rule={"idle_seconds": 60})

    assert due_at(state) == 63 * SECOND
    assert due(state, 63 * SECOND - 1) is None
    assert due(state, 63 * SECOND) == "idle_duration"


def test_an_interval_begins_with_the_first_content_and_then_with_the_last_trigger():
    rule = {"interval_seconds": 60}

    assert due_at(state_of(content(), content(), rule=rule)) == 62 * SECOND
    assert due_at(state_of(content(), requested(), answered(), content(), rule=rule)) == 63 * SECOND


def test_of_several_conditions_the_first_one_counts():
    state = state_of(content(), rule={"event_count": 9, "interval_seconds": 60, "idle_seconds": 30})

    assert due_at(state) == 32 * SECOND
    assert due(state, 32 * SECOND) == "idle_duration"


def test_nothing_is_due_while_a_trigger_is_unanswered():
    state = state_of(requested(), content())

    assert due(state, 10**12) is None
    assert state.unanswered is not None
    assert not state.is_settled


def test_what_comes_while_a_trigger_is_answered_is_pending_afterwards():
    state = state_of(content(), requested(), content(), answered())

    assert (state.pending_count, first_offset(state)) == (1, 4)
    assert due(state, 0) == "flush"


def test_facts_that_are_tried_once_more_cover_nothing_that_was_ingested():
    state = state_of(content(), requested(), content(), answered(), requested(event_id=AGAIN, facts=[]))

    assert state.pending_count == 1
    assert state.unanswered.event.event_id == AGAIN
    assert due(state, 0) is None


def test_an_answer_to_another_trigger_answers_nothing():
    assert state_of(requested(), answered(AGAIN)).unanswered is not None


def test_a_generation_reads_what_is_new_and_the_overlap():
    events = [content(), content(), content(), requested(), answered(), content()]

    assert first_offset(state_of(*events)) == 7
    assert first_offset(state_of(*events, rule={"overlap_event_count": 2})) == 3
    assert first_offset(state_of(*events, rule={"overlap_event_count": OVERLAP_MAX})) == 2


def test_what_the_log_has_refused_is_passed_over():
    state = state_of(content(), outcome="duplicate")

    assert state.pending_count == 0
    assert (state.last_offset, state.next_offset) == (1, 3)


def test_the_last_settings_count_and_a_label_that_is_none_changes_nothing():
    nonsense = event(RunLabeled(labels={}, metadata={STREAM: {"scope": "nobody"}}))

    state = state_of(labeled(rule={"event_count": 7}), nonsense)

    assert state.settings.rule == TriggerRule(event_count=7)
