"""Responses of the Responses API, whole and streamed, as events whose ledger gives back the same
items.
"""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.types.responses import Response, ResponseStreamEvent
from tests.openai_ledgers import any_json, ledger_of, split
from tests.provider_types import check

from runfold_projections.providers import openai_responses
from runfold_schemas.events import (
    AssistantMessage,
    ProviderPart,
    ResponseRecorded,
)
from runfold_schemas.messages import ThinkingPart
from runfold_schemas.usage import TokenUsage

Item = dict[str, Any]


def function(number: int = 1, arguments: str = "{}", **members: Any) -> Item:
    item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "look"}
    return {**item, "arguments": arguments, "status": "completed", **members}


def text(number: int = 1, *texts: str, **members: Any) -> Item:
    content = [{"type": "output_text", "text": one, "annotations": []} for one in texts or ["Hi"]]
    return {
        "type": "message",
        "id": f"msg_{number}",
        "role": "assistant",
        "status": "completed",
        "content": content,
        **members,
    }


def reasoning(number: int = 1, *summary: str, **members: Any) -> Item:
    said = [{"type": "summary_text", "text": one} for one in summary]
    return {"type": "reasoning", "id": f"rs_{number}", "summary": said, **members}


def searched(number: int = 1) -> Item:
    action = {"type": "search", "query": "x"}
    return {"type": "web_search_call", "id": f"ws_{number}", "status": "completed", "action": action}


def custom(number: int = 1) -> Item:
    item = {"type": "custom_tool_call", "id": f"ctc_{number}", "call_id": f"free_{number}", "name": "sql"}
    return {**item, "input": "SELECT 1"}


def response(*output: Item, **members: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 9,
        "output_tokens": 4,
        "total_tokens": 13,
        "input_tokens_details": {"cached_tokens": 5},
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "status": "completed"}
    return {**whole, "output": list(output), "usage": usage, **members}


def record(said: Any) -> list[Any]:
    return list(openai_responses.ResponsesRecorder({}).response(said))


def again(said: Any) -> list[Item]:
    """What the response's items are in the next request."""
    ledger = ledger_of(record(said), "openai-responses")
    return cast("list[Item]", openai_responses.encode(ledger, {"lossy": "refuse"}).body["input"])


def faults(events: list[Any]) -> tuple[str, ...]:
    assert isinstance(events[-1], ResponseRecorded)
    return events[-1].faults


refusal = text(content=[{"type": "refusal", "refusal": "I must not."}])
cited = text(
    content=[
        {
            "type": "output_text",
            "text": "x",
            "annotations": [{"type": "file_path", "file_id": "f", "index": 0}],
        }
    ]
)


@st.composite
def outputs(draw: st.DrawFn) -> list[Item]:
    """Items as a response has them; reasoning is always followed by something."""
    made = []
    for number in range(draw(st.integers(1, 4))):
        words = st.text(min_size=1, max_size=9)
        if draw(st.booleans()):
            encrypted = {"encrypted_content": "gAAA"} if draw(st.booleans()) else {}
            made.append(reasoning(number, *draw(st.lists(words, max_size=2)), **encrypted))
        arguments = draw(st.sampled_from(['{"city":  "Köln 🙂"}', "{}", "{broken"]))
        following = [text(number, *draw(st.lists(words, min_size=1, max_size=2)))]
        following += [function(number, arguments), custom(number), searched(number)]
        made.append(draw(st.sampled_from(following)))
    return made


@pytest.mark.parametrize(
    "output",
    [
        [text(1, "one", "two"), text(2, "three", phase="final_answer")],
        [reasoning(1, "first", "second", encrypted_content="x"), function(1, '{"n":  1}'), function(2)],
        [reasoning(content=[{"type": "reasoning_text", "text": "hm"}]), text()],
        [refusal],
        [cited],
        [searched(), {"type": "hosted_by_tomorrow", "id": "ht_1", "result": None}, text()],
        [custom(), function(namespace="crm")],
    ],
)
@pytest.mark.parametrize("as_object", [False, True])
def test_the_items_of_a_response_go_back_as_they_were(output, as_object):
    said = response(*output)

    assert again(Response.construct(**said) if as_object else said) == output


@given(outputs())
def test_any_response_goes_back_as_it_was_and_is_what_openais_types_take(output):
    items = again(response(*output))

    assert items == output
    check("openai-responses", {"input": items})


def test_nulls_are_not_sent_back_because_openai_refuses_some():
    assert again(response(reasoning(status=None, encrypted_content=None), text())) == [reasoning(), text()]


def test_reasoning_keeps_its_summary_as_thinking_and_its_item_for_this_provider_alone():
    thinking, _ = ledger_of(record(response(reasoning(1, "a", "b"), text())), "openai-responses")[0].parts

    assert isinstance(thinking, ThinkingPart)
    assert (thinking.text, thinking.signature) == ("a\n\nb", "")
    assert thinking.provider_data is not None
    assert set(thinking.provider_data) == {"openai-responses"}


def test_usage_model_and_stop_reason_are_recorded():
    recorder = openai_responses.ResponsesRecorder({})
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}

    *_, usage, end = recorder.response(Response.construct(**response(text(), **cut)))

    assert recorder.blocks.response_id == "resp_1"
    assert usage == TokenUsage(
        model="gpt-5", input_tokens=9, output_tokens=4, cache_read_tokens=5, reasoning_tokens=2
    )
    assert end == ResponseRecorded(model="gpt-5", stop_reason="max_output_tokens", response_id="resp_1")


def test_names_lead_back_to_the_ledgers_own():
    called, *_ = openai_responses.ResponsesRecorder({"look": "files.look"}).response(response(function()))

    assert called.tool_name == "files.look"


def test_a_failed_response_is_marked_unfinished_and_says_why():
    events = record(response(status="failed", error={"code": "server_error", "message": "sorry"}))

    assert faults(events) == ("the response failed: server_error: sorry",)
    assert not events[-1].finished


@pytest.mark.parametrize(
    "output",
    [
        [text(content="none")],
        [text(content=[{"type": "output_text", "text": 7}])],
        [function(arguments="{broken")],
        [function(call_id=None, id=None)],
        [function(), function()],
        [function(name=7)],
    ],
)
def test_wrong_types_missing_ids_and_broken_arguments_are_faults(output):
    assert faults(record(response(*output)))


def stream_of(said: dict[str, Any], size: int) -> Iterator[Item]:
    """The response as its stream of events, with deltas of `size` characters."""
    yield {
        "type": "response.created",
        "response": {**said, "status": "in_progress", "output": [], "usage": None},
    }
    for index, item in enumerate(said["output"]):
        at = {"output_index": index, "item_id": item.get("id")}
        yield {
            "type": "response.output_item.added",
            **at,
            "item": {**item, "status": "in_progress", **_empty(item)},
        }
        for kind, place, said_there in _deltas(item):
            for piece in split(said_there, size):
                yield {"type": f"response.{kind}.delta", **at, **place, "delta": piece}
        yield {"type": "response.output_item.done", **at, "item": item}
    yield {"type": "response.completed", "response": said}


def _empty(item: Item) -> Item:
    return {name: type(item[name])() for name in ("content", "summary", "arguments", "input") if name in item}


def _deltas(item: Item) -> Iterator[tuple[str, Item, str]]:
    for index, part in enumerate(item.get("summary", ())):
        yield "reasoning_summary_text", {"summary_index": index}, part["text"]
    for index, part in enumerate(item.get("content", ())):
        kind = {"output_text": "output_text", "refusal": "refusal", "reasoning_text": "reasoning_text"}[
            part["type"]
        ]
        yield kind, {"content_index": index}, part.get("text") or part["refusal"]
    if "arguments" in item:
        yield "function_call_arguments", {}, item["arguments"]
    if "input" in item:
        yield "custom_tool_call_input", {}, item["input"]


def as_object(event: Item) -> Any:
    return construct_type(type_=ResponseStreamEvent, value=event)


def feed(stream: Any, *, finished: bool = True) -> list[Any]:
    recorder = openai_responses.ResponsesRecorder({})
    return [data for one in stream for data in recorder.feed(one)] + recorder.blocks.end(finished=finished)


@given(outputs(), st.integers(1, 9), st.booleans())
def test_a_stream_gives_the_events_of_the_whole_response(output, size, as_objects):
    said = response(*output)
    stream = list(stream_of(said, size))

    assert feed(map(as_object, stream) if as_objects else stream) == record(said)


def test_a_stream_of_a_refusal_gives_the_events_of_the_whole_response():
    assert feed(stream_of(response(refusal), 3)) == record(response(refusal))


def test_what_is_said_only_when_the_response_ends_is_recorded():
    said = response(reasoning(1, "hm"), text(), function())
    stream = [one for one in stream_of(said, 3) if one["type"] in ("response.created", "response.completed")]

    assert feed(stream) == record(said)


def test_text_that_was_published_while_it_grew_is_not_said_again():
    said = response(text(1, "Hello there"))
    recorder = openai_responses.ResponsesRecorder({})

    events = []
    for one in stream_of(said, 4):
        events += [*recorder.feed(one), *recorder.blocks.partial()]

    ledger = ledger_of([*events, *recorder.blocks.end()], "openai-responses")
    assert openai_responses.encode(ledger, {"lossy": "refuse"}).body["input"] == [text(1, "Hello there")]


@pytest.mark.parametrize("end", ["nothing", "error"])
def test_a_stream_that_breaks_off_leaves_what_is_complete_and_is_marked(end):
    said = response(reasoning(1, "hm"), text(1, "I look."), function(1, '{"city": "Köln"}'))
    stream = [*stream_of(said, 5)][:-3]
    if end == "error":
        stream.append({"type": "error", "code": "rate_limit", "message": "slow down"})

    events = feed(stream)

    broken = events[-2]
    assert isinstance(broken, ProviderPart)
    assert (broken.finished, broken.content["tool_name"]) == (False, "look")
    assert not events[-1].finished
    ledger = ledger_of(events, "openai-responses")
    assert openai_responses.encode(ledger, {"lossy": "refuse"}).body["input"] == [
        reasoning(1, "hm"),
        text(1, "I look."),
    ]


def test_thinking_that_breaks_off_is_no_part_of_the_ledger():
    stream = [*stream_of(response(reasoning(1, "hm, well"), text()), 2)][:4]

    events = feed(stream, finished=False)

    assert ledger_of(events, "openai-responses") == []


def test_servers_that_say_no_output_index_are_told_apart_by_their_items_ids():
    said = response(text(1, "one"), text(2, "two"))
    stream = [
        {name: value for name, value in one.items() if name != "output_index"} for one in stream_of(said, 2)
    ]
    for one in stream:
        one.setdefault("item", {})

    texts = [one.message for one in feed(stream) if isinstance(one, AssistantMessage)]

    assert texts == ["one", "two"]


NAMES = [
    "id", "type", "output_index", "content_index", "summary_index", "item_id", "item", "delta", "response",
    "output", "status", "usage", "input_tokens", "input_tokens_details", "cached_tokens", "error", "code",
    "message", "content", "text", "refusal", "summary", "call_id", "name", "arguments", "input",
    "annotations", "incomplete_details", "reason",
]  # fmt: skip
TYPES = [
    "message", "reasoning", "function_call", "custom_tool_call", "web_search_call", "output_text",
    "refusal", "error",
    *(
        f"response.{one}"
        for one in ("created", "completed", "failed", "output_item.added", "output_item.done")
    ),
    *(
        f"response.{one}.delta"
        for one in ("output_text", "refusal", "function_call_arguments", "reasoning_text")
    ),
]  # fmt: skip
shaken = any_json(NAMES, TYPES)
typed = st.builds(
    lambda kind, members: {**members, "type": kind},
    st.sampled_from(TYPES),
    st.dictionaries(st.sampled_from(NAMES), shaken, max_size=6),
)


@given(
    shaken | st.builds(lambda output: {"output": output, "status": "completed"}, st.lists(typed, max_size=4))
)
def test_no_response_raises_and_every_event_goes_into_the_log(said):
    ledger = ledger_of(record(said), "openai-responses")

    json.dumps(openai_responses.encode(ledger, {"lossy": "drop"}).body)


@given(
    st.lists(
        shaken | typed | st.builds(lambda item: {"type": "response.output_item.done", "item": item}, typed),
        max_size=6,
    ),
    st.booleans(),
)
def test_no_stream_raises_and_every_event_goes_into_the_log(stream, finished):
    ledger_of(feed(stream, finished=finished), "openai-responses")


def test_it_knows_its_own():
    assert openai_responses.recognizes(Response.construct(**response(text())))
    assert openai_responses.recognizes(as_object(next(stream_of(response(text()), 1))))
    assert not openai_responses.recognizes({"object": "chat.completion", "choices": []})
    assert not openai_responses.recognizes({"type": "message_start"})
