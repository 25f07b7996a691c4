"""Bedrock: botocore's service model judges every body, and responses come back as the parts that
they were.
"""

import re

import pytest
from tests.bedrock import (
    CONTEXT,
    assistant,
    call,
    check,
    delta,
    end,
    exchange,
    response,
    start,
    stop,
    stream,
    user,
    valid,
)
from tests.ledgers import PDF, PNG, ledger_of
from tests.media import png

from runfold_projections.providers.bedrock import BedrockRecorder, encode, recognizes
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.events import (
    AssistantMessage,
    ProviderPart,
    ResponseRecorded,
)
from runfold_schemas.messages import (
    DocumentPart,
    ImagePart,
    Message,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)
from runfold_schemas.usage import TokenUsage


def test_a_conversation_becomes_the_arguments_of_converse():
    body = valid(
        Message(role="system", parts=(TextPart(text="be kind"),)),
        user(TextPart(text="hello")),
        assistant(
            ThinkingPart(text="hm", signature="c2ln"),
            ThinkingPart(redacted="AAEC"),
            TextPart(text="I look"),
            ToolUsePart(id="1", name="look", input={"at": 1}),
            ToolUsePart(id="2", name="look", input={}),
        ),
        user(
            ToolResultPart(tool_use_id="1", content={"found": True}),
            ToolResultPart(tool_use_id="2", content={"error": "gone"}, is_error=True),
        ),
    )

    assert body == {
        "system": [{"text": "be kind"}],
        "messages": [
            {"role": "user", "content": [{"text": "hello"}]},
            {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}},
                    {"reasoningContent": {"redactedContent": b"\x00\x01\x02"}},
                    {"text": "I look"},
                    {"toolUse": {"toolUseId": "1", "name": "look", "input": {"at": 1}}},
                    {"toolUse": {"toolUseId": "2", "name": "look", "input": {}}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "1", "content": [{"json": {"found": True}}]}},
                    {
                        "toolResult": {
                            "toolUseId": "2",
                            "content": [{"json": {"error": "gone"}}],
                            "status": "error",
                        }
                    },
                ],
            },
        ],
    }


@pytest.mark.parametrize(
    ("content", "block"),
    [
        ("fine", {"text": "fine"}),
        ({}, {"json": {}}),
        (["a", 1], {"text": '["a", 1]'}),
        (0, {"text": "0"}),
        (None, {"text": "null"}),
        ("", {"text": '""'}),
        (" \n", {"text": '" \\n"'}),
    ],
)
def test_only_objects_are_json_and_no_result_is_blank(content, block):
    body = valid(*exchange(ToolResultPart(tool_use_id="1", content=content)))

    assert body["messages"][1]["content"][0]["toolResult"]["content"] == [block]


def test_roles_alternate_by_joining_what_stands_together():
    body = valid(
        *exchange(ToolResultPart(tool_use_id="1", content="ok")),
        user(TextPart(text="and now?")),
        user(TextPart(text="well?")),
    )

    assert [message["role"] for message in body["messages"]] == ["assistant", "user"]
    assert [next(iter(block)) for block in body["messages"][1]["content"]] == ["toolResult", "text", "text"]


def test_media_go_as_bytes_or_from_s3_and_documents_have_legal_names_of_their_own():
    body = valid(
        user(
            PNG,
            ImagePart(url="s3://bucket/picture.JPG"),
            PDF,
            PDF,
            DocumentPart(
                media_type="text/plain", data="aGk=", name="Größe   & [1] (a)", provider_data=CONTEXT
            ),
            DocumentPart(url="s3://bucket/table.csv"),
            TextPart(text="compare"),
        )
    )

    content = body["messages"][0]["content"]
    assert content[:2] == [
        {"image": {"format": "png", "source": {"bytes": png()}}},
        {"image": {"format": "jpeg", "source": {"s3Location": {"uri": "s3://bucket/picture.JPG"}}}},
    ]
    documents = [block["document"] for block in content[2:6]]
    assert [document["name"] for document in documents] == [
        "a-report-pdf",
        "a-report-pdf-2",
        "Gr--e - [1] (a)",
        "document",
    ]
    assert [document["format"] for document in documents] == ["pdf", "pdf", "txt", "csv"]
    assert documents[2]["context"] == "a note"


def test_a_result_that_failed_is_marked_unless_it_has_media():
    failed = ToolResultPart(tool_use_id="1", content={"error": "gone"}, is_error=True, attachments=(PNG,))
    body = valid(*exchange(failed), *exchange(failed.model_copy(update={"attachments": ()})))

    results = [body["messages"][at]["content"][0]["toolResult"] for at in (1, 3)]
    assert ["status" in result for result in results] == [False, True]


def test_attachments_follow_the_text_of_their_result():
    body = valid(
        *exchange(ToolResultPart(tool_use_id="1", content="see", attachments=(PNG, PDF))),
    )
    (result,) = body["messages"][1]["content"]
    assert [next(iter(block)) for block in result["toolResult"]["content"]] == ["text", "image", "document"]

    body = valid(*exchange(ToolResultPart(tool_use_id="1", content="", attachments=(PNG,))))
    (result,) = body["messages"][1]["content"]
    assert [next(iter(block)) for block in result["toolResult"]["content"]] == ["image"]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (lambda: assistant(ThinkingPart(text="hm")), "without a signature"),
        (
            lambda: assistant(ThinkingPart(text="hm", signature="x", provider_data={"gemini": {"a": 1}})),
            "gemini",
        ),
        (lambda: assistant(ToolUsePart(id="1", name="look", input=[])), "not an object"),
        (lambda: assistant(OpaquePart(provider="anthropic", content={})), "anthropic"),
        (lambda: assistant(PNG), "cannot hold image"),
        (lambda: user(ToolResultPart(tool_use_id="9", content="")), "answers no call"),
        (lambda: user(PDF), "needs a text"),
        (lambda: user(ImagePart(media_type="image/tiff", data="AAAA")), "image/tiff"),
        (lambda: user(ImagePart(media_type="image/png", data="")), "empty"),
        (lambda: user(ImagePart(url="https://example.com/a.png")), "S3 only"),
        (lambda: user(ImagePart(url="s3://bucket/a")), "png, jpeg"),
        (lambda: user(TextPart(text="a"), DocumentPart(media_type="application/zip", data="AAAA")), "zip"),
    ],
)
def test_what_it_cannot_say_is_refused_by_name_or_listed(message, why):
    messages = [assistant(TextPart(text="hello")), message()]

    with pytest.raises(InexpressibleError, match=re.escape(why)) as refusal:
        encode(messages, {"lossy": "refuse"})
    encoded = encode(messages, {"lossy": "drop"})

    assert refusal.value.message_index == 1
    assert refusal.value.part_index == len(messages[1].parts) - 1
    assert [fault.message_index for fault in encoded.dropped] == [1]
    check(encoded.body)


def test_a_system_message_within_the_conversation_is_said_by_the_user():
    encoded = encode(
        [user(TextPart(text="hi")), Message(role="system", parts=(TextPart(text="be brief"),))], {}
    )

    check(encoded.body)
    assert encoded.body["messages"] == [
        {"role": "user", "content": [{"text": "hi"}, {"text": "[Instructions] be brief"}]}
    ]


def test_results_behind_other_words_of_the_user_are_refused():
    messages = [*exchange(), user(TextPart(text="wait"), ToolResultPart(tool_use_id="1", content="ok"))]

    with pytest.raises(InexpressibleError, match="before all else"):
        encode(messages, {"lossy": "refuse"})


def test_blank_texts_are_left_out_and_listed():
    encoded = encode([user(TextPart(text=" \n"), TextPart(text="a"))], {"lossy": "refuse"})

    assert encoded.body == {"messages": [{"role": "user", "content": [{"text": "a"}]}]}
    assert [fault.rule for fault in encoded.dropped] == ["text-not-blank"]


def test_a_thousand_calls_with_one_id_get_ids_of_their_own_quickly():
    encoded = encode(exchange(ToolResultPart(tool_use_id="1", content="ok")) * 1000, {"lossy": "refuse"})

    check(encoded.body)
    assert len(encoded.tool_ids) == 999


def test_usage_stop_reason_model_and_id_go_along():
    trace = {"promptRouter": {"invokedModelId": "arn:model"}}
    said = BedrockRecorder({}).response(
        {**response([{"text": "a"}]), "trace": trace, "ResponseMetadata": {"RequestId": "request-1"}}
    )

    assert said == [
        AssistantMessage(message="a", content_index=0),
        TokenUsage(
            model="arn:model",
            input_tokens=10,
            output_tokens=5,
            cache_read_tokens=3,
            input_includes_cache=True,
        ),
        ResponseRecorded(
            model="arn:model",
            stop_reason="end_turn",
            response_id="request-1",
            provider_data={
                "bedrock": {
                    "metrics": {"latencyMs": 1},
                    "trace": {"promptRouter": {"invokedModelId": "arn:model"}},
                }
            },
        ),
    ]


def test_citations_come_back_with_their_text_streamed_or_not():
    citation = {"title": "a", "location": {"documentPage": {"documentIndex": 0, "start": 1, "end": 2}}}
    block = {"citationsContent": {"content": [{"text": "said"}], "citations": [citation]}}
    chunks = [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "sa"}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"citation": citation}}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "id"}}},
        *end(0),
    ]
    recorder = BedrockRecorder({})
    streamed = [data for chunk in chunks for data in recorder.feed(chunk)] + recorder.blocks.end()

    for said in (streamed, BedrockRecorder({}).response(response([block]))):
        (message,) = ledger_of(list(said), "bedrock")
        assert valid(message)["messages"][0]["content"] == [block]


def test_blocks_that_have_no_word_here_come_back_as_they_came_bytes_and_all():
    search = {
        "toolUse": {
            "toolUseId": "s1",
            "name": "grounding",
            "input": {"bytes": "AAAA"},
            "type": "server_tool_use",
        }
    }
    found = {"toolResult": {"toolUseId": "s1", "content": [{"json": {"bytes": "AAAA"}}, {"text": "one two"}]}}
    image = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}
    chunks = [
        {"messageStart": {"role": "assistant"}},
        start(0, {"toolUse": {"toolUseId": "s1", "name": "grounding", "type": "server_tool_use"}}),
        delta(0, {"toolUse": {"input": '{"bytes":'}}),
        delta(0, {"toolUse": {"input": '"AAAA"}'}}),
        stop(0),
        start(1, {"toolResult": {"toolUseId": "s1"}}),
        delta(1, {"toolResult": [{"json": {"bytes": "AAAA"}}, {"text": "one"}]}),
        delta(1, {"toolResult": [{"text": " two"}]}),
        stop(1),
        start(2, {"image": {"format": "png"}}),
        delta(2, {"image": {"source": {"bytes": b"\x89P"}}}),
        delta(2, {"image": {"source": {"bytes": b"NG"}}}),
        *end(2),
    ]
    recorder = BedrockRecorder({})
    streamed = [data for chunk in chunks for data in recorder.feed(chunk)] + recorder.blocks.end()

    for said in (streamed, BedrockRecorder({}).response(response([search, found, image]))):
        (message,) = ledger_of(list(said), "bedrock")
        assert said[-1].faults == ()
        assert valid(message)["messages"][0]["content"] == [search, found, image]


def test_what_boto3_is_too_old_for_is_in_the_log_and_in_no_ledger():
    lost = {"SDK_UNKNOWN_MEMBER": {"name": "hologram"}}
    said = BedrockRecorder({}).response(response([lost, {"text": "a"}]))

    (message,) = ledger_of(list(said), "bedrock")
    assert [part.type for part in message.parts] == ["text"]
    assert said[0] == ProviderPart(content=lost, finished=False)
    assert "unknown" in said[-1].faults[0]


def test_a_stream_that_breaks_off_leaves_what_arrived_and_a_whole_ledger():
    chunks = stream([{"text": "I look"}, *call('{"at": 1}', "1")], 3)
    for length in range(1, len(chunks) - 2):
        recorder = BedrockRecorder({})
        said = [data for chunk in chunks[:length] for data in recorder.feed(chunk)]
        said += recorder.feed({"modelStreamErrorException": {"message": "lost"}})
        said += recorder.blocks.end()

        assert said[-1].finished is False
        assert any("lost" in fault for fault in said[-1].faults)
        for message in ledger_of(said, "bedrock"):
            check(encode([message], {"lossy": "refuse"}).body)


def test_broken_arguments_missing_ids_and_repeated_ones_are_faults():
    chunks = [
        {"messageStart": {"role": "assistant"}},
        start(0, {"toolUse": {"name": "look"}}),
        delta(0, {"toolUse": {"input": '{"at": '}}),
        stop(0),
        start(1, {"toolUse": {"toolUseId": "1", "name": "look"}}),
        stop(1),
        start(2, {"toolUse": {"toolUseId": "1", "name": "look"}}),
        *end(2),
    ]
    recorder = BedrockRecorder({})
    said = [data for chunk in chunks for data in recorder.feed(chunk)] + recorder.blocks.end()

    assert [data.payload for data in said[:3]] == ['{"at": ', {}, {}]
    assert ["not JSON" in said[-1].faults[0], "no id" in said[-1].faults[1]] == [True, True]
    assert "two calls" in said[-1].faults[2]


def test_its_responses_and_the_beginnings_of_its_streams_are_recognized():
    assert recognizes(response([]))
    assert all(map(recognizes, stream([{"text": "a"}], 1)))
    assert not any(map(recognizes, [None, "text", [], {}, {"output": []}, {"type": "message_start"}]))
