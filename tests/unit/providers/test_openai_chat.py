"""Chat Completions: ledgers that OpenAI's own types take as messages."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.openai_ledgers import PDF, PNG, ledgers, marked, message
from tests.provider_types import check

from runfold_projections.providers import openai_chat
from runfold_projections.providers.encoding import Encoded
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.messages import (
    DocumentPart,
    ImagePart,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)

Chat = dict[str, Any]


def encode(*messages, lossy="refuse") -> Encoded:
    encoded = openai_chat.encode(messages, {"lossy": lossy})
    check("openai-chat", encoded.body)
    return encoded


def chats(*messages, lossy="refuse") -> list[Chat]:
    return encode(*messages, lossy=lossy).body["messages"]


def call(tool_id="call_1", name="look", payload=None, **data) -> ToolUsePart:
    own = {"provider_data": {"openai-chat": data}} if data else {}
    return ToolUsePart(id=tool_id, name=name, input=payload or {}, **own)


def result(content: Any = "ok", tool_id="call_1", **fields) -> ToolResultPart:
    return ToolResultPart(tool_use_id=tool_id, content=content, **fields)


def function(tool_id="call_1", name="look", arguments="{}") -> Chat:
    return {"id": tool_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_whole_exchange_is_encoded_message_for_message():
    assert chats(
        message("system", "Be kind."),
        message("user", "Hi", "there"),
        message("assistant", "I look.", call(payload={"ü": 1})),
        message("user", result({"found": "ü"})),
        message("assistant", "Done."),
    ) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": "I look.", "tool_calls": [function(arguments='{"ü":1}')]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"found": "ü"}'},
        {"role": "assistant", "content": "Done."},
    ]


def test_texts_before_and_behind_calls_keep_their_order_among_themselves():
    (said,) = chats(message("assistant", "one", call(), "two", call("call_2")))

    assert [part["text"] for part in said["content"]] == ["one", "two"]
    assert [one["id"] for one in said["tool_calls"]] == ["call_1", "call_2"]


@pytest.mark.parametrize("provider", ["openai-chat", "openai-responses"])
def test_the_exact_text_of_arguments_goes_back_while_it_says_what_the_call_says(provider):
    data = {provider: {"arguments": '{"n":  1}'}}
    same = ToolUsePart(id="1", name="look", input={"n": 1}, provider_data=data)
    other = ToolUsePart(id="2", name="look", input={"n": 2}, provider_data=data)

    (said,) = chats(message("assistant", same, other))

    assert [one["function"]["arguments"] for one in said["tool_calls"]] == ['{"n":  1}', '{"n":2}']


def test_images_and_documents_are_parts_of_the_users_message():
    (said,) = chats(
        message(
            "user",
            ImagePart(media_type="image/png", data=PNG, provider_data={"openai-chat": {"detail": "low"}}),
            ImagePart(url="https://example.com/a.png"),
            DocumentPart(media_type="application/pdf", data=PDF, name="bill"),
            "What is it?",
        )
    )

    assert said["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "file", "file": {"filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
        {"type": "text", "text": "What is it?"},
    ]


def test_a_text_file_is_a_text_of_the_users_message():
    notes = DocumentPart(media_type="text/markdown", data="IyBIaQ==", name="notes.md")

    (said,) = chats(message("user", "Read this.", notes))

    assert [part["text"] for part in said["content"]] == ["Read this.", "notes.md:\n\n# Hi"]


@pytest.mark.parametrize(
    "part",
    [
        ThinkingPart(text="hm", signature="s", provider_data={"anthropic": {}}),
        OpaquePart(provider="gemini", content={"text": "x"}),
        OpaquePart(provider="openai-chat", content="no block"),
        ImagePart(media_type="image/png", data=PNG),
        result(),
    ],
)
def test_what_an_assistant_cannot_say_is_named_with_its_place(part):
    with pytest.raises(InexpressibleError) as error:
        encode(message("user", "Hi"), message("assistant", "x", part))

    assert (error.value.message_index, error.value.part_index) == (1, 1)


@pytest.mark.parametrize(
    "part",
    [
        ImagePart(url="s3://bucket/a.png"),
        ImagePart(media_type="image/tiff", data=PNG),
        DocumentPart(media_type="application/zip", data=PDF),
        DocumentPart(media_type="text/plain", data=PNG),
        DocumentPart(url="https://example.com/bill.pdf"),
    ],
)
def test_media_that_chat_completions_does_not_read_are_refused_or_listed_as_dropped(part):
    with pytest.raises(InexpressibleError):
        encode(message("user", "Hi", part))

    encoded = encode(message("user", "Hi", part), lossy="drop")

    assert encoded.body["messages"] == [{"role": "user", "content": "Hi"}]
    assert [(fault.message_index, fault.part_index) for fault in encoded.dropped] == [(0, 1)]


def test_media_of_results_follow_the_last_tool_message_in_a_message_of_the_user():
    picture, bill = (
        ImagePart(media_type="image/png", data=PNG),
        DocumentPart(media_type="application/pdf", data=PDF, name="bill.pdf"),
    )

    said, first, second, media, question = chats(
        message("assistant", call(), call("call_2", "files.read")),
        message("user", result("a chart", attachments=[picture]), result("", "call_2", attachments=[bill])),
        message("user", "What is it?"),
    )

    assert [one["id"] for one in said["tool_calls"]] == ["call_1", "call_2"]
    assert first == {"role": "tool", "tool_call_id": "call_1", "content": "a chart"}
    assert second == {"role": "tool", "tool_call_id": "call_2", "content": ""}
    assert media == {
        "role": "user",
        "content": [
            {"type": "text", "text": "The result of look (call_1) contains:"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            {"type": "text", "text": "The result of files_read (call_2) contains:"},
            {
                "type": "file",
                "file": {"filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
            },
        ],
    }
    assert question == {"role": "user", "content": "What is it?"}


def test_media_of_results_precede_the_users_words_in_the_same_message():
    attached = result("a chart", attachments=[ImagePart(media_type="image/png", data=PNG)])

    _, _, said = chats(message("assistant", call()), message("user", attached, "What is it?"))

    assert [part["type"] for part in said["content"]] == ["text", "image_url", "text"]
    assert said["content"][-1]["text"] == "What is it?"


def test_media_of_results_that_chat_completions_does_not_read_are_refused_and_the_text_is_kept():
    attached = result("a chart", attachments=[ImagePart(media_type="image/tiff", data=PNG)])

    encoded = encode(message("assistant", call()), message("user", attached), lossy="drop")

    assert [chat.get("content") for chat in encoded.body["messages"]] == [None, "a chart"]
    assert [(fault.message_index, fault.part_index) for fault in encoded.dropped] == [(1, 0)]


def test_a_result_behind_words_of_the_user_is_refused_because_nothing_is_reordered():
    with pytest.raises(InexpressibleError):
        encode(message("assistant", call()), message("user", "Hi", result()))


def test_ids_and_names_that_openai_refuses_are_mapped_and_lead_back():
    encoded = encode(
        message("assistant", call("x" * 80, "files.read"), call("x" * 81, "files/read"), call("", "")),
        message("user", result(tool_id="x" * 80), result(tool_id="x" * 81), result(tool_id="")),
    )
    said, *answers = encoded.body["messages"]

    ids = [one["id"] for one in said["tool_calls"]]
    assert ids == ["x" * 40, "x" * 38 + "-2", "call"] == [answer["tool_call_id"] for answer in answers]
    assert [encoded.tool_ids[one] for one in ids] == ["x" * 80, "x" * 81, ""]
    assert encoded.tool_names == {"files_read": "files.read", "files_read-2": "files/read", "tool": ""}


def test_an_id_may_come_again_in_a_later_exchange():
    exchange = (message("assistant", call("terminal:0")), message("user", result(tool_id="terminal:0")))

    assert [chat.get("tool_call_id") for chat in chats(*exchange, *exchange)] == [None, "terminal:0"] * 2


@given(ledgers())
def test_a_ledger_is_encoded_or_its_inexpressible_part_is_named(ledger):
    dropped = valid(encode(*ledger, lossy="drop"))
    losses = [fault for fault in dropped.dropped if fault.rule != "text-not-blank"]

    if not losses:
        assert encode(*ledger).body == dropped.body
        return
    with pytest.raises(InexpressibleError) as error:
        encode(*ledger)
    assert (error.value.message_index, error.value.part_index) == (
        losses[0].message_index,
        losses[0].part_index,
    )


@settings(max_examples=50)
@given(ledgers(), st.integers(0, 12))
def test_the_beginning_of_a_ledger_is_encoded_to_the_beginning_of_its_encoding(ledger, end):
    whole, beginning = chats(*ledger, lossy="drop"), chats(*ledger[:end], lossy="drop")

    assert whole[: len(beginning)] == beginning


@settings(max_examples=50)
@given(ledgers().map(marked))
def test_order_is_kept(ledger):
    said = chats(*ledger, lossy="drop")

    assert [text for chat in said for text in texts(chat)] == [
        part.text for one in ledger for part in one.parts if isinstance(part, TextPart)
    ]
    calls = [one["function"]["arguments"] for chat in said for one in chat.get("tool_calls", ())]
    assert [json.loads(arguments) for arguments in calls] == [
        part.input for one in ledger for part in one.parts if isinstance(part, ToolUsePart)
    ]
    assert [chat["content"] for chat in said if chat["role"] == "tool"] == [
        part.content for one in ledger for part in one.parts if isinstance(part, ToolResultPart)
    ]


def test_marks_of_the_prompt_cache_stand_on_instructions_texts_media_and_results():
    mark = {"mode": "explicit"}
    marks: Any = {"provider_data": {"openai-chat": {"prompt_cache_breakpoint": mark}}}

    system, asked, _, answer, said = chats(
        message("system", TextPart(text="Be kind.", **marks)),
        message("user", "See:", ImagePart(url="https://example.com/a.png", **marks)),
        message("assistant", call()),
        message("user", ToolResultPart(tool_use_id="call_1", content="ok", **marks)),
        message("assistant", TextPart(text="I see.", **marks)),
    )

    assert system["content"] == [
        {"type": "text", "text": "Be kind.", "prompt_cache_breakpoint": mark},
    ]
    assert [part.get("prompt_cache_breakpoint") for part in asked["content"]] == [None, mark]
    assert answer["content"] == [{"type": "text", "text": "ok", "prompt_cache_breakpoint": mark}]
    assert said["content"] == [{"type": "text", "text": "I see.", "prompt_cache_breakpoint": mark}]


def valid(encoded: Encoded) -> Encoded:
    """The rules that no type states: each result names a call of the assistant message before
    it.
    """
    called: list[str] = []
    for chat in encoded.body["messages"]:
        match chat["role"]:
            case "assistant":
                called = [one["id"] for one in chat.get("tool_calls", ())]
                assert all(0 < len(one) <= 40 for one in called)
                assert len(called) == len(set(called))
            case "tool":
                assert chat["tool_call_id"] == called.pop(0)
            case _:
                called = []
        assert "content" in chat
    return encoded


def texts(chat: Chat) -> list[str]:
    if chat["role"] == "tool" or not chat["content"]:
        return []
    content = chat["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    said = [part["text"] for part in parts if part["type"] == "text"]
    # The text file of `ledgers` begins as a PDF.
    return [text for text in said if not text.startswith(("The result of ", "%PDF"))]
