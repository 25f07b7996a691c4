"""Anthropic's Messages: the package's own types judge every body, and responses come back as the
parts that they were.
"""

import re
from base64 import b64encode
from typing import Any

import pytest
from tests.anthropic_messages import (
    BEGIN,
    END,
    assistant,
    check,
    client,
    delta,
    exchange,
    response,
    start,
    stop,
    stream,
    user,
    valid,
)
from tests.ledgers import PDF, PNG, ledger_of

from runfold_projections.providers.anthropic import AnthropicRecorder, encode, recognizes
from runfold_schemas.data import Data
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

REQUEST: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hello"}],
}
CITATION = {
    "type": "char_location",
    "cited_text": "a",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 1,
}
FOUND = {
    "type": "web_search_result",
    "url": "https://a",
    "title": "a",
    "encrypted_content": "e",
    "page_age": None,
}
CONTENT = [
    {"type": "thinking", "thinking": "let me see", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "AAEC"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]},
    {"type": "text", "text": "It says a", "citations": [CITATION]},
    {"type": "text", "text": "and more"},
    {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "look",
        "input": {"at": [1, "ö"]},
        "caller": {"type": "direct"},
    },
    {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}},
]
"""One of every kind of block."""


def test_a_conversation_becomes_the_body_of_a_request():
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
            ToolResultPart(tool_use_id="2", content="gone", is_error=True),
        ),
        user(TextPart(text="and now?")),
    )

    assert body == {
        "system": [{"type": "text", "text": "be kind"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                    {"type": "redacted_thinking", "data": "AAEC"},
                    {"type": "text", "text": "I look"},
                    {"type": "tool_use", "id": "1", "name": "look", "input": {"at": 1}},
                    {"type": "tool_use", "id": "2", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": '{"found": true}'},
                    {"type": "tool_result", "tool_use_id": "2", "content": "gone", "is_error": True},
                ],
            },
            {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
        ],
    }


@pytest.mark.parametrize(
    ("content", "told"), [("fine", "fine"), ([1], "[1]"), (None, "null"), (" \n", '" \\n"'), ("", None)]
)
def test_results_are_text_and_never_blank(content, told):
    body = valid(*exchange(ToolResultPart(tool_use_id="1", content=content)))

    assert body["messages"][1]["content"][0].get("content") == told


def test_attachments_follow_the_text_of_their_result():
    body = valid(
        *exchange(ToolResultPart(tool_use_id="1", content="see", attachments=(PNG, PDF))),
        *exchange(ToolResultPart(tool_use_id="1", content="", attachments=(PNG,))),
    )

    kinds = [[block["type"] for block in body["messages"][at]["content"][0]["content"]] for at in (1, 3)]
    assert kinds == [["text", "image", "document"], ["image"]]


def test_a_result_that_failed_is_marked_unless_it_has_media_which_the_api_refuses_then():
    failed = ToolResultPart(tool_use_id="1", content={"error": "gone"}, is_error=True, attachments=(PNG,))
    body = valid(*exchange(failed), *exchange(failed.model_copy(update={"attachments": ()})))

    results = [body["messages"][at]["content"][0] for at in (1, 3)]
    assert ["is_error" in result for result in results] == [False, True]
    assert "gone" in results[0]["content"][0]["text"]


def test_a_result_names_the_toolset_of_its_call():
    own = {"anthropic": {"toolset_name": "browser"}}
    call = assistant(ToolUsePart(id="1", name="click", input={}, provider_data=own))

    body = valid(call, user(ToolResultPart(tool_use_id="1", content="clicked")))

    assert [message["content"][0]["toolset_name"] for message in body["messages"]] == ["browser", "browser"]


def test_media_go_as_base64_by_https_or_as_plain_text():
    markdown = DocumentPart(
        media_type="text/markdown", data=b64encode("# Größe".encode()).decode(), name="a.md"
    )
    body = valid(
        user(
            PNG,
            ImagePart(url="https://example.com/a.png"),
            PDF,
            DocumentPart(url="https://example.com/a.pdf", provider_data={"anthropic": {"context": "a note"}}),
            markdown,
        )
    )

    assert body["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG.data}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": PDF.data},
            "title": "a_report.pdf",
        },
        {
            "type": "document",
            "source": {"type": "url", "url": "https://example.com/a.pdf"},
            "context": "a note",
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "# Größe"},
            "title": "a.md",
        },
    ]


def test_a_breakpoint_of_the_cache_is_handed_back_and_ids_cannot_be_overwritten():
    own = {"anthropic": {"cache_control": {"type": "ephemeral"}, "id": "another"}, "gemini": {"x": 1}}
    body = valid(assistant(ToolUsePart(id="a b", name="look.up", input={}, provider_data=own)))

    (block,) = body["messages"][0]["content"]
    assert block == {
        "cache_control": {"type": "ephemeral"},
        "type": "tool_use",
        "id": "a_b",
        "name": "look_up",
        "input": {},
    }


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (assistant(ThinkingPart(text="hm")), "without a signature"),
        (
            assistant(ThinkingPart(text="hm", signature="x", provider_data={"gemini": {"a": 1}})),
            "thinking of gemini",
        ),
        (assistant(ToolUsePart(id="1", name="look", input=[])), "not an object"),
        (assistant(OpaquePart(provider="bedrock", content={})), "bedrock"),
        (assistant(OpaquePart(provider="anthropic", content="text")), "anthropic"),
        (assistant(PNG), "cannot hold image"),
        (user(ThinkingPart(text="hm", signature="x")), "cannot hold thinking"),
        (user(ToolResultPart(tool_use_id="9", content="")), "answers no call"),
        (user(ImagePart(media_type="image/tiff", data="AAAA")), "image/tiff"),
        (user(ImagePart(media_type="image/png", data="")), "an empty image"),
        (user(ImagePart(url="s3://bucket/a.png")), "https only"),
        (user(DocumentPart(media_type="text/plain", url="https://example.com/a.txt")), "text as data"),
        (user(DocumentPart(media_type="text/plain", data="/w==")), "not UTF-8"),
        (user(DocumentPart(media_type="text/plain", data="IA==")), "without text"),
        (user(DocumentPart(media_type="application/zip", data="AAAA")), "zip"),
    ],
)
def test_what_it_cannot_say_is_refused_by_name_or_listed(message, why):
    messages = [assistant(TextPart(text="hello")), message]

    with pytest.raises(InexpressibleError, match=re.escape(why)) as refusal:
        encode(messages, {"lossy": "refuse"})
    encoded = encode(messages, {"lossy": "drop"})

    assert (refusal.value.message_index, refusal.value.part_index) == (1, 0)
    assert [(fault.message_index, fault.part_index) for fault in encoded.dropped] == [(1, 0)]
    check(encoded.body)


def test_results_behind_other_words_of_the_user_are_refused():
    result = ToolResultPart(tool_use_id="1", content="ok")

    for messages in (
        [*exchange(), user(TextPart(text="wait"), result)],
        [*exchange(), user(TextPart(text="wait")), user(result)],
    ):
        with pytest.raises(InexpressibleError, match="before all else"):
            encode(messages, {"lossy": "refuse"})


def test_blank_texts_are_left_out_and_listed():
    encoded = encode(
        [user(TextPart(text=" \n"), TextPart(text="a")), user(TextPart(text=""))], {"lossy": "refuse"}
    )

    assert encoded.body == {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}
    assert [fault.rule for fault in encoded.dropped] == ["text-not-blank", "text-not-blank"]


def test_every_kind_of_block_comes_back_as_it_came_from_json_and_from_the_package():
    events = stream(CONTENT, 3)
    with client(events=events).messages.stream(**REQUEST) as helper:
        helped = fed(helper)

    for said in (
        AnthropicRecorder({}).response(response(CONTENT)),
        AnthropicRecorder({}).response(client(whole=response(CONTENT)).messages.create(**REQUEST)),
        fed(events),
        fed(client(events=events).messages.create(**REQUEST, stream=True)),
        helped,
    ):
        (message,) = ledger_of(list(said), "anthropic")
        assert valid(message)["messages"][0]["content"] == CONTENT
        assert said[-2:] == [
            TokenUsage(
                model="claude",
                input_tokens=12,
                output_tokens=5,
                cache_read_tokens=3,
                cache_write_tokens=2,
                input_includes_cache=True,
            ),
            ResponseRecorded(model="claude", stop_reason="end_turn", response_id="msg_1"),
        ]


def test_its_id_is_known_as_soon_as_a_stream_begins():
    recorder = AnthropicRecorder({})

    recorder.feed(BEGIN)

    assert recorder.blocks.response_id == "msg_1"


def test_blocks_of_an_unknown_kind_come_back_with_a_fault():
    block = {"type": "hologram", "depth": 3}
    said = AnthropicRecorder({}).response(response([block]))

    (message,) = ledger_of(list(said), "anthropic")
    assert encode([message], {"lossy": "refuse"}).body["messages"][0]["content"] == [block]
    assert "hologram" in said[-1].faults[0]


def test_what_is_no_block_is_in_the_log_and_in_no_ledger():
    said = AnthropicRecorder({}).response(response(["text", {"text": "a"}]))

    assert ledger_of(list(said), "anthropic") == []
    assert said[:2] == [
        ProviderPart(content="text", content_index=0, finished=False),
        ProviderPart(content={"text": "a"}, content_index=1, finished=False),
    ]


def test_unknown_events_and_deltas_of_a_stream_are_in_the_log_with_a_fault():
    later = {"type": "message_paused"}
    said = fed([BEGIN, later, start(0, {"type": "text", "text": ""}), delta(0, "depth_delta", depth=1), *END])

    assert [data.content for data in said if isinstance(data, ProviderPart)] == [
        later,
        {"type": "depth_delta", "depth": 1},
    ]
    assert len(said[-1].faults) == 2


def test_a_stream_that_breaks_off_leaves_what_arrived_and_a_whole_ledger():
    chunks = stream(CONTENT, 3)
    for length in range(1, len(chunks)):
        for rest in ([], [{"type": "error", "error": {"type": "overloaded_error", "message": "lost"}}]):
            said = fed([*chunks[:length], *rest])

            assert said[-1].finished is False
            assert any("lost" in fault for fault in said[-1].faults) == bool(rest)
            for message in ledger_of(said, "anthropic"):
                check(encode([message], {"lossy": "refuse"}).body)


def test_a_text_that_breaks_off_is_kept():
    said = fed([BEGIN, start(0, {"type": "text", "text": ""}), delta(0, "text_delta", text="Once")])

    assert said[0] == AssistantMessage(message="Once", content_index=0)


def test_broken_arguments_missing_ids_and_repeated_ones_are_faults():
    said = fed(
        [
            BEGIN,
            start(0, {"type": "tool_use", "name": "look", "input": {}}),
            delta(0, "input_json_delta", partial_json='{"at": '),
            stop(0),
            start(1, {"type": "tool_use", "id": "1", "name": "look", "input": {}}),
            stop(1),
            start(2, {"type": "tool_use", "id": "1", "name": "look", "input": {"whole": 1}}),
            stop(2),
            start(3, {"type": "tool_use", "id": "2", "name": "look", "input": {"begun": 1}}),
            delta(3, "input_json_delta", partial_json='{"and": "replaced"}'),
            stop(3),
            *END,
        ]
    )

    assert [data.payload for data in said[:4]] == ['{"at": ', {}, {"whole": 1}, {"and": "replaced"}]
    assert ["not JSON" in said[-1].faults[0], "no id" in said[-1].faults[1]] == [True, True]
    assert "two calls" in said[-1].faults[2]


def test_its_messages_and_the_beginnings_of_its_streams_are_recognized():
    whole = client(whole=response([])).messages.create(**REQUEST)
    first = next(iter(client(events=stream([], 1)).messages.create(**REQUEST, stream=True)))

    assert all(map(recognizes, [response([]), BEGIN, whole, first]))
    assert not any(
        map(recognizes, [None, "text", [], {}, {"type": ["message"]}, {"type": "response.created"}])
    )


def fed(chunks: Any) -> list[Data]:
    recorder = AnthropicRecorder({})
    return [data for chunk in chunks for data in recorder.feed(chunk)] + recorder.blocks.end()
