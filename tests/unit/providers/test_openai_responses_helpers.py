"""Responses of the SDK's helpers `client.responses.parse` and `client.responses.stream`, which add
members that no request takes, and texts of several parts whose pieces are published as they grow.
"""

import dataclasses
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.lib._parsing._responses import parse_response
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from tests.openai_ledgers import ledger_of
from tests.provider_types import check

from runfold_projections.providers import openai_responses, provider_of, recorder
from runfold_schemas.errors import InvalidEventError

Item = dict[str, Any]


class Weather(pydantic.BaseModel):
    city: str


LOOK: Any = {"type": "function", "name": "look", "strict": True, "parameters": Weather.model_json_schema()}

FUNCTION: Item = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "look",
    "arguments": '{"city": "Oslo"}',
    "status": "completed",
}


def text(*parts: Item, **members: Any) -> Item:
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    return {**item, "content": list(parts), **members}


def words(said: str, **members: Any) -> Item:
    return {"type": "output_text", "text": said, "annotations": [], **members}


SAID: Item = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-5",
    "status": "completed",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "output": [text(words('{"city": "Oslo"}')), FUNCTION],
}


def stream_of(said: Item) -> Iterator[Item]:
    numbers = iter(range(10_000))
    yield _event("created", numbers, response={**said, "status": "in_progress", "output": []})
    for index, item in enumerate(said["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield _event(
            "output_item.added", numbers, output_index=index, item={**item, **empty, "status": "in_progress"}
        )
        for place, part in enumerate(item.get("content", ())):
            kind, member = ("refusal", "refusal") if part["type"] == "refusal" else ("output_text", "text")
            inner = {**at, "content_index": place}
            yield _event("content_part.added", numbers, **inner, part={**part, member: ""})
            for piece in part[member]:
                yield _event(f"{kind}.delta", numbers, **inner, delta=piece, logprobs=[])
            yield _event(f"{kind}.done", numbers, **inner, **{member: part[member]}, logprobs=[])
            yield _event("content_part.done", numbers, **inner, part=part)
        for piece in item.get("arguments", ""):
            yield _event("function_call_arguments.delta", numbers, **at, delta=piece)
        yield _event("output_item.done", numbers, output_index=index, item=item)
    yield _event("completed", numbers, response=said)


def _event(kind: str, numbers: Iterator[int], **members: Any) -> Item:
    return {"type": f"response.{kind}", "sequence_number": next(numbers), **members}


def helper_events(said: Item) -> Iterator[Any]:
    """The events of the SDK's helper `client.responses.stream`."""
    state = ResponseStreamState(input_tools=[LOOK], text_format=Weather)
    for event in stream_of(said):
        yield from state.handle_event(construct_type(type_=ResponseStreamEvent, value=event))  # type: ignore[arg-type]  # the SDK builds each event so


def parsed(said: Item) -> Any:
    """The response of the SDK's helper `client.responses.parse`."""
    raw = construct_type(type_=Response, value=said)
    return parse_response(response=raw, input_tools=[LOOK], text_format=Weather)  # type: ignore[arg-type]  # as above


def again(events: list[Any]) -> list[Item]:
    body = openai_responses.encode(ledger_of(events, "openai-responses"), {"lossy": "refuse"}).body
    check("openai-responses", body)
    return list(body["input"])


def test_parsed_values_of_the_helper_do_not_go_back():
    response = parsed(SAID)

    assert response.output_parsed == Weather(city="Oslo")
    assert again(list(recorder("openai-responses").response(response))) == SAID["output"]
    assert again(list(recorder("openai-responses").response(response.model_dump()))) == SAID["output"]


def test_a_stream_of_the_helper_gives_the_events_of_the_response():
    recording = recorder("openai-responses")

    events = [data for event in helper_events(SAID) for data in recording.feed(event)]

    events += recording.blocks.end()
    assert events == recorder("openai-responses").response(SAID)
    assert again(events) == SAID["output"]


@dataclasses.dataclass
class _Bytes:
    """A parsed value that JSON cannot hold."""

    value: bytes = b"\xff\xfe"


def test_a_parsed_value_that_is_no_json_costs_nothing_else():
    response = parsed(SAID)
    response.output[0].content[0].parsed = _Bytes()
    response.output[1].parsed_arguments = {_Bytes: _Bytes(), 1: {_Bytes.__name__}}

    assert again(list(recorder("openai-responses").response(response))) == SAID["output"]


def test_parts_that_are_unknown_keep_their_place_in_the_message():
    sound = {"type": "output_audio", "data": "AAAA", "transcript": "Hm."}
    said = text(words("One."), sound, words("Two."), sound)
    response = {"object": "response", "status": "completed", "output": [said]}

    ledger = ledger_of(list(recorder("openai-responses").response(response)), "openai-responses")

    assert openai_responses.encode(ledger, {"lossy": "refuse"}).body["input"] == [said]
    twice = openai_responses.encode([*ledger, *ledger], {"lossy": "refuse"}).body["input"]
    assert [item.get("id") for item in twice if isinstance(item["content"], list)] == ["msg_1", None, None]


@pytest.mark.parametrize("as_stream", [False, True])
@pytest.mark.parametrize("arguments", ['{"city": "Os', "", "{}"])
def test_a_call_that_was_cut_off_by_the_limit_of_tokens_is_not_to_be_executed(
    arguments: str, as_stream: bool
):
    cut = FUNCTION | {"arguments": arguments, "status": "incomplete"}
    said = SAID | {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [text(words("I look.")), cut],
    }
    recording = recorder("openai-responses")

    events: list[Any] = list(recording.response(said)) if not as_stream else []
    if as_stream:
        events += [data for chunk in stream_of(said) for data in recording.feed(chunk)]
        events += recording.blocks.end()

    assert [type(data).__name__ for data in events] == [
        "AssistantMessage",
        "ProviderPart",
        "ResponseRecorded",
    ]
    assert events[1].content == {"tool_call_id": "call_1", "tool_name": "look", "arguments": arguments}
    assert events[2].faults == ("the call of 'look' broke off in its arguments",)
    assert again(events) == said["output"][:1]


REFUSED = {"type": "refusal", "refusal": "I must not."}


@pytest.mark.parametrize("step", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "parts",
    [
        [words("One."), words("Two.")],
        [words("One."), REFUSED],
        [
            REFUSED,
            words("Two.", logprobs=[{"token": "T", "bytes": [84], "logprob": -0.1, "top_logprobs": []}]),
        ],
        [words("One."), words(""), words("Three.")],
    ],
)
def test_a_message_of_several_parts_is_one_item_however_it_grew(parts: list[Item], step: int):
    said = SAID | {"output": [text(*parts, phase="final_answer"), FUNCTION]}
    recording = recorder("openai-responses")

    events: list[Any] = []
    for number, chunk in enumerate(stream_of(said)):
        events += recording.feed(chunk)
        events += recording.blocks.partial() if number % step == 0 else []

    assert again([*events, *recording.blocks.end()]) == said["output"]


class Raising:
    """An object whose members cannot be read."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


STRANGE = st.one_of(
    st.builds(Raising),
    st.builds(object),
    st.just(Weather),
    st.just(_Bytes()),
    st.binary(max_size=4),
    st.sets(st.integers(), max_size=2),
    st.decimals(),
    st.datetimes(),
    st.integers() | st.floats() | st.text(max_size=4) | st.none(),
)
KINDS = [event["type"] for event in stream_of(SAID | {"output": [text(words("a"), REFUSED), FUNCTION]})]


@st.composite
def strange_values(draw: st.DrawFn) -> Any:
    """A response, an item or a chunk with strange values for some of its members."""
    value: Any = draw(st.sampled_from([SAID, FUNCTION, text(words("a"), REFUSED), *stream_of(SAID)]))
    changed = draw(
        st.dictionaries(st.sampled_from([*value, "item", "part", "delta", 7]), STRANGE, max_size=3)
    )
    members = {**value, **changed}
    if draw(st.booleans()):
        members["output"] = draw(st.lists(STRANGE | st.just(FUNCTION | changed), max_size=2))
    if draw(st.booleans()):
        return types.SimpleNamespace(**{str(name): member for name, member in members.items()})
    return members if draw(st.booleans()) else draw(STRANGE)


@given(st.lists(strange_values(), max_size=4), strange_values(), st.sampled_from(KINDS))
def test_nothing_that_is_given_raises_and_every_event_goes_into_the_log(
    chunks: list[Any], response: Any, kind: str
):
    recording, whole = recorder("openai-responses"), recorder("openai-responses")

    events = [data for chunk in chunks for data in recording.feed(chunk)]
    events += recording.feed({"type": kind, "item": response, "response": response, "delta": response})

    ledger_of([*events, *recording.blocks.end()], "openai-responses")
    ledger_of(list(whole.response(response)), "openai-responses")
    with suppress(InvalidEventError):
        provider_of(response)
