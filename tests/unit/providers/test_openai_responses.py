"""The Responses API: ledgers that OpenAI's own types take as input items."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.openai_ledgers import JPEG, PDF, PNG, ledgers, marked, message
from tests.provider_types import check

from runfold_projections.providers import openai_responses, validate
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

Item = dict[str, Any]


def encode(*messages, lossy="refuse") -> Encoded:
    encoded = openai_responses.encode(messages, {"lossy": lossy})
    check("openai-responses", encoded.body)
    return encoded


def items(*messages, lossy="refuse") -> list[Item]:
    return encode(*messages, lossy=lossy).body["input"]


def call(tool_id="call_1", name="look", payload=None, **data) -> ToolUsePart:
    return ToolUsePart(id=tool_id, name=name, input=payload or {}, **own(**data))


def result(content: Any = "ok", tool_id="call_1", **fields) -> ToolResultPart:
    return ToolResultPart(tool_use_id=tool_id, content=content, **fields)


def reasoning(item_id="rs_1") -> ThinkingPart:
    return ThinkingPart(text="hm", **own(item={"id": item_id, "encrypted_content": "x"}))


def own(**data: Any) -> dict[str, Any]:
    return {"provider_data": {"openai-responses": data}} if data else {}


def test_a_whole_exchange_is_encoded_item_for_item():
    assert items(
        message("system", "Be kind."),
        message("user", "Hi"),
        message("assistant", "I look.", call(payload={"ü": 1}), "And again.", call("call_2")),
        message("user", result({"found": "ü"}), result(tool_id="call_2")),
        message("user", "Well", "then?"),
    ) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"ü":1}'},
        {"role": "assistant", "content": "And again."},
        {"type": "function_call", "call_id": "call_2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"found": "ü"}'},
        {"type": "function_call_output", "call_id": "call_2", "output": "ok"},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Well"}, {"type": "input_text", "text": "then?"}],
        },
    ]


def test_items_of_this_provider_go_back_with_their_ids_and_what_they_carry():
    text = own(item={"id": "msg_1", "status": "completed", "phase": "commentary"}, part={"logprobs": []})

    assert items(
        message(
            "assistant",
            reasoning(),
            TextPart(text="I", **text),
            TextPart(text="look.", **text),
            call(item={"id": "fc_1", "status": "completed"}, arguments="{ }"),
            OpaquePart(provider="openai-responses", content={"type": "compaction", "encrypted_content": "y"}),
        )
    ) == [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [
                {"type": "output_text", "text": "I", "annotations": [], "logprobs": []},
                {"type": "output_text", "text": "look.", "annotations": [], "logprobs": []},
            ],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "status": "completed",
            "call_id": "call_1",
            "name": "look",
            "arguments": "{ }",
        },
        {"type": "compaction", "encrypted_content": "y"},
    ]


def test_an_id_that_an_item_has_already_is_not_said_again():
    text = TextPart(text="Hi", **own(item={"id": "msg_1"}))

    said = items(
        message("assistant", reasoning(), text, call(item={"id": "fc_1"}), text, call(item={"id": "fc_1"}))
    )

    assert [item.get("id") for item in said] == ["rs_1", "msg_1", "fc_1", None, None]


LONG_ID = "rs_" + "x" * 62


@pytest.mark.parametrize("item_id", [LONG_ID, "fc_HIRrd+iG/UNo=="])
def test_an_id_that_the_api_refuses_is_not_sent(item_id: str):
    search = {"type": "web_search_call", "id": item_id, "status": "completed"}
    piece = {"type": "message", "id": item_id, "role": "assistant", "content": [{"type": "output_text"}]}

    said = items(
        message(
            "assistant",
            reasoning(item_id),
            TextPart(text="Hi", **own(item={"id": item_id})),
            call(item={"id": item_id, "status": "completed"}),
            OpaquePart(provider="openai-responses", content=search),
            OpaquePart(provider="openai-responses", content=piece),
        ),
        message("user", result()),
    )

    assert ["id" in item for item in said] == [False] * 6
    assert said[:3] == [
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": "Hi"},
        {
            "type": "function_call",
            "status": "completed",
            "call_id": "call_1",
            "name": "look",
            "arguments": "{}",
        },
    ]


def test_an_id_of_64_characters_is_sent():
    assert items(message("assistant", reasoning(LONG_ID[:-1]), "Hi"))[0]["id"] == LONG_ID[:-1]


def test_reasoning_goes_back_without_its_status():
    item = {"id": "rs_1", "encrypted_content": "x", "status": "completed"}

    [said, _] = items(message("assistant", ThinkingPart(text="hm", **own(item=item)), "Hi"))

    assert said == {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}


def test_reasoning_that_nothing_followed_is_left_out_and_listed():
    encoded = encode(message("user", "Hi"), message("assistant", reasoning()), message("user", "Go on"))

    assert [item["role"] for item in encoded.body["input"]] == ["user", "user"]
    assert [(fault.rule, fault.message_index) for fault in encoded.dropped] == [("more-than-thinking", 1)]


@pytest.mark.parametrize(
    "part",
    [
        ThinkingPart(text="hm", signature="s"),
        ThinkingPart(text="hm", provider_data={"openai-chat": {"member": "reasoning_content"}}),
        OpaquePart(provider="openai-chat", content={"vendor": 1}),
        OpaquePart(provider="openai-responses", content="no item"),
        ImagePart(media_type="image/png", data=PNG),
        result(),
    ],
)
def test_what_an_assistant_cannot_say_is_named_with_its_place(part):
    with pytest.raises(InexpressibleError) as error:
        encode(message("user", "Hi"), message("assistant", "x", part))

    assert (error.value.message_index, error.value.part_index) == (1, 1)


def test_images_and_documents_are_taken_from_the_user_and_from_tools():
    image, picture = ImagePart(media_type="image/png", data=PNG), ImagePart(url="https://example.com/a.png")
    bill = DocumentPart(media_type="application/pdf", data=PDF, name="bill")
    linked = DocumentPart(url="https://example.com/bill.pdf")
    taken = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"},
        {"type": "input_file", "filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        {"type": "input_file", "file_url": "https://example.com/bill.pdf"},
    ]

    asked, _, answer = items(
        message("user", "See:", image, picture, bill, linked),
        message("assistant", call()),
        message("user", result({"n": 1}, attachments=[image, picture, bill, linked])),
    )

    assert asked["content"] == [{"type": "input_text", "text": "See:"}, *taken]
    assert answer["output"] == [{"type": "input_text", "text": '{"n": 1}'}, *taken]


@pytest.mark.parametrize(
    "part",
    [
        ImagePart(url="s3://b/a.png"),
        DocumentPart(url="gs://b/a.pdf"),
        ImagePart(media_type="image/tiff", data=PNG),
    ],
)
def test_media_that_openai_does_not_fetch_or_read_are_refused_wherever_they_are(part):
    with pytest.raises(InexpressibleError):
        encode(message("user", part))
    with pytest.raises(InexpressibleError):
        encode(message("assistant", call()), message("user", result(attachments=[part])))
    with pytest.raises(InexpressibleError):
        encode(message("system", part))


@pytest.mark.parametrize("media_type", ["audio/mp3", "video/mp4"])
@pytest.mark.parametrize("source", [{"data": PDF}, {"url": "https://example.com/a"}])
def test_a_document_of_sound_or_video_is_refused_because_no_model_reads_it(media_type, source):
    with pytest.raises(InexpressibleError, match=media_type):
        encode(message("user", DocumentPart(media_type=media_type, **source)))


@pytest.mark.parametrize(
    ("media_type", "data", "written"),
    [
        ("image/png", PNG, "image/png"),
        ("image/jpg", JPEG, "image/jpeg"),
        ("image/jpeg", PNG, "image/png"),
        ("image/png", JPEG, "image/jpeg"),
    ],
)
def test_a_document_that_is_an_image_goes_as_the_image_that_its_bytes_show(media_type, data, written):
    seen = DocumentPart(media_type=media_type, data=data, name="a.png", **own(detail="low"))

    assert items(message("user", seen))[0]["content"] == [
        {"type": "input_image", "image_url": f"data:{written};base64,{data}", "detail": "low"}
    ]


def test_a_file_under_an_id_keeps_its_detail():
    filed = DocumentPart(url="openai-file:file-1", **own(file_id="file-1", detail="low"))

    assert items(message("user", filed))[0]["content"] == [
        {"type": "input_file", "file_id": "file-1", "detail": "low"}
    ]


def test_marks_of_the_prompt_cache_stand_on_instructions_parts_of_the_user_and_results():
    mark = {"mode": "explicit", "ttl": "30m"}
    marks = own(prompt_cache_breakpoint=mark)

    system, asked, _, answer = items(
        message("system", TextPart(text="Be kind.", **marks)),
        message("user", "See:", ImagePart(url="https://example.com/a.png", **marks)),
        message("assistant", call()),
        message("user", result("ok", **marks)),
    )

    assert system["content"] == [
        {"type": "input_text", "text": "Be kind.", "prompt_cache_breakpoint": mark},
    ]
    assert [part.get("prompt_cache_breakpoint") for part in asked["content"]] == [None, mark]
    assert answer["output"] == [{"type": "input_text", "text": "ok", "prompt_cache_breakpoint": mark}]


def test_free_text_for_a_tool_goes_back_as_free_text_and_so_is_its_answer():
    said, answer = items(
        message("assistant", call("c", "sql", {"input": "SELECT 1"}, custom=True, item={"id": "ctc_1"})),
        message("user", result("1", "c")),
    )

    assert said == {
        "type": "custom_tool_call",
        "id": "ctc_1",
        "call_id": "c",
        "name": "sql",
        "input": "SELECT 1",
    }
    assert answer == {"type": "custom_tool_call_output", "call_id": "c", "output": "1"}


def test_ids_that_come_again_are_numbered_and_lead_back():
    exchange = (message("assistant", call("terminal:0")), message("user", result(tool_id="terminal:0")))

    encoded = encode(*exchange, *exchange)

    ids = [item["call_id"] for item in encoded.body["input"]]
    assert ids == ["terminal_0", "terminal_0", "terminal_0-2", "terminal_0-2"]
    assert encoded.tool_ids == {"terminal_0": "terminal:0", "terminal_0-2": "terminal:0"}


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


def test_a_call_goes_without_arguments_that_are_too_long():
    longest = "x" * (1_048_576 - len('{"a":""}'))
    kept, long = (
        [
            message("user", TextPart(text="Write.")),
            message("assistant", call(payload={"a": text})),
            message("user", result()),
        ]
        for text in (longest, longest + "x")
    )

    assert validate(kept, "openai-responses") == []
    [fault] = validate(long, "openai-responses")
    assert (fault.rule, fault.message_index, fault.part_index) == ("arguments-length", 1, 0)
    with pytest.raises(InexpressibleError, match="1,048,576 are allowed"):
        encode(*long)
    request = encode(*long, lossy="drop")
    _, said, output = request.body["input"]
    assert (said["arguments"], output["output"], request.omitted) == ("{}", "ok", frozenset())
    assert [dropped.rule for dropped in request.dropped] == ["arguments-length"]


@settings(max_examples=50)
@given(ledgers(), st.integers(0, 12))
def test_the_beginning_of_a_ledger_is_encoded_to_the_beginning_of_its_encoding(ledger, end):
    whole, beginning = items(*ledger, lossy="drop"), items(*ledger[:end], lossy="drop")

    assert whole[: len(beginning)] == beginning


@settings(max_examples=50)
@given(ledgers().map(marked))
def test_order_is_kept_over_texts_calls_and_results(ledger):
    said = json.dumps(items(*ledger, lossy="drop"))

    marks = re.findall(r"<\d+>", said)

    assert marks == sorted(marks, key=lambda mark: int(mark[1:-1]))
    assert len(marks) == sum(
        isinstance(part, TextPart | ToolUsePart | ToolResultPart) for one in ledger for part in one.parts
    )


def valid(encoded: Encoded) -> Encoded:
    """The rules that no type states: call ids are said once, and each output names a call before
    it.
    """
    calls: list[str] = []
    answered: list[str] = []
    for item in encoded.body["input"]:
        match item.get("type"):
            case "function_call":
                calls.append(item["call_id"])
            case "function_call_output":
                answered.append(item["call_id"])
                assert answered[-1] in calls
    assert len(set(calls)) == len(calls)
    assert len(set(answered)) == len(answered)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one) for one in calls)
    return encoded
