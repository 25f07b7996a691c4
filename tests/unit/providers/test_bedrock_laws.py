"""Bedrock, for any ledger and any response: what always holds."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bedrock import blocks, check, gist, gist_of_block, response, response_parts, stream, wire
from tests.ledgers import kept, ledger_of, ledgers, wild_json, wild_ledgers

from runfold_projections.providers.bedrock import BedrockRecorder, encode, recognizes
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
        assert (refusal.value.message_index, refusal.value.part_index) == (
            first.message_index,
            first.part_index,
        )
    else:
        assert encode(messages, {"lossy": "refuse"}) == encoded
    check(encoded.body)


@given(ledgers)
@settings(max_examples=50)
def test_order_is_kept_and_only_what_is_listed_is_missing(messages: list[Message]):
    encoded = encode(messages, {"lossy": "drop"})

    said = [("system", block) for block in encoded.body.get("system", [])]
    said += [(one["role"], block) for one in encoded.body["messages"] for block in one["content"]]
    assert [(role, gist_of_block(block, encoded)) for role, block in said] == [
        (role, gist(part)) for role, part in kept(messages, encoded)
    ]


@given(ledgers, st.data())
@settings(max_examples=40)
def test_a_longer_ledger_begins_with_the_encoding_of_a_shorter_one(messages: list[Message], data):
    shorter = encode(messages[: data.draw(st.integers(0, len(messages)))], {"lossy": "drop"}).body
    longer = encode(messages, {"lossy": "drop"}).body

    assert blocks(longer)[: len(blocks(shorter))] == blocks(shorter)


@given(ledgers)
@settings(max_examples=40)
def test_what_was_encoded_is_recorded_as_the_same_parts(messages: list[Message]):
    encoded = encode(messages, {"lossy": "drop"})
    parts = [part for role, part in kept(messages, encoded) if role == "assistant"]
    answers = [one["content"] for one in encoded.body["messages"] if one["role"] == "assistant"]

    recorded = [part for answer in answers for part in response_parts(answer, tool_names=encoded.tool_names)]

    assert [gist(part, encoded.tool_ids) for part in recorded] == [gist(part) for part in parts]


@given(ledgers, st.integers(1, 9), st.booleans())
@settings(max_examples=40)
def test_a_stream_is_recorded_as_the_whole_response_is(messages: list[Message], size: int, as_json: bool):
    for one in encode(messages, {"lossy": "drop"}).body["messages"]:
        if one["role"] != "assistant":
            continue
        chunks = stream(one["content"], size)
        recorder = BedrockRecorder({})
        said = [data for chunk in (wire(chunks) if as_json else chunks) for data in recorder.feed(chunk)]
        said += recorder.blocks.end()
        whole = BedrockRecorder({}).response(response(one["content"]))

        assert ledger_of(said, "bedrock") == ledger_of(list(whole), "bedrock")
        assert said[-2:] == whole[-2:]


VOCABULARY = (
    "output", "message", "content", "text", "toolUse", "toolUseId", "name", "input", "type", "toolResult",
    "image", "source", "bytes", "reasoningContent", "reasoningText", "signature", "redactedContent",
    "citationsContent", "citations", "citation", "usage", "inputTokens", "stopReason", "contentBlockIndex",
    "delta", "start", "trace", "promptRouter", "invokedModelId", "ResponseMetadata", "RequestId",
    "SDK_UNKNOWN_MEMBER",
)  # fmt: skip


EVENTS = (
    "messageStart",
    "contentBlockStart",
    "contentBlockDelta",
    "contentBlockStop",
    "messageStop",
    "metadata",
)


wild = wild_json(*VOCABULARY)


wild_places = st.sampled_from([0, 0, 1]) | wild


wild_starts = st.dictionaries(st.sampled_from(["toolUse", "toolResult", "image"]), wild, max_size=2) | wild


wild_events = st.builds(
    lambda name, index, said: {name: {"contentBlockIndex": index, "start": said, "delta": said}},
    st.sampled_from(EVENTS),
    wild_places,
    wild_starts | st.dictionaries(st.sampled_from(VOCABULARY), wild, max_size=2),
)


@given(st.lists(wild, max_size=4), wild)
@settings(max_examples=80)
def test_no_response_raises_and_what_is_recorded_can_be_published(content: list[Any], other: Any):
    for whole in (response(content), response(other), {**response(content), "usage": other}, other):
        recognizes(whole)
        ledger_of(list(BedrockRecorder({}).response(whole)), "bedrock")


@given(st.lists(wild_events | wild, max_size=8), st.booleans())
@settings(max_examples=100)
def test_no_stream_raises_and_what_is_recorded_can_be_published(chunks: list[Any], finished: bool):
    recorder = BedrockRecorder({})
    said = []
    for chunk in chunks:
        recognizes(chunk)
        said += recorder.feed(chunk)
        said += recorder.blocks.partial()

    ledger_of(said + recorder.blocks.end(finished=finished), "bedrock")
