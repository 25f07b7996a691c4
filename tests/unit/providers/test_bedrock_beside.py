"""Bedrock's Converse: what stands beside the content, blocks with more members than today's, and
citations.
"""

from typing import Any

from tests.bedrock import RECORDED, delta, response, start, stop, valid
from tests.ledgers import ledger_of

from runfold_projections.providers import encode, recorder
from runfold_projections.providers.bedrock import BedrockRecorder
from runfold_schemas.data import Data
from runfold_schemas.events import ResponseRecorded
from runfold_schemas.messages import Citation

TRACE = {"guardrail": {"actionReason": "blocked"}, "promptRouter": {"invokedModelId": "arn:model"}}
FIELDS = {"stop_sequence": "END"}
SOURCES = [
    {
        "title": "a report",
        "source": "file.pdf",
        "sourceContent": [{"text": "It "}, {"text": "rains."}],
        "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}},
    },
    {"title": "a page", "location": {"web": {"url": "https://example.com/a", "domain": "example.com"}}},
]
COMMON = (
    Citation(title="a report", cited_text="It rains."),
    Citation(title="a page", url="https://example.com/a"),
)


def test_what_stands_beside_the_content_is_kept_from_a_whole_response_and_from_a_stream():
    beside = {
        "metrics": {"latencyMs": 1},
        "trace": TRACE,
        "performanceConfig": {"latency": "optimized"},
        "serviceTier": {"type": "flex"},
    }
    usage = {"inputTokens": 7, "outputTokens": 5, "totalTokens": 12}
    whole = {**response([{"text": "a"}]), **beside, "additionalModelResponseFields": FIELDS, "usage": usage}
    chunks = [
        {"messageStart": {"role": "assistant"}},
        delta(0, {"text": "a"}),
        stop(0),
        {"messageStop": {"stopReason": "end_turn", "additionalModelResponseFields": FIELDS}},
        {"metadata": {"usage": usage, **beside}},
    ]

    for events in (BedrockRecorder({}).response(whole), fed(chunks)):
        assert events[-1] == ResponseRecorded(
            model="arn:model",
            stop_reason="end_turn",
            provider_data={"bedrock": {**beside, "additionalModelResponseFields": FIELDS}},
        )


def test_members_that_runfold_does_not_know_go_back_with_every_kind_of_block():
    content = [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln", "depth": 1}}},
        {"text": "so", "depth": 1},
        {"toolUse": {"toolUseId": "1", "name": "look", "input": {}, "depth": 1}},
        {"citationsContent": {"content": [{"text": "a"}, {"text": "b"}], "citations": SOURCES}},
    ]

    (message,) = ledger_of(list(BedrockRecorder({}).response(response(content))), "bedrock")

    assert encode([message], "bedrock").body["messages"][0]["content"] == content


def test_a_call_that_is_streamed_keeps_its_members():
    chunks = [
        {"messageStart": {"role": "assistant"}},
        start(0, {"toolUse": {"toolUseId": "1", "name": "look", "depth": 1}}),
        delta(0, {"toolUse": {"input": "{}"}}),
        stop(0),
        {"messageStop": {"stopReason": "tool_use"}},
    ]

    (message,) = ledger_of(fed(chunks), "bedrock")

    call = {"toolUseId": "1", "name": "look", "input": {}, "depth": 1}
    assert encode([message], "bedrock").body["messages"][0]["content"] == [{"toolUse": call}]


def test_members_that_are_null_change_nothing():
    content = [{"text": "a", "toolUse": None, "image": None}]

    events = BedrockRecorder({}).response(response(content))

    assert events[-1] == RECORDED
    (message,) = ledger_of(list(events), "bedrock")
    assert valid(message)["messages"][0]["content"] == [{"text": "a"}]


def test_citations_have_the_common_form_and_go_back_as_they_came():
    block = {"citationsContent": {"content": [{"text": "It rains."}], "citations": SOURCES}}
    chunks = [
        {"messageStart": {"role": "assistant"}},
        delta(0, {"text": "It "}),
        *(delta(0, {"citation": source}) for source in SOURCES),
        delta(0, {"text": "rains."}),
        stop(0),
        {"messageStop": {"stopReason": "end_turn"}},
    ]

    for events in (list(BedrockRecorder({}).response(response([block]))), fed(chunks)):
        (message,) = ledger_of(events, "bedrock")
        assert getattr(message.parts[0], "citations", None) == COMMON
        assert valid(message)["messages"][0]["content"] == [block]


def fed(chunks: Any) -> list[Data]:
    recording = recorder("bedrock")
    return [data for chunk in chunks for data in recording.feed(chunk)] + recording.blocks.end()
