"""Anthropic's Messages: what stands beside the content, blocks with more members than today's, and
endpoints of other makers.
"""

from typing import Any

import pytest
from pydantic import BaseModel
from tests.anthropic_messages import BEGIN, END, client, delta, response, start, stop, stream, valid
from tests.ledgers import ledger_of

from runfold_projections.providers import encode, recorder
from runfold_projections.providers.anthropic import AnthropicRecorder
from runfold_schemas.data import Data
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.events import ProviderPart, ResponseRecorded, Thinking
from runfold_schemas.messages import Citation, TextPart

TEXT = {"type": "text", "text": "I stop here."}
CONTAINER = {"id": "container_1", "expires_at": "2026-11-22T20:00:00Z"}
EDITS = {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2}]}
BESIDE = {
    "stop_sequence": "END",
    "stop_details": {"type": "refusal", "category": "cyber", "explanation": "It is unsafe."},
    "container": CONTAINER,
    "context_management": EDITS,
}
MORE_USAGE = {"service_tier": "priority", "inference_geo": "eu", "iterations": [{"type": "message"}]}
COMPACTION = {
    "type": "compaction",
    "content": "They spoke of the weather.",
    "encrypted_content": "b3BhcXVl",
    "signature": "c2ln",
}


def test_what_stands_beside_the_content_is_kept_from_a_whole_response_and_from_a_stream():
    whole = {**response([TEXT]), **BESIDE}
    whole["usage"] = {**whole["usage"], **MORE_USAGE}
    ends: list[dict[str, Any]] = [
        {
            "type": "message_delta",
            "delta": {name: BESIDE[name] for name in ("stop_sequence", "stop_details", "container")}
            | {"stop_reason": "end_turn"},
            "context_management": EDITS,
            "usage": {"output_tokens": 5, "iterations": MORE_USAGE["iterations"]},
        },
        END[1],
    ]
    begin = {**BEGIN, "message": {**BEGIN["message"], "usage": {**BEGIN["message"]["usage"], **MORE_USAGE}}}
    streamed = [begin, start(0, TEXT), stop(0), *ends]

    for events in (
        AnthropicRecorder({}).response(whole),
        fed(streamed),
        fed(client(events=streamed).beta.messages.create(**REQUEST, stream=True)),
    ):
        assert isinstance(end := events[-1], ResponseRecorded)
        assert end.provider_data == {"anthropic": {**BESIDE, "usage": MORE_USAGE}}
        assert end.next_request == {"anthropic": {"container": "container_1"}}


def test_the_next_request_gets_the_id_of_the_container():
    events = AnthropicRecorder({}).response({**response([TEXT]), "container": CONTAINER})

    assert encode(ledger_of(events, "anthropic"), "anthropic").next_request == {"container": "container_1"}


@pytest.mark.parametrize("whole", [COMPACTION, {"type": "compaction", "content": None}])
def test_a_streamed_compaction_comes_back_as_a_whole_one_does(whole):
    begun = {**whole, "content": None}
    deltas = {name: whole[name] for name in ("content", "encrypted_content") if name in whole}
    begun.pop("encrypted_content", None)
    chunks = [
        BEGIN,
        start(0, begun),
        delta(0, "compaction_delta", **deltas),
        stop(0),
        start(1, TEXT),
        stop(1),
        *END,
    ]
    with client(events=chunks).beta.messages.stream(**REQUEST) as helper:
        helped = fed(helper)

    for events in (
        fed(chunks),
        helped,
        fed(client(events=chunks).beta.messages.create(**REQUEST, stream=True)),
    ):
        assert events[-1].faults == ()
        (message,) = ledger_of(events, "anthropic")
        assert encode([message], "anthropic").body["messages"][0]["content"] == [whole, TEXT]


EXTENDED = [
    {"type": "thinking", "thinking": "hm", "signature": "c2ln", "depth": 1},
    {"type": "redacted_thinking", "data": "AAEC", "depth": 1},
    {"type": "text", "text": "so", "depth": {"deep": [1]}},
    {"type": "tool_use", "id": "1", "name": "look", "input": {}, "toolset_name": "browser", "depth": 1},
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}, "depth": 1},
    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [], "depth": 1},
    {"type": "mcp_tool_use", "id": "m1", "name": "a", "server_name": "b", "input": {}},
    {
        "type": "mcp_tool_result",
        "tool_use_id": "m1",
        "is_error": False,
        "content": [{"type": "text", "text": "a"}],
    },
    {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": {"type": "refusal"}},
    {"type": "mcp_tool_listing", "mcp_server_name": "b", "tools": []},
]


def test_members_that_runfold_does_not_know_go_back_with_every_kind_of_block():
    for events in (
        AnthropicRecorder({}).response(response(EXTENDED)),
        AnthropicRecorder({}).response(client(whole=response(EXTENDED)).beta.messages.create(**REQUEST)),
        fed(stream(EXTENDED, 3)),
        fed(client(events=stream(EXTENDED, 3)).beta.messages.create(**REQUEST, stream=True)),
    ):
        assert events[-1].faults == ()
        (message,) = ledger_of(events, "anthropic")
        assert encode([message], "anthropic").body["messages"][0]["content"] == EXTENDED


def test_a_block_of_a_later_kind_grows_from_the_deltas_that_are_known():
    block = {"type": "connector_text", "text": "see there", "signature": "c2ln", "citations": [{"a": 1}]}
    chunks = [
        BEGIN,
        start(0, {"type": "connector_text", "text": ""}),
        delta(0, "text_delta", text="see "),
        delta(0, "text_delta", text="there"),
        delta(0, "citations_delta", citation={"a": 1}),
        delta(0, "signature_delta", signature="c2ln"),
        stop(0),
        *END,
    ]

    events = fed(chunks)

    assert [data.content for data in events if isinstance(data, ProviderPart)] == [block]


def test_parsed_output_of_the_helpers_is_not_sent_back():
    class Answer(BaseModel):
        at: int

    text = {"type": "text", "text": '{"at": 1}'}
    parsed = client(whole=response([text])).beta.messages.parse(**REQUEST, output_format=Answer)
    helped = {**response([{**text, "parsed_output": {"at": 1}}])}
    with client(events=stream([text], 4)).messages.stream(**REQUEST, output_format=Answer) as helper:
        streamed = fed(helper)
        final = helper.get_final_message()

    for events in (
        AnthropicRecorder({}).response(parsed),
        AnthropicRecorder({}).response(final),
        AnthropicRecorder({}).response(final.model_dump()),
        AnthropicRecorder({}).response(helped),
        streamed,
    ):
        assert events[-1].faults == ()
        assert events[-1].provider_data is None
        (message,) = ledger_of(events, "anthropic")
        assert encode([message], "anthropic").body["messages"][0]["content"] == [text]


THOUGHT = {"type": "thinking", "thinking": "let me see", "signature": ""}


@pytest.mark.parametrize("begun", [THOUGHT, {"type": "thinking", "thinking": "let me see"}])
def test_unsigned_thinking_goes_back_to_the_maker_that_signs_none(begun):
    whole = {**response([begun, TEXT]), "model": "deepseek-reasoner"}
    begin = {**BEGIN, "message": {**BEGIN["message"], "model": "deepseek-reasoner"}}
    for events in (
        AnthropicRecorder({}).response(whole),
        fed([begin, start(0, begun), stop(0), start(1, TEXT), stop(1), *END]),
    ):
        (message,) = ledger_of(events, "anthropic")
        made = message.model_copy(update={"maker": "deepseek"})

        assert encode([made], "anthropic").body["messages"][0]["content"] == [THOUGHT, TEXT]
        for options in ({"maker": "anthropic"}, {"model": "claude-opus-5"}):
            with pytest.raises(InexpressibleError, match="thinking"):
                encode([made], "anthropic", **options)
            body = encode([made], "anthropic", lossy="drop", **options).body
            assert body["messages"][0]["content"] == [TEXT]


def test_claude_gets_no_thinking_that_another_maker_signed():
    signed = {**THOUGHT, "signature": "5e1f"}
    events = AnthropicRecorder({}).response({**response([signed, TEXT]), "model": "MiniMax-M2"})
    (message,) = ledger_of(list(events), "anthropic")

    for options in ({}, {"model": "MiniMax-M2"}):
        encoded = encode([message], "anthropic", **options)
        assert encoded.body["messages"][0]["content"] == [signed, TEXT]
    with pytest.raises(InexpressibleError, match="signed"):
        encode([message], "anthropic", model="claude-opus-5")


def test_thinking_that_lost_its_signature_is_not_sent_to_claude():
    events = AnthropicRecorder({}).response({**response([THOUGHT, TEXT]), "model": "claude-opus-5"})

    (message,) = ledger_of(events, "anthropic")
    assert message.parts == (TextPart(text="I stop here."),)


def test_unsigned_thinking_that_breaks_off_is_in_the_log_alone():
    begin = {**BEGIN, "message": {**BEGIN["message"], "model": "kimi-k2"}}
    events = fed([begin, start(0, THOUGHT)])

    assert events[0] == Thinking(text="let me see", content_index=0)
    assert ledger_of(events, "anthropic") == []


REQUEST: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hello"}],
}


def fed(chunks: Any) -> list[Data]:
    recording = recorder("anthropic")
    return [data for chunk in chunks for data in recording.feed(chunk)] + recording.blocks.end()


PAGE = {
    "type": "page_location",
    "cited_text": "It rains.",
    "document_index": 0,
    "document_title": "a report",
    "start_page_number": 1,
    "end_page_number": 2,
}
FOUND = {
    "type": "web_search_result_location",
    "cited_text": "It snows.",
    "encrypted_index": "e",
    "title": "a page",
    "url": "https://example.com/a",
}
SEARCHED = {
    "type": "search_result_location",
    "cited_text": "It hails.",
    "search_result_index": 0,
    "source": "https://example.com/b",
    "title": None,
    "start_block_index": 0,
    "end_block_index": 1,
}


def test_citations_have_the_common_form_and_go_back_as_they_came():
    content = [{"type": "text", "text": "Bad weather.", "citations": [PAGE, FOUND, SEARCHED]}]

    for events in (
        AnthropicRecorder({}).response(response(content)),
        AnthropicRecorder({}).response(client(whole=response(content)).messages.create(**REQUEST)),
        fed(stream(content, 3)),
    ):
        (message,) = ledger_of(list(events), "anthropic")
        assert getattr(message.parts[0], "citations", None) == (
            Citation(title="a report", cited_text="It rains."),
            Citation(title="a page", cited_text="It snows.", url="https://example.com/a"),
            Citation(cited_text="It hails.", url="https://example.com/b"),
        )
        assert valid(message)["messages"][0]["content"] == content
