"""The run record: every change of status, and that folding in portions gives the same."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event
from tests.records import ONE_OF_EACH, admit, logs, modest, portions, record, records

from runfold_projections.admission import Admitted
from runfold_projections.run import (
    PROMPTS_MAX,
    SCORERS_MAX,
    RunRecord,
    Score,
    TokenTotals,
    fold,
)
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AssistantMessage,
    PlannerNote,
    UserMessage,
)
from runfold_schemas.judgements import PromptRendered, PromptScope, RunScored
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

EMPTY = RunRecord(run_id="run-1")
OPENED = RunOpened(agent_id="agent-1", log_id="log-1")

CHANGES: dict[Data, dict[str, str]] = {
    RunStarted(): {"pending": "running"},
    RunPaused(): {"running": "paused"},
    RunResumed(): {"paused": "running"},
    RunCompleted(): dict.fromkeys(("pending", "running", "paused"), "completed"),
    RunFailed(error="boom"): dict.fromkeys(("pending", "running", "paused"), "failed"),
    RunCanceled(): dict.fromkeys(("pending", "running", "paused"), "canceled"),
}
"""What each event makes of each status; what is not here is illegal."""

STATUSES = ("pending", "running", "paused", "completed", "failed", "canceled")


def after(*data: Data, start: RunRecord = EMPTY, **envelope) -> RunRecord:
    return fold(start, admit(records(*data, first_offset=start.next_offset, **envelope)))


def accepted(data: Data, offset: int = 0) -> Admitted:
    """As if it had been admitted, which a change after the end never is."""
    one = event(data)
    return Admitted(record(one, offset), "accepted", one)


def test_opening_says_whose_run_it_is():
    opened = event(RunOpened(agent_id="a", log_id="l", session_id="s", labels={"team": "red"}), turn_id="t-1")

    run = fold(EMPTY, admit([record(opened)]))

    assert run == RunRecord(
        run_id="run-1",
        agent_id="a",
        session_id="s",
        turn_id="t-1",
        status="running",
        started_at=opened.timestamp,
        updated_at=opened.timestamp,
        labels={"team": "red"},
        counts={"run_opened": 1},
        next_offset=1,
    )


def test_a_run_may_be_opened_pending():
    assert after(RunOpened(agent_id="a", log_id="l", status="pending")).status == "pending"


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("data", CHANGES, ids=lambda data: type(data).__name__)
def test_a_status_changes_as_the_table_says_and_anything_else_is_counted(status, data):
    before = EMPTY.model_copy(update={"status": status, "phase": "planning"})

    run = fold(before, [accepted(data)])

    if status in CHANGES[data]:
        assert run.status == CHANGES[data][status]
        assert run.illegal_transitions == 0
    else:
        assert (run.status, run.phase, run.error, run.illegal_transitions) == (status, "planning", None, 1)


@pytest.mark.parametrize(
    ("end", "status"),
    [(RunCompleted(), "completed"), (RunFailed(error="boom"), "failed"), (RunCanceled(), "canceled")],
)
def test_the_end_is_also_a_phase(end, status):
    run = after(OPENED, PhaseChanged(phase="planning"), end)

    assert (run.status, run.phase) == (status, status)
    assert run.error == ("boom" if status == "failed" else None)


def test_illegal_transitions_add_up_and_the_run_goes_on():
    run = after(OPENED, RunStarted(), RunResumed(), RunPaused(), RunPaused(), RunResumed(), RunCompleted())

    assert run.status == "completed"
    assert run.illegal_transitions == 3


def test_what_is_rejected_after_the_end_changes_neither_status_nor_error():
    ended = after(OPENED, RunCompleted())

    run = fold(
        EMPTY,
        admit([*records(OPENED, RunCompleted(), RunFailed(error="late"), PhaseChanged(phase="planning"))]),
    )

    assert (run.status, run.phase, run.error) == (ended.status, ended.phase, None)
    assert run.exceptions == {"rejected": 2}


def test_the_phase_is_the_last_one_said():
    assert after(OPENED).phase is None
    assert (
        after(OPENED, PhaseChanged(phase="planning"), PhaseChanged(phase="synthesizing")).phase
        == "synthesizing"
    )


def test_labels_are_merged_over_those_there():
    run = after(
        RunOpened(agent_id="a", log_id="l", labels={"team": "red", "tier": "1"}),
        RunLabeled(labels={"team": "blue", "été.$x": "\0"}),
        RunLabeled(labels={}),
    )

    assert run.labels == {"team": "blue", "tier": "1", "été.$x": "\0"}


def test_a_run_keeps_the_labels_it_has_and_takes_new_ones_while_there_is_room():
    first = RunLabeled(labels={f"a{number}": "1" for number in range(63)})
    second = RunLabeled(labels={"b0": "2", "a7": "2", "b1": "2"})

    run = after(OPENED, first, second)

    assert len(run.labels) == 64
    assert (run.labels["a7"], run.labels["b0"]) == ("2", "2")
    assert "b1" not in run.labels


def test_a_long_error_is_cut_in_the_record():
    assert after(OPENED, RunFailed(error="é" * 10_000)).error == "é" * 4096


def test_the_record_of_any_log_is_small():
    wide = "\0"  # six bytes of JSON
    labels = [
        RunLabeled(labels={f"{n}-{number}".ljust(64, wide): wide * 512 for number in range(64)})
        for n in range(9)
    ]
    opened = RunOpened(agent_id=wide * 100, log_id="l", session_id=wide * 100, labels=labels[0].labels)

    run = after(
        opened,
        *labels,
        *[TokenUsage(input_tokens=2**63 - 1, output_tokens=2**63 - 1)] * 9,
        *[PromptRendered(prompt_id=f"{n}".ljust(100, wide), version=wide * 100) for n in range(99)],
        *[RunScored(scorer=f"{n}".ljust(100, wide), label=wide * 100, score=-1 / 3) for n in range(99)],
        *ONE_OF_EACH,
        turn_id=wide * 200,
    )
    run = fold(
        run.model_copy(update={"status": "running"}), [accepted(RunFailed(error=wide * 100_000), 1000)]
    )

    assert len(run.labels) == 64
    assert (len(run.prompts), len(run.scores)) == (PROMPTS_MAX, SCORERS_MAX)
    assert 250_000 < len(run.model_dump_json()) < 320_000


@modest
@given(
    st.lists(
        st.builds(
            RunLabeled, labels=st.dictionaries(st.text(max_size=64), st.text(max_size=512), max_size=64)
        ),
        max_size=6,
    )
)
def test_the_labels_of_a_run_are_the_first_64_with_their_last_values(labeled):
    run = after(OPENED, *labeled)

    last: dict[str, str] = {}
    for name, text in (label for one in labeled for label in one.labels.items()):
        if name in last or len(last) < 64:
            last[name] = text
    assert run.labels == last
    assert len(run.model_dump_json()) < 320_000


def test_labels_of_an_event_are_not_labels_of_the_run():
    assert after(OPENED, UserMessage(message="hi"), labels={"event": "only"}).labels == {}


def test_prompts_are_each_version_once_in_the_order_of_their_first_rendering():
    scope = PromptScope(labels={"team": "red"})

    run = after(
        OPENED,
        PromptRendered(prompt_id="desk.system", version="2"),
        PromptRendered(prompt_id="desk.answer"),
        PromptRendered(prompt_id="desk.system", version="2", scope=scope),
        PromptRendered(prompt_id="desk.system", version="1"),
    )

    assert [(used.prompt_id, used.version) for used in run.prompts] == [
        ("desk.system", "2"),
        ("desk.answer", None),
        ("desk.system", "1"),
    ]


def test_the_score_of_a_run_is_the_last_one_of_each_scorer():
    log = admit(
        records(
            OPENED,
            RunScored(scorer="exact", score=0.5, reason="half of it"),
            RunScored(scorer="ann", label="thumbs up"),
            RunScored(scorer="exact", score=1, label="correct"),
            RunScored(scorer="exact", score=0, scored_turn_id="turn-1"),
            RunScored(scorer="tone", score=0, scored_offset=1),
        )
    )
    times = [each.event.timestamp for each in log if each.event is not None]

    assert fold(EMPTY, log).scores == {
        "exact": Score(score=1, label="correct", scored_at=times[3]),
        "ann": Score(label="thumbs up", scored_at=times[2]),
    }


def test_a_run_may_be_scored_after_its_end():
    run = after(OPENED, RunCompleted(), RunScored(scorer="ann", score=1))

    assert (run.status, run.scores["ann"].score, run.exceptions) == ("completed", 1, {"late": 1})


def test_token_usage_adds_up():
    one = TokenUsage(input_tokens=1, output_tokens=20, cache_read_tokens=300, cache_write_tokens=4000)

    run = after(OPENED, one, TokenUsage(model="m", output_tokens=5), one)

    assert run.usage == TokenTotals(
        input_tokens=2, output_tokens=45, cache_read_tokens=600, cache_write_tokens=8000
    )


def test_usage_beyond_64_bits_is_exact_and_can_be_stored():
    run = after(OPENED, *[TokenUsage(input_tokens=2**63 - 1)] * 3)

    assert run.usage.input_tokens == 3 * (2**63 - 1)
    assert RunRecord.model_validate_json(run.model_dump_json()) == run


def test_the_turn_is_the_last_one_named():
    log = [
        record(event(UserMessage(message="hi"), turn_id=turn_id), offset)
        for offset, turn_id in enumerate(["turn-1", "turn-2", None])
    ]

    assert fold(EMPTY, admit(log)).turn_id == "turn-2"


def test_times_are_the_producers_and_not_the_brokers():
    zone = timezone(timedelta(hours=2))
    times = [datetime(2026, 1, 1, 12, tzinfo=zone), datetime(2026, 1, 2, 0, 0, 0, 1, tzinfo=UTC)]
    log = [
        record(event(data, timestamp=time), offset, log_time=0)
        for offset, (data, time) in enumerate(zip([OPENED, UserMessage(message="hi")], times, strict=True))
    ]

    run = fold(EMPTY, admit(log))

    assert (run.started_at, run.updated_at) == tuple(times)


def test_counts_are_by_kind_and_only_of_what_counts():
    run = after(
        OPENED, *[AssistantMessage(message="a")] * 3, OPENED, RunCompleted(), PlannerNote(note="late")
    )

    assert run.counts == {"run_opened": 1, "assistant_message": 3, "run_completed": 1, "planner_note": 1}
    assert run.exceptions == {"rejected": 1, "late": 1}


def test_a_late_event_adds_to_usage_labels_turn_and_time_but_not_to_the_life():
    ended = after(OPENED, RunCompleted())

    late = [
        record(event(each, turn_id="t-9"), n)
        for n, each in enumerate([TokenUsage(input_tokens=1), RunLabeled(labels={"a": "b"})], 2)
    ]
    log = [*records(OPENED, RunCompleted()), *late]
    run = fold(EMPTY, admit(log))

    assert (run.status, run.phase, run.illegal_transitions) == (ended.status, ended.phase, 0)
    assert (run.usage.input_tokens, run.labels, run.turn_id) == (1, {"a": "b"}, "t-9")
    assert run.updated_at > ended.updated_at


def test_the_next_offset_is_after_the_last_record_also_over_gaps():
    log = [record(event(OPENED), 0), record(event(UserMessage(message="hi")), 7), record(b"{", 40)]

    run = fold(EMPTY, admit(log))

    assert run.next_offset == 41
    assert run.exceptions == {"undecodable": 1}


def test_every_kind_can_be_folded_and_stored():
    run = fold(EMPTY, [accepted(data, offset) for offset, data in enumerate(ONE_OF_EACH)])

    assert sum(run.counts.values()) == len(ONE_OF_EACH)
    assert RunRecord.model_validate_json(run.model_dump_json()) == run


@modest
@given(st.data())
def test_folding_in_any_portions_gives_the_same(data):
    admitted = admit(data.draw(logs()))

    run = EMPTY
    for portion in data.draw(portions(admitted)):
        run = fold(run, portion)

    assert run == fold(EMPTY, admitted)


@modest
@given(logs())
def test_what_does_not_count_changes_only_the_exceptions_and_the_position(log):
    admitted = admit(log)

    run = fold(EMPTY, admitted)

    without = fold(EMPTY, [one for one in admitted if one.counts])
    assert run.model_dump(exclude={"exceptions", "next_offset"}) == without.model_dump(
        exclude={"exceptions", "next_offset"}
    )
    assert run.next_offset == (log[-1].offset + 1 if log else 0)
    assert sum(run.exceptions.values()) == sum(one.outcome != "accepted" for one in admitted)


@modest
@given(logs(), logs())
def test_folding_changes_no_record_that_was_folded_before(one, other):
    before = fold(EMPTY, admit(one))
    copy = before.model_copy(deep=True)

    fold(before, admit(other))

    assert before == copy
