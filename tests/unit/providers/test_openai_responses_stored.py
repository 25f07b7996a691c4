"""What the server stored of a response, and what it did not: ids, the next request, and the members
beside the output.
"""

from typing import Any

import pytest
from tests.builders import event
from tests.openai_ledgers import ledger_of
from tests.provider_types import check

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import encode, openai_responses, validate
from runfold_projections.providers.encoding import Encoded
from runfold_schemas.events import ProviderPart, ResponseRecorded, ToolResult, UserMessage

Item = dict[str, Any]


def reasoning(**members: Any) -> Item:
    return {"type": "reasoning", "id": "rs_1", "summary": [], **members}


def text(*texts: str, **members: Any) -> Item:
    content = [{"type": "output_text", "text": each, "annotations": []} for each in texts or ["Hi"]]
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    return {**item, **members}


def function(**members: Any) -> Item:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": "{}"}
    return {**item, "status": "completed", **members}


def response(*output: Item, **members: Any) -> Item:
    whole = {"id": "resp_1", "object": "response", "status": "completed", "model": "gpt-5"}
    return {**whole, "output": list(output), **members}


def stream(said: Item) -> list[Item]:
    created = {**said, "output": [], "status": "in_progress"}
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in enumerate(said["output"])
    ]
    return [{"type": "response.created", "response": created}, *done]


def record(said: Item) -> list[Any]:
    return list(openai_responses.ResponsesRecorder({}).response(said))


def request(said: Item, *after: Any, recorded_by: str | None = None, **options: Any) -> Encoded:
    """The request after the response and the events `after`."""
    members: Item = {"provider": "openai-responses", "message_id": "m-1"}
    members |= {"maker": recorded_by} if recorded_by else {}
    log = [event(UserMessage(message="Go.")), *(event(data, **members) for data in record(said))]
    messages = build_messages_from_events([*log, *map(event, after)])
    encoded = encode(messages, "openai-responses", **options)
    check("openai-responses", encoded.body)
    return encoded


def items(said: Item, *after: Any) -> list[Item]:
    body = request(said, *after).body
    return list(body["input"][1:])


@pytest.mark.parametrize("as_stream", [False, True])
def test_reasoning_that_was_neither_stored_nor_encrypted_is_left_out_with_the_ids_after_it(as_stream: bool):
    said = response(reasoning(), text(phase="commentary"), function(), store=False)
    recorder = openai_responses.ResponsesRecorder({})
    events = [data for chunk in stream(said) for data in recorder.feed(chunk)] if as_stream else record(said)
    messages = ledger_of(events, "openai-responses")

    encoded = encode(messages, "openai-responses")

    assert encoded.body["input"] == [
        {"role": "assistant", "content": "Hi", "phase": "commentary"},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "look",
            "arguments": "{}",
            "status": "completed",
        },
    ]
    check("openai-responses", encoded.body)
    assert [fault.rule for fault in encoded.dropped] == ["not-stored"]
    assert [fault.rule for fault in validate(messages, "openai-responses")] == ["call-has-result"]


@pytest.mark.parametrize("store", [True, False, None])
@pytest.mark.parametrize(
    "said",
    [reasoning(encrypted_content="gAAA"), reasoning(content=[{"type": "reasoning_text", "text": "hm"}])],
)
def test_reasoning_with_its_content_goes_back_whatever_was_stored(store: bool | None, said: Item):
    assert items(response(said, text("a", "b"), store=store)) == [said, text("a", "b")]


@pytest.mark.parametrize("store", [True, None])
def test_stored_reasoning_goes_back_by_its_id(store: bool | None):
    assert items(response(reasoning(), text(), store=store)) == [reasoning(), text()]


def test_items_go_without_ids_if_their_reasoning_is_left_out_on_demand():
    said = response(reasoning(encrypted_content="x"), text(), function(), store=True)

    message, call = request(said, with_thinking=False).body["input"][1:]

    assert message == {"role": "assistant", "content": "Hi"}
    assert "id" not in call


def test_ids_of_another_response_are_kept():
    first = record(response(reasoning(), text(), store=False))
    second = record(response(text(id="msg_2"), function(), store=False))
    messages = [
        *ledger_of(first, "openai-responses", "m-1"),
        *ledger_of(second, "openai-responses", "m-2"),
    ]

    said = encode(messages, "openai-responses").body["input"]

    assert said == [{"role": "assistant", "content": "Hi"}, text(id="msg_2"), function()]


def test_reasoning_before_a_text_that_broke_off_is_left_out_because_nothing_was_stored():
    said = response(reasoning(), text(), store=True)
    recorder = openai_responses.ResponsesRecorder({})
    delta = {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "H"}

    events = [data for chunk in [*stream(said)[:-1], delta] for data in recorder.feed(chunk)]
    messages = ledger_of([*events, *recorder.blocks.end(finished=False)], "openai-responses")

    assert encode(messages, "openai-responses").body["input"] == [{"role": "assistant", "content": "H"}]
    assert validate(messages, "openai-responses") == []


def test_a_stored_response_is_continued_by_its_id_and_what_came_after_it():
    said = response(text(), function(call_id="call:1"), store=True)

    encoded = request(said, ToolResult(tool_call_id="call:1", result="ok"), UserMessage(message="And?"))

    answer = {"type": "function_call_output", "call_id": "call:1", "output": "ok"}
    asked = {"role": "user", "content": "And?"}
    assert encoded.next_request == {"previous_response_id": "resp_1", "input": [answer, asked]}
    assert encoded.body["input"][-2:] == [answer | {"call_id": "call_1"}, asked]
    check("openai-responses", encoded.body | encoded.next_request)


def test_a_conversation_is_continued_by_its_id():
    said = response(text(), conversation={"id": "conv_1"}, store=True)

    encoded = request(said, UserMessage(message="And?"))

    assert encoded.next_request == {
        "conversation": "conv_1",
        "input": [{"role": "user", "content": "And?"}],
    }


@pytest.mark.parametrize(
    "members",
    [{"store": False}, {}, {"store": True, "status": "incomplete"}, {"store": True, "id": None}],
)
def test_nothing_is_offered_for_a_response_that_cannot_be_continued(members: Item):
    assert request(response(text(), **members), UserMessage(message="And?")).next_request == {}


def test_another_maker_gets_no_id_and_no_item_of_the_response():
    said = response(reasoning(encrypted_content="x"), text(), function(namespace="crm"), store=True)
    result = ToolResult(tool_call_id="call_1", result="ok")

    own = request(said, result, recorded_by="openai")
    other = request(said, result, recorded_by="openai", maker="openrouter.ai", lossy="drop")

    assert own.next_request["previous_response_id"] == "resp_1"
    assert other.next_request == {}
    assert other.body["input"][1:] == [
        {"role": "assistant", "content": "Hi"},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "ok"},
    ]


def test_what_stands_beside_the_output_is_kept():
    beside = {
        "service_tier": "flex",
        "metadata": {"team": "a"},
        "reasoning": {"effort": "low", "summary": None},
        "incomplete_details": {"reason": "steered", "by": "u"},
        "conversation": {"id": "conv_1"},
        "previous_response_id": "resp_0",
        "store": True,
        "cost": {"usd": 0.1},
    }
    empty = {"prompt_cache_key": None, "moderation": {"input": None}, "input_transformations": []}
    repeated = {"instructions": "Be kind.", "tools": [{"type": "web_search"}], "temperature": 1.0}

    *_, end = record(response(text(), **beside, **empty, **repeated))

    assert isinstance(end, ResponseRecorded)
    assert end.provider_data == {"openai-responses": beside}


def test_what_a_usage_has_beside_its_counts_is_kept():
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 6},
        "total_tokens": 30,
        "num_sources_used": 2,
        "num_server_side_tools_used": 0,
    }

    *_, end = record(response(text(), usage=usage))

    assert isinstance(end, ResponseRecorded)
    kept = {"num_sources_used": 2, "output_tokens_details": {"tool_output_tokens": 6}}
    assert end.provider_data == {"openai-responses": {"usage": kept}}


STATUSES = ["in_progress", "searching", "interpreting", "generating", "calling", "incomplete"]


@pytest.mark.parametrize("status", STATUSES)
def test_a_tool_of_the_server_that_was_cut_off_does_not_go_back(status: str):
    cut = {"type": "web_search_call", "id": "ws_1", "status": status}

    events = record(response(text(), cut, status="incomplete"))

    assert [data.finished for data in events if isinstance(data, ProviderPart)] == [False]
    assert items(response(text(), cut, status="incomplete")) == [text()]


def test_a_tool_of_the_server_that_failed_goes_back():
    failed = {"type": "web_search_call", "id": "ws_1", "status": "failed", "action": {"type": "search"}}

    assert items(response(failed, text())) == [failed, text()]
