"""What becomes of each record: one rule, and the order of the log alone decides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event, event_id
from tests.records import admit, logs, modest, portions, record, records, restored

from runfold_projections.admission import SKIPPED, Admission, Admitted
from runfold_schemas.events import (
    AssistantMessage,
    ToolResult,
    UserMessage,
)
from runfold_schemas.runs import (
    PhaseChanged,
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunLabeled,
    RunOpened,
    RunPaused,
    RunResumed,
    RunStarted,
)
from runfold_schemas.usage import TokenUsage

OPENED = RunOpened(agent_id="a", log_id="l")
HELLO = UserMessage(message="hello")


def outcomes(admitted: list[Admitted]) -> list[str]:
    return [one.outcome for one in admitted]


def test_an_ordinary_run_is_accepted_whole():
    admitted = admit(records(OPENED, HELLO, AssistantMessage(message="hi"), RunCompleted()))

    assert outcomes(admitted) == ["accepted"] * 4
    assert all(one.counts and one.reason == "" for one in admitted)


def test_an_admitted_record_is_the_record_with_its_event():
    one = event(HELLO)

    (admitted,) = admit([record(one, 5)])

    assert admitted == (record(one, 5), "accepted", one, "")


def test_a_second_copy_of_an_event_is_a_duplicate():
    one = event(HELLO)

    admitted = admit([record(one, 0), record(one, 1)])

    assert outcomes(admitted) == ["accepted", "duplicate"]
    assert admitted[1].event == one
    assert not admitted[1].counts
    assert "in the log before" in admitted[1].reason


def test_a_copy_is_judged_first_whatever_else_is_wrong_with_it():
    number = event_id(70)
    copies = [
        event(OPENED, event_id=number),
        event(HELLO, event_id=number, expected_offset=17),
        event(OPENED, event_id=number),
        event(RunCompleted(), event_id=number),
    ]

    admitted = admit([record(copy, offset) for offset, copy in enumerate(copies)])

    assert outcomes(admitted) == ["accepted", "duplicate", "duplicate", "duplicate"]


def test_a_retry_after_the_end_is_a_duplicate_and_neither_late_nor_rejected():
    spoken, ended = event(HELLO), event(RunCompleted())

    admitted = admit([record(one, offset) for offset, one in enumerate([spoken, ended, spoken, ended])])

    assert outcomes(admitted) == ["accepted", "accepted", "duplicate", "duplicate"]


def test_a_copy_of_a_late_event_is_a_duplicate():
    late = event(HELLO)

    admitted = admit([*records(RunCompleted()), record(late, 1), record(late, 2)])

    assert outcomes(admitted) == ["accepted", "late", "duplicate"]


@pytest.mark.parametrize(
    "data", [HELLO, ToolResult(tool_call_id="1"), TokenUsage(), RunLabeled(labels={"a": "b"})], ids=repr
)
@pytest.mark.parametrize("end", [RunCompleted(), RunFailed(error="x"), RunCanceled()], ids=repr)
def test_what_comes_after_the_end_is_late_and_counts(end, data):
    admitted = admit(records(OPENED, end, data))

    assert outcomes(admitted) == ["accepted", "accepted", "late"]
    assert admitted[2].counts
    assert admitted[2].reason == "the run had ended"


@pytest.mark.parametrize(
    "data",
    [
        OPENED,
        RunStarted(),
        RunPaused(),
        RunResumed(),
        RunCompleted(),
        RunFailed(error="x"),
        RunCanceled(),
        PhaseChanged(phase="planning"),
    ],
    ids=repr,
)
def test_the_life_of_a_run_that_has_ended_does_not_change(data):
    admitted = admit(records(RunCompleted(), data))

    assert outcomes(admitted) == ["accepted", "rejected"]
    assert admitted[1].reason == "the run has ended"
    assert not admitted[1].counts


def test_a_run_is_opened_once():
    admitted = admit(records(OPENED, OPENED, HELLO))

    assert outcomes(admitted) == ["accepted", "rejected", "accepted"]
    assert admitted[1].reason == "the run is open already"


def test_a_run_may_be_opened_after_its_first_events():
    assert outcomes(admit(records(HELLO, OPENED, OPENED))) == ["accepted", "accepted", "rejected"]


def test_expected_offset_is_accepted_right_after_the_last_accepted_event():
    first, second = event(HELLO, expected_offset=-1), event(HELLO, expected_offset=0)

    assert outcomes(admit([record(first, 0), record(second, 9)])) == ["accepted", "accepted"]


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        (-1, "expected_offset is -1, the last accepted event is at 4"),
        (3, "expected_offset is 3, the last accepted event is at 4"),
        (4, ""),
        (5, ""),
        (6, "expected_offset is 6, and this event is at 6 already"),
        (7, "expected_offset is 7, and this event is at 6 already"),
    ],
)
def test_expected_offset_is_met_where_nothing_that_counts_came_behind_it(expected, reason):
    # Offset 5, which does not count, may be expected too: a publisher whose retry is a duplicate is
    # told that place.
    log = [record(event(HELLO), 4), record(b"{", 5), record(event(HELLO, expected_offset=expected), 6)]

    admitted = admit(log)

    assert (admitted[2].outcome, admitted[2].reason) == ("rejected" if reason else "accepted", reason)


def test_after_a_retry_that_was_a_duplicate_its_place_may_be_expected():
    one = event(HELLO)

    admitted = admit([record(one, 0), record(one, 1), record(event(HELLO, expected_offset=1), 2)])

    assert outcomes(admitted) == ["accepted", "duplicate", "accepted"]


@modest
@given(logs())
def test_an_event_right_behind_the_offset_that_it_expects_is_never_rejected(log):
    end = log[-1].offset + 1 if log else 0
    one = event(HELLO, expected_offset=end - 1)

    assert admit([*log, record(one, end)])[-1].counts


def test_of_two_that_expect_the_same_offset_the_first_in_the_log_wins():
    rivals = [event(AssistantMessage(message=text), expected_offset=0) for text in "ab"]

    admitted = admit([*records(OPENED), record(rivals[0], 1), record(rivals[1], 2)])

    assert outcomes(admitted) == ["accepted", "accepted", "rejected"]


def test_a_rejected_event_does_not_count_as_seen():
    number = event_id(71)
    lost, again = (
        event(HELLO, event_id=number, expected_offset=-1),
        event(HELLO, event_id=number, expected_offset=0),
    )

    admitted = admit([*records(OPENED), record(lost, 1), record(again, 2), record(again, 3)])

    assert outcomes(admitted) == ["accepted", "rejected", "accepted", "duplicate"]


@pytest.mark.parametrize("data", [OPENED, RunCompleted()], ids=repr)
def test_a_lost_expectation_changes_no_life(data):
    lost = record(event(data, expected_offset=7), 0)

    admitted = admit([lost, *records(OPENED, RunCompleted(), first_offset=1)])

    assert outcomes(admitted) == ["rejected", "accepted", "accepted"]


def test_rejected_and_duplicate_and_undecodable_records_do_not_move_the_last_offset():
    one = event(OPENED)
    log = [record(one, 0), record(one, 1), record(event(OPENED), 2), record(None, 3)]

    admitted = admit([*log, record(event(HELLO, expected_offset=0), 4)])

    assert outcomes(admitted) == ["accepted", "duplicate", "rejected", "undecodable", "accepted"]


def test_a_late_event_moves_the_last_offset():
    log = records(RunCompleted(), HELLO)

    assert admit([*log, record(event(HELLO, expected_offset=1), 2)])[2].outcome == "late"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (record(b"{"), "Invalid JSON"),
        (record(None), "no value"),
        (record(event(HELLO), headers=(("ce_type", b"thinking"),)), "header ce_type"),
        (record(event(HELLO, run_id="run-2")), "the event belongs to run 'run-2'"),
    ],
)
def test_what_is_no_event_of_this_run_is_undecodable_and_the_run_goes_on(bad, reason):
    admitted = admit([bad, *records(OPENED, first_offset=1)])

    assert outcomes(admitted) == ["undecodable", "accepted"]
    assert admitted[0].event is None
    assert not admitted[0].counts
    assert reason in admitted[0].reason


def test_an_event_of_another_run_is_not_seen_here():
    number = event_id(72)

    admitted = admit([record(event(HELLO, event_id=number, run_id=run_id)) for run_id in ("run-2", "run-1")])

    assert outcomes(admitted) == ["undecodable", "accepted"]


@modest
@given(st.data())
def test_admitting_in_portions_with_the_state_stored_in_between_is_admitting_at_once(data):
    log = data.draw(logs())
    whole = admit(log)

    admission, admitted = Admission("run-1"), []
    for portion in data.draw(portions(log)):
        admission = restored(admission, admitted)
        admitted += [admission.admit(one) for one in portion]

    assert admitted == whole


@modest
@given(logs(), st.data())
def test_replaying_what_was_judged_is_admitting_it(log, data):
    judged = admit(log)
    cut = data.draw(st.integers(0, len(log)))

    admission = Admission("run-1")
    for one in judged[:cut]:
        admission.replay(one)

    assert [admission.admit(one) for one in log[cut:]] == judged[cut:]


@modest
@given(logs())
def test_each_event_counts_once_and_nothing_else_counts(log):
    admitted = admit(log)

    counted = [one.event.event_id for one in admitted if one.counts]
    assert len(counted) == len(set(counted))
    assert [one.record for one in admitted] == log
    assert all((one.event is None) == (one.outcome == "undecodable") for one in admitted)
    assert all((one.reason == "") == (one.outcome == "accepted") for one in admitted)


@modest
@given(logs())
def test_publishing_what_counted_again_adds_nothing(log):
    counted = [one.record for one in admit(log) if one.counts]
    copies = [one._replace(offset=one.offset + 1000) for one in counted]

    assert outcomes(admit([*log, *copies])[len(log) :]) == ["duplicate"] * len(copies)


def test_a_skipped_record_counts_for_nothing_whatever_it_holds():
    ordinary = [record(event(HELLO, event_id=event_id(offset)), offset) for offset in range(4)]
    admission = Admission("run-1", skipped={range(1, 3)})

    admitted = [admission.admit(each) for each in ordinary]

    assert outcomes(admitted) == ["accepted", "undecodable", "undecodable", "accepted"]
    assert [each.reason for each in admitted] == ["", SKIPPED, SKIPPED, ""]
    assert admission.last_offset == 3
