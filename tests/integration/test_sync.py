"""The synchronous client on a real Kafka: scripts, threads and notebooks."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import as_completed
from typing import Any

import pytest

from runfold import (
    AssistantMessage,
    RejectedError,
    RunNotFoundError,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold.client.session import EventSelection
from runfold.sync import Run, Runfold
from runfold_schemas.memories import Memory

HELLO = UserMessage(message="hello")

RESPONSE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "At 07:04."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 5, "output_tokens": 3},
}

CHUNKS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**RESPONSE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "At "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "07:04."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]

SCRIPT = """
import os
from runfold import UserMessage
from runfold.sync import Runfold

runfold = Runfold(os.environ["KAFKA"], prefix=os.environ["PREFIX"], create_topics=True)
run = runfold.open_run(agent_id="a", run_id="from a script")
events = run.history()
next(events)
run.send(UserMessage(message="on its way when the program ends"))
"""


@pytest.fixture
def runfold(kafka: str, prefix: str) -> Iterator[Runfold]:
    with Runfold(kafka, prefix=prefix, create_topics=True) as connected:
        yield connected


def kinds(run: Run) -> list[str]:
    return [event.type for event in run.events()]


def test_a_run_is_published_to_and_read_back(runfold: Runfold):
    with runfold.run(agent_id="a", session_id="s", turn_id="t-1") as run:
        first = run.publish(HELLO)
        futures = [run.send(ToolCall(tool_call_id=f"c{n}", tool_name="t", payload={})) for n in range(3)]
        run.publish_batch([ToolResult(tool_call_id=f"c{n}", tool_name="t", result=n) for n in range(3)])
        run.publish(AssistantMessage(message="done"), turn_id="t-2")

        assert (first.run_id, first.offset) == (run.run_id, 1)
        assert {future.result().offset for future in as_completed(futures)} == {2, 3, 4}
        assert [message.role for message in run.ledger()] == ["user", "assistant", "user", "assistant"]
        assert len(run.ledger("anthropic").body["messages"]) == 4
        assert run.faults("anthropic") == []
        assert not run.ended

    assert run.ended
    assert kinds(run) == [
        "run_opened",
        "user_message",
        *["tool_call"] * 3,
        *["tool_result"] * 3,
        "assistant_message",
        "run_completed",
    ]
    assert [event.turn_id for event in run.events()][1:-1] == ["t-1"] * 7 + ["t-2"]
    assert kinds(runfold.get_run(run.run_id)) == kinds(run)
    assert [one.run_id for one in runfold.session_runs("s")] == [run.run_id]
    assert [one.run_id for one in runfold.runs()] == [run.run_id]
    assert [admitted.record.offset for _, admitted in runfold.history(session_id="s")] == list(range(10))
    with pytest.raises(RunNotFoundError):
        runfold.get_run("nobody's")


def test_an_error_in_the_block_fails_the_run_and_goes_on(runfold: Runfold):
    failure = KeyError("k")

    with pytest.raises(KeyError) as raised, runfold.run(agent_id="a") as run:
        raise failure

    assert raised.value is failure
    [*_, last] = run.events()
    assert (last.type, last.data.error) == ("run_failed", "KeyError: 'k'")


def test_an_interrupt_in_the_block_fails_the_run(runfold: Runfold):
    with pytest.raises(KeyboardInterrupt), runfold.run(agent_id="a") as run:
        raise KeyboardInterrupt

    assert kinds(run)[-1] == "run_failed"


def test_a_failure_that_nobody_looked_at_is_raised_by_flush_once(runfold: Runfold):
    run = runfold.open_run(agent_id="a")
    future = run.send(HELLO, expected_offset=-1)

    with pytest.raises(RejectedError):
        run.flush()
    run.flush()

    assert isinstance(future.exception(), RejectedError)


def test_a_failure_that_was_looked_at_does_not_come_again(runfold: Runfold):
    run = runfold.open_run(agent_id="a")

    with pytest.raises(RejectedError):
        run.send(HELLO, expected_offset=-1).result()
    run.flush()
    assert isinstance(run.send(HELLO, expected_offset=-1).exception(), RejectedError)
    run.complete()


def test_a_failed_send_fails_the_run_of_its_block(runfold: Runfold):
    with pytest.raises(RejectedError), runfold.run(agent_id="a") as run:
        run.send(HELLO, expected_offset=-1)

    assert kinds(run) == ["run_opened", "run_failed"]


def test_a_history_is_longer_than_a_batch_and_may_be_left_early(runfold: Runfold):
    run = runfold.open_run(agent_id="a")
    for _ in range(3):
        run.publish_batch([HELLO] * 200)

    first = next(run.history())
    history = run.history(first_offset=10)
    next(history)
    history.close()

    assert first.record.offset == 0
    assert [admitted.record.offset for admitted in run.history()] == list(range(601))
    assert [admitted.record.offset for admitted in run.history(first_offset=300, end=302)] == [300, 301]


def test_a_response_and_a_stream_are_recorded(runfold: Runfold):
    with runfold.run(agent_id="a") as run:
        run.publish(HELLO)
        run.record(RESPONSE, provider="anthropic")
        run.publish(HELLO)
        assert list(run.record_stream(iter(CHUNKS), provider="anthropic")) == CHUNKS

        texts = [event.data.message for event in run.events() if event.type == "assistant_message"]
        assert texts == ["At 07:04."] * 2


def test_a_stream_that_breaks_off_leaves_what_arrived(runfold: Runfold):
    def breaking() -> Iterator[dict[str, Any]]:
        yield from CHUNKS[:3]
        raise ConnectionError("gone")

    run = runfold.open_run(agent_id="a")
    with pytest.raises(ConnectionError, match="gone"):
        list(run.record_stream(breaking(), provider="anthropic"))
    early = run.record_stream(CHUNKS, provider="anthropic")
    assert [next(early) for _ in range(3)] == CHUNKS[:3]
    early.close()

    assert [event.data.message for event in run.events() if event.type == "assistant_message"] == ["At "] * 2


def test_sessions_have_their_verbs(runfold: Runfold):
    sessions = runfold.sessions
    session = sessions.create(app="shop", user="ann", state={"user:language": "fr"})

    sessions.append(session.session_id, HELLO, state_delta={"step": 1})

    viewed = sessions.view(session.session_id, EventSelection())
    assert viewed.state == {"user:language": "fr", "step": 1}
    assert len(viewed.events) == 1
    assert sessions.user_state("shop", "ann") == {"user:language": "fr"}
    assert [one.session_id for one in sessions.list(app="shop")[0]] == [session.session_id]
    assert sessions.end(session.session_id).ended
    sessions.delete(session.session_id)
    assert sessions.list(app="shop")[0] == []


def test_memories_have_their_verbs(runfold: Runfold):
    memories = runfold.memories
    memories.create_bank("travel")
    memory = memories.create("travel", Memory(fact="Prefers window seats", scope={"user": "ann"}))

    memories.update("travel", memory.memory_id, {"fact": "Prefers aisle seats"})
    back = memories.rollback("travel", memory.memory_id, memory.revision_id)

    assert back.memory.fact == "Prefers window seats"
    assert len(memories.revisions("travel", memory.memory_id)[0]) == 3
    memories.delete_bank("travel", force=True)


async def test_it_works_in_a_thread_whose_loop_is_running(kafka: str, prefix: str):
    runfold = Runfold(kafka, prefix=prefix, create_topics=True)

    run = runfold.open_run(agent_id="a")
    run.publish(HELLO)

    assert kinds(run) == ["run_opened", "user_message"]
    runfold.close()


def test_threads_share_a_run(runfold: Runfold):
    with runfold.run(agent_id="a") as run:

        def publish() -> None:
            for _ in range(10):
                run.publish(HELLO)

        threads = [threading.Thread(target=publish) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert kinds(run) == ["run_opened", *["user_message"] * 50, "run_completed"]


def test_a_closed_client_connects_again(runfold: Runfold):
    run_id = runfold.open_run(agent_id="a").run_id

    runfold.close()
    runfold.close()

    assert runfold.get_run(run_id).run_id == run_id


def test_a_script_that_closes_nothing_delivers_what_it_sent_and_ends_in_silence(
    runfold: Runfold, kafka: str, prefix: str
):
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", SCRIPT],
        env=os.environ | {"KAFKA": kafka, "PREFIX": prefix},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert kinds(runfold.get_run("from a script")) == ["run_opened", "user_message"]
