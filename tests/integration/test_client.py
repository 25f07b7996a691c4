"""What the client promises to who publishes: what it says of an event is what the log says of
it.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from runfold.client.run import Run
from runfold.client.runfold import Runfold
from runfold.client.session_log import LogSessionReader
from runfold.log import leaders
from runfold.log.driver import close
from runfold.log.publisher import Outgoing
from runfold_schemas.errors import InvalidEventError, RejectedError, UnavailableError
from runfold_schemas.events import PlannerNote, UserMessage
from runfold_schemas.runs import PhaseChanged, RunCanceled, RunCompleted, RunFailed, RunPaused

HELLO = UserMessage(message="hello")


@pytest.fixture
async def runfold(kafka: str, prefix: str) -> AsyncIterator[Runfold]:
    async with Runfold(kafka, prefix=prefix, create_topics=True) as connected:
        yield connected


async def outcomes(run: Run) -> list[tuple[str, str]]:
    return [(one.event.type if one.event else "", one.outcome) async for one in run.history()]


async def lost(run: Run) -> None:
    """Sends an event that the log will reject."""
    await run.send(HELLO, expected_offset=-1)


async def test_the_place_of_a_duplicate_may_be_expected(runfold: Runfold):
    run = await runfold.open_run(agent_id="a")
    one = run.event(HELLO)
    await run.publish(one)
    again = await run.publish(one)

    position = await run.publish(HELLO, expected_offset=again.offset)

    assert (again.offset, position.offset) == (2, 3)
    assert (await outcomes(run))[2:] == [("user_message", "duplicate"), ("user_message", "accepted")]


async def test_the_first_event_of_all_expects_nothing_before_it(runfold: Runfold):
    run = await runfold.open_run(agent_id="a")

    with pytest.raises(RejectedError, match="the last accepted event is at 0"):
        await run.publish(HELLO, expected_offset=-1)


@pytest.mark.parametrize(
    "change", [RunCompleted(), RunFailed(error="x"), RunPaused(), PhaseChanged(phase="planning")], ids=repr
)
async def test_a_change_of_a_run_that_somebody_else_has_ended_is_rejected(
    runfold: Runfold, change: RunCompleted | RunFailed | RunPaused | PhaseChanged
):
    run = await runfold.open_run(agent_id="a")
    other = await runfold.get_run(run.run_id)
    end = await other.cancel()

    with pytest.raises(RejectedError, match="the run has ended"):
        await run.publish(change, expected_offset=end.offset)

    assert run.ended


async def test_of_two_ends_in_one_batch_the_second_is_rejected(runfold: Runfold):
    run = await runfold.open_run(agent_id="a")

    with pytest.raises(RejectedError) as refusal:
        await run.publish_batch([HELLO, RunCompleted(), RunCanceled()])

    assert refusal.value.offset == 3
    assert run.ended


async def test_a_run_that_nobody_else_writes_to_is_changed_without_reading_it(
    runfold: Runfold, monkeypatch: pytest.MonkeyPatch
):
    run = await runfold.open_run(agent_id="a")
    monkeypatch.setattr(run, "history", None)

    await run.pause()
    await run.resume()
    await run.publish_batch([HELLO, PhaseChanged(phase="planning")])
    for _ in range(20):
        await run.send(HELLO)
    await run.complete()

    assert run.ended


async def test_a_batch_with_an_expected_offset_is_refused_and_names_the_index(runfold: Runfold):
    run = await runfold.open_run(agent_id="a")

    with pytest.raises(InvalidEventError, match=r"^\[1\]: expected_offset") as refusal:
        await run.publish_batch([HELLO, run.event(HELLO, expected_offset=1)])
    with pytest.raises(InvalidEventError, match=r"^\[1\]: the event is not JSON|would change"):
        await run.publish_batch([HELLO, UserMessage(message="x", structured=float("nan"))])
    await run.publish_batch([run.event(HELLO, expected_offset=0)])

    assert (refusal.value.index, refusal.value.field) == (1, "expected_offset")
    assert await outcomes(run) == [("run_opened", "accepted"), ("user_message", "accepted")]


async def test_a_failure_that_was_handled_does_not_come_again(runfold: Runfold):
    async with runfold.run(agent_id="a") as run:
        sent = await run.send(HELLO, expected_offset=-1)
        with pytest.raises(RejectedError):
            await sent

    assert (await outcomes(run))[1:] == [("user_message", "rejected"), ("run_completed", "accepted")]


async def test_a_failure_that_nobody_was_told_fails_the_run_when_its_block_is_left(runfold: Runfold):
    with pytest.raises(RejectedError):
        async with runfold.run(agent_id="a") as run:
            await lost(run)

    assert (await outcomes(run))[1:] == [("user_message", "rejected"), ("run_failed", "accepted")]


async def test_a_failed_send_does_not_keep_a_run_from_failing_with_the_error_of_its_block(runfold: Runfold):
    async def work() -> None:
        async with runfold.run(agent_id="a", run_id="r") as run:
            await lost(run)
            raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError) as failure:
        await work()

    *_, end = [event async for event in (await runfold.get_run("r")).events()]
    assert isinstance(end.data, RunFailed)
    assert end.data.error == "ZeroDivisionError: on purpose"
    assert "was not published" in failure.value.__notes__[0]


async def test_flush_tells_the_first_failure_once(runfold: Runfold):
    run = await runfold.open_run(agent_id="a")
    await run.send(PlannerNote(note="fine"))
    await lost(run)
    await lost(run)

    with pytest.raises(RejectedError) as failure:
        await run.flush()
    await run.flush()

    assert failure.value.offset == 2


@pytest.mark.parametrize("message", ["x" * 9_000_000, "\ud83d"], ids=["long", "half a character"])
async def test_any_error_fails_the_run_that_it_leaves(runfold: Runfold, message: str):
    with pytest.raises(ValueError, match=r".") as failure:
        async with runfold.run(agent_id="a") as run:
            raise ValueError(message)

    assert (await outcomes(run))[1:] == [("run_failed", "accepted")]
    assert not hasattr(failure.value, "__notes__")


async def test_a_block_whose_run_somebody_else_has_ended_is_left_in_peace(runfold: Runfold):
    async with runfold.run(agent_id="a") as run:
        await (await runfold.get_run(run.run_id)).cancel()

    assert run.ended
    assert (await outcomes(run))[1:] == [("run_canceled", "accepted"), ("run_completed", "rejected")]


async def test_labels_beyond_their_bounds_are_refused_by_their_field(runfold: Runfold):
    too_long = {"k": "x" * 513}
    run = await runfold.open_run(agent_id="a")

    with pytest.raises(InvalidEventError) as opening:
        await runfold.open_run(agent_id="a", labels=too_long)
    with pytest.raises(InvalidEventError) as labeling:
        await run.label(**too_long)

    assert (opening.value.field, labeling.value.field) == ("labels.k", "labels.k")


@pytest.mark.parametrize("is_batch", [False, True])
async def test_an_ending_whose_state_was_not_forwarded_can_be_published_again(
    runfold: Runfold, monkeypatch: pytest.MonkeyPatch, is_batch: bool
):
    run = await runfold.open_run(agent_id="a")
    ending = run.event(RunCompleted(), state_delta={"app:k": 1})
    batch = [run.event(HELLO), ending] if is_batch else [ending]
    publisher = runfold.connection.publisher
    send = publisher.send

    async def losing(topic: str, record: Outgoing, **options: Any) -> Any:
        if topic == runfold.connection.topics.sessions:
            raise UnavailableError("Kafka", reason="the test lost it")
        return await send(topic, record, **options)

    with monkeypatch.context() as failing:
        failing.setattr(publisher, "send", losing)
        with pytest.raises(UnavailableError):
            await run.publish_batch(batch)

    await run.publish_batch(batch)

    assert await runfold.sessions.app_state("a") == {"app:k": 1}
    assert run.ended


async def test_only_the_runs_of_a_session_are_made(runfold: Runfold, monkeypatch: pytest.MonkeyPatch):
    run_ids = [(await runfold.open_run(agent_id="a", session_id=f"s-{n % 2}")).run_id for n in range(4)]
    made = []
    run_of = runfold.connection.run_of
    monkeypatch.setattr(runfold.connection, "run_of", lambda life: made.append(life.run_id) or run_of(life))

    assert [run.run_id async for run in runfold.session_runs("s-1")] == run_ids[1::2]
    assert made == run_ids[1::2]


async def test_a_client_that_was_left_says_so_and_can_be_entered_again(kafka: str, prefix: str):
    client = Runfold(kafka, prefix=prefix, create_topics=True)
    async with client:
        run = await client.open_run(agent_id="a")
        session = await client.sessions.create(app="a")
    calls = [
        lambda: client.open_run(agent_id="a"),
        lambda: anext(client.runs()),
        lambda: client.sessions.append(session.session_id, HELLO),
        lambda: client.memories.create_bank("b"),
        lambda: run.publish(HELLO),
        lambda: run.publish_batch([HELLO, HELLO]),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="enter the client first"):
            await call()

    async with client:
        await client.sessions.append(session.session_id, HELLO)
        await (await client.get_run(run.run_id)).publish(HELLO)


async def test_a_client_keeps_the_sessions_that_it_has_opened(
    runfold: Runfold, monkeypatch: pytest.MonkeyPatch
):
    session = await runfold.sessions.create(app="a")

    async def refusing(_: Any, session_id: str) -> None:
        raise AssertionError(session_id)

    monkeypatch.setattr(LogSessionReader, "find", refusing)

    assert (await runfold.sessions.append(session.session_id, HELLO)).offset == 1
    assert runfold.memories is runfold.memories


async def test_a_read_that_stops_early_closes_its_consumer_at_once(
    runfold: Runfold, monkeypatch: pytest.MonkeyPatch
):
    run = await runfold.open_run(agent_id="a")
    await run.complete()
    log = runfold.connection.log_of(run.life)
    stopped = []

    async def closing(client: Any) -> None:
        await close(client)
        stopped.append(client)

    monkeypatch.setattr(leaders, "close", closing)

    assert await log.ended_before(2)

    assert len(stopped) == 2
