"""Recording a response: whatever a stream holds and Kafka does, the caller gets each chunk, and
nothing that can be published is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.builders import event

from runfold import Position
from runfold.client import recording as module
from runfold.client.recording import Recorded, Recording, record_stream
from runfold.ids import recording_ids
from runfold_schemas.errors import EventTooLargeError, InvalidEventError, RunEndedError, UnavailableError
from runfold_schemas.events import AnyEvent, AssistantMessage, ResponseRecorded, ToolCall

TEXT = {"object": "chat.completion.chunk", "id": "c", "choices": [{"index": 0, "delta": {"content": "Hi"}}]}
END = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
CALL = {
    "object": "chat.completion",
    "id": "repeated",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {"tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]},
        }
    ],
}


AWAY = UnavailableError("Kafka", reason="it is away")


class Log:
    """Takes events as a run does. `failures` are raised first, one for each call."""

    def __init__(self, *failures: Exception) -> None:
        self.events: list[AnyEvent] = []
        self.failures = list(failures)

    async def publish(self, events: Sequence[AnyEvent]) -> list[Position]:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        if any("huge" in str(each.data) and isinstance(each.data, AssistantMessage) for each in events):
            raise EventTooLargeError(size=9, limit=8, events=len(events))
        first = len(self.events)
        self.events += events
        return [Position("r-1", first + index) for index in range(len(events))]

    def recording(self, **options: Any) -> Recording:
        return Recording(
            lambda data, **envelope: event(data, run_id="r-1", **envelope), self.publish, **options
        )


async def streamed(log: Log, *chunks: Any, **options: Any) -> list[Any]:
    async def stream() -> AsyncIterator[Any]:
        for chunk in chunks:
            yield chunk
            await asyncio.sleep(0)

    return [chunk async for chunk in record_stream(stream(), log.recording(**options))]


def kinds(log: Log) -> list[str]:
    return [each.type for each in log.events]


@pytest.mark.parametrize("chunk", [None, 7, "text", object(), {"choices": 5}, {}, b"\0", [TEXT]])
async def test_no_chunk_raises_into_the_callers_stream(chunk: Any):
    log = Log()

    assert await streamed(log, chunk, TEXT, END) == [chunk, TEXT, END]

    assert kinds(log)[-2:] == ["assistant_message", "response_recorded"]


async def test_a_recorder_that_fails_is_a_fault_of_the_response(monkeypatch: pytest.MonkeyPatch):
    class Failing:
        def __init__(self, recorder: Any) -> None:
            self.blocks = recorder.blocks

        def feed(self, chunk: Any) -> Any:
            raise RuntimeError(chunk)

    make = module.recorder
    monkeypatch.setattr(module, "recorder", lambda *args, **named: Failing(make(*args, **named)))
    log = Log()

    assert await streamed(log, TEXT, END) == [TEXT, END]

    assert log.events[-1].data.faults == ("a dict could not be recorded",)


async def test_a_stream_that_nobody_knows_is_a_response_with_a_fault():
    log = Log()

    await streamed(log, {"what": 1}, {"ever": 2})

    [end] = log.events
    assert isinstance(end.data, ResponseRecorded)
    assert not end.data.finished
    assert "name the provider" in end.data.faults[0]


async def test_events_wait_while_kafka_is_away_and_none_is_lost():
    log = Log(AWAY, AWAY)

    await streamed(log, TEXT, END, TEXT, END)

    assert kinds(log) == ["assistant_message", "assistant_message", "response_recorded"]


async def test_the_end_of_the_stream_says_that_events_are_not_durable():
    with pytest.raises(UnavailableError):
        await streamed(Log(*[AWAY] * 9), TEXT, END)


async def test_a_run_that_has_ended_takes_nothing_more():
    log = Log(RunEndedError("r-1"))

    with pytest.raises(RunEndedError):
        await streamed(log, TEXT, END)

    assert log.events == []


async def test_an_event_that_is_too_large_is_a_fault_and_loses_no_other():
    huge = {**TEXT, "choices": [{"index": 0, "delta": {"content": "huge"}}]}
    log = Log()

    await streamed(log, huge, END, TEXT, END)

    assert kinds(log) == ["assistant_message", "response_recorded"]
    assert "9 bytes" in log.events[-1].data.faults[0]


async def test_a_broken_stream_keeps_its_own_error():
    async def stream() -> AsyncIterator[Any]:
        yield TEXT
        raise ConnectionError("reset")

    log = Log(AWAY, AWAY)
    with pytest.raises(ConnectionError) as raised:
        async for _ in record_stream(stream(), log.recording()):
            pass

    assert raised.value.__notes__ == [f"some of what had arrived is not recorded: {AWAY}"]


async def test_a_wrong_envelope_is_found_before_the_first_chunk():
    def make(*_: Any, **__: Any) -> AnyEvent:
        raise InvalidEventError("labels: wrong", field="labels")

    with pytest.raises(InvalidEventError):
        Recording(make, Log().publish)


async def test_two_responses_with_one_id_are_two_messages_and_calls_get_names():
    log = Log()
    first, second = [await each.publish(each.events_of(CALL)) for each in (log.recording(), log.recording())]

    assert first.message_id != second.message_id
    assert {each.message_id for each in log.events} == {first.message_id, second.message_id}
    assert {each.data.response_id for each in log.events if isinstance(each.data, ResponseRecorded)} == {
        "repeated"
    }
    assert [call.tool_call_id for call in first.calls] == [
        each.data.tool_call_id for each in log.events if isinstance(each.data, ToolCall)
    ][:1]
    assert [position.offset for position in first] == [0, 1]


async def test_a_response_that_is_recorded_again_has_the_same_event_ids(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_PARTIAL_SECONDS", 0)
    ids, logs, recorded = recording_ids("r-1", "step-1"), [Log(), Log()], [Recorded(), Recorded()]

    for log, into in zip(logs, recorded, strict=True):
        await streamed(log, TEXT, TEXT, END, repeatable_id=ids, into=into)

    assert logs[0].events == [
        each.model_copy(update={"timestamp": old.timestamp})
        for each, old in zip(logs[1].events, logs[0].events, strict=True)
    ]
    assert recorded[0].message_id == recorded[1].message_id
    assert kinds(logs[0]) == ["assistant_message", "response_recorded"]


@pytest.mark.parametrize("first", [[TEXT], [TEXT, END], [TEXT, TEXT, TEXT, END]])
async def test_another_response_under_the_same_id_never_mixes_with_the_first(first: list[Any]):
    """The first attempt broke off, or the model answered otherwise."""
    ids, log = recording_ids("r-1", "step-1"), Log()

    await streamed(log, *first, repeatable_id=ids)
    await streamed(log, TEXT, TEXT, END, repeatable_id=ids)

    counting = {each.event_id: each for each in log.events}.values()
    texts: dict[Any, str] = {}
    for each in counting:
        if isinstance(each.data, AssistantMessage):
            texts[each.message_id] = texts.get(each.message_id, "") + each.data.message
    assert list(texts.values()) == ["Hi" * first.count(TEXT), "HiHi"]


async def test_a_process_that_dies_within_a_repeatable_stream_has_published_nothing():
    log = Log()
    recording = log.recording(repeatable_id=recording_ids("r-1", "step-1"))

    for chunk in (TEXT, TEXT):
        recording.take(chunk)
        await asyncio.sleep(0)

    assert log.events == []


async def test_a_text_is_published_while_the_model_pauses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_PARTIAL_SECONDS", 0.01)
    log = Log()
    recording = log.recording()

    recording.take(TEXT)
    while not log.events:
        await asyncio.sleep(0.01)
    await recording.end(finished=False)

    assert kinds(log) == ["assistant_message", "response_recorded"]


def test_a_response_of_another_provider_than_the_named_one_is_refused():
    with pytest.raises(InvalidEventError, match="a response of openai-chat, and not of anthropic"):
        Log().recording(provider="anthropic").events_of(CALL)


def test_a_model_that_the_response_does_not_name_is_the_callers():
    [*_, end] = Log().recording(model="m-1").events_of(CALL)

    assert end.data.model == "m-1"
