"""Anthropic's Messages, for any ledger and any response: what always holds."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.anthropic_messages import (
    blocks,
    check,
    gist,
    gist_of_block,
    response,
    response_parts,
    stream,
)
from tests.ledgers import kept, ledger_of, ledgers, wild_json, wild_ledgers

from runfold_projections.providers.anthropic import AnthropicRecorder, encode, recognizes
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.messages import Message


@given(ledgers | wild_ledgers)
@settings(max_examples=80)
def test_any_ledger_is_a_valid_body_or_refused_by_message_and_part(messages: list[Message]):
    encoded = encode(messages, {"lossy": "drop"})
    inexpressible = [fault for fault in encoded.dropped if fault.rule != "text-not-blank"]

    if inexpressible:
        with pytest.raises(InexpressibleError) as refusal:
            encode(messages, {"lossy": "refuse"})
        first = inexpressible[0]
        assert refusal.value.message_index == first.message_index
        assert refusal.value.part_index == first.part_index
    else:
        assert encode(messages, {"lossy": "refuse"}) == encoded
    check(encoded.body)


@given(ledgers)
@settings(max_examples=50)
def test_order_is_kept_and_only_what_is_listed_is_missing(messages: list[Message]):
    encoded = encode(messages, {"lossy": "drop"})

    said = [("system", block) for block in encoded.body.get("system", [])] + blocks(encoded.body)
    assert [(role, gist_of_block(block, encoded)) for role, block in said] == [
        (role, gist(part)) for role, part in kept(messages, encoded)
    ]


@given(ledgers, st.data())
@settings(max_examples=40)
def test_a_longer_ledger_begins_with_the_encoding_of_a_shorter_one(messages: list[Message], data):
    shorter = encode(messages[: data.draw(st.integers(0, len(messages)))], {"lossy": "drop"}).body["messages"]
    longer = encode(messages, {"lossy": "drop"}).body["messages"]

    assert longer[: len(shorter)] == shorter


@given(ledgers)
@settings(max_examples=40)
def test_what_was_encoded_is_recorded_as_the_same_parts(messages: list[Message]):
    encoded = encode(messages, {"lossy": "drop"})
    parts = [part for role, part in kept(messages, encoded) if role == "assistant"]

    recorded = [
        part
        for answer in encoded.body["messages"]
        if answer["role"] == "assistant"
        for part in response_parts(answer["content"], tool_names=encoded.tool_names)
    ]

    assert [gist(part, encoded.tool_ids) for part in recorded] == [gist(part) for part in parts]


@given(ledgers, st.integers(1, 9))
@settings(max_examples=40)
def test_a_stream_is_recorded_as_the_whole_response_is(messages: list[Message], size: int):
    for one in encode(messages, {"lossy": "drop"}).body["messages"]:
        if one["role"] != "assistant":
            continue
        recorder = AnthropicRecorder({})
        said = [data for chunk in stream(one["content"], size) for data in recorder.feed(chunk)]
        said += recorder.blocks.end()
        whole = AnthropicRecorder({}).response(response(one["content"]))

        assert ledger_of(said, "anthropic") == ledger_of(list(whole), "anthropic")
        assert said[-2:] == whole[-2:]


KINDS = ("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "compaction", "hologram")
DELTAS = (
    "text_delta",
    "thinking_delta",
    "signature_delta",
    "input_json_delta",
    "citations_delta",
    "compaction_delta",
    "depth_delta",
)
EVENTS = (
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "error", "ping", "text", "index",
)  # fmt: skip
VOCABULARY = (
    "type", "text", "thinking", "signature", "data", "id", "name", "input", "citations", "citation", "key",
    "partial_json", "self", "usage", "input_tokens", "output_tokens", "stop_reason", "model", "message",
    "delta", "redacted", "tool_id", "content_block", "container", "encrypted_content", *KINDS,
)  # fmt: skip
wild = wild_json(*VOCABULARY)
wild_blocks = st.builds(
    lambda kind, said: {**said, "type": kind},
    st.sampled_from([*KINDS, *DELTAS]),
    st.dictionaries(st.sampled_from(VOCABULARY), wild, max_size=4),
)
wild_events = st.builds(
    lambda kind, index, said: {
        "type": kind,
        "index": index,
        "content_block": said,
        "delta": said,
        "message": said,
    },
    st.sampled_from(EVENTS),
    st.sampled_from([0, 0, 1]) | wild,
    wild_blocks | wild,
)


@given(st.lists(wild_blocks | wild, max_size=4), wild)
@settings(max_examples=80)
def test_no_response_raises_and_what_is_recorded_can_be_published(content: list[Any], other: Any):
    for whole in (
        response(content),
        response(other),
        {**response(content), "usage": other, "id": other},
        other,
    ):
        recognizes(whole)
        ledger_of(list(AnthropicRecorder({}).response(whole)), "anthropic")


@given(st.lists(wild_events | wild, max_size=8), st.booleans())
@settings(max_examples=100)
def test_no_stream_raises_and_what_is_recorded_can_be_published(chunks: list[Any], finished: bool):
    recorder = AnthropicRecorder({})
    said = []
    for chunk in chunks:
        recognizes(chunk)
        said += recorder.feed(chunk)
        said += recorder.blocks.partial()

    ledger_of(said + recorder.blocks.end(finished=finished), "anthropic")
