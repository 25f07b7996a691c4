"""What agent frameworks say, in their own form, is in the ledger as if it had been said in ours."""

from base64 import b64encode
from typing import Any

import pytest
from google.genai import types
from tests.builders import event, events
from tests.framework_events import (
    ANSWERED,
    ASKED,
    CALLED,
    PICTURE,
    PNG,
    QUESTION,
    REASONED,
    SEARCHED,
    SPOKE,
    adk,
    call,
    item,
    mended,
    result,
    text,
    vertex,
)

from runfold_projections.amendments import expand_log
from runfold_projections.exchanges import inspect_results
from runfold_projections.frameworks import expand
from runfold_projections.ledger import build_messages_from_events, build_messages_from_log
from runfold_projections.providers import encode
from runfold_projections.repair import BEGINNING, INTERRUPTED
from runfold_schemas.data import Data
from runfold_schemas.events import EventAmended, StandIn, ToolResult
from runfold_schemas.messages import DocumentPart, ImagePart, Message, Provider, TextPart

SIGNATURE = b64encode(b"signed").decode()


def ledger(*data: Data) -> list[Message]:
    return build_messages_from_events(events(*data))


def gemini(*data: Data) -> list[dict[str, Any]]:
    return encode(ledger(*data), "gemini").body["contents"]


def openai(*data: Data) -> list[dict[str, Any]]:
    return encode(ledger(*data), "openai-responses").body["input"]


def shape(messages: list[Message]) -> list[str]:
    return [f"{message.role}: {', '.join(map(_shape, message.parts))}" for message in messages]


def _shape(part: Any) -> str:
    match part.type:
        case "tool_use":
            return f"call {part.id}"
        case "tool_result":
            return f"result {part.tool_use_id}={part.content}"
        case "opaque":
            return f"opaque {part.provider}"
        case _:
            return getattr(part, "text", part.type)


def test_an_exchange_of_adk_is_one_of_ours():
    signed = types.Part(text="The sky.", thought=True, thought_signature=b"signed")
    asked = adk(signed, text("I look."), call("adk-1", at="Lyon"))
    answered = adk(result("adk-1", {"result": "rain"}), role="user")

    messages = ledger(QUESTION, asked, answered, adk(text("Yes.")))

    assert shape(messages) == [
        "user: Is it raining?",
        "assistant: The sky., I look., call adk-1",
        "user: result adk-1={'result': 'rain'}",
        "assistant: Yes.",
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_an_event_of_agent_engine_says_what_adks_says(whole: bool):
    signed = types.Part(text="The sky.", thought=True, thought_signature=b"signed")
    exchange = [
        QUESTION,
        adk(text("I l"), partial=True),
        adk(signed, text("I look."), call("adk-1", at="Lyon")),
        adk(result("adk-1", {"result": "rain"}), role="user"),
        adk(text("Yes.")),
    ]

    assert ledger(*(vertex(each, whole=whole) for each in exchange)) == ledger(*exchange)


def test_gemini_is_told_what_adk_would_have_told_it():
    signed = types.Part(
        function_call=types.FunctionCall(id="adk-1", name="look", args={"at": "Lyon"}),
        thought_signature=b"signed",
    )
    code = types.Part(executable_code=types.ExecutableCode(code="1", language="PYTHON"))
    answer = result("adk-1", {"result": "rain"})

    assert gemini(QUESTION, adk(code, signed), adk(answer, role="user"))[1:] == [
        {
            "role": "model",
            "parts": [
                {"executableCode": {"code": "1", "language": "PYTHON"}},
                {
                    "functionCall": {"name": "look", "args": {"at": "Lyon"}},
                    "thoughtSignature": SIGNATURE,
                },
            ],
        },
        # Without ids: these were ADK's own.
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "look", "response": {"result": "rain"}}}],
        },
    ]


@pytest.mark.parametrize(
    "response",
    [{"result": 1}, {"a": 1}, {}, {"output": "x"}, {"error": "no"}, {"error": "no", "result": [1]}],
    ids=str,
)
def test_a_response_goes_back_to_gemini_as_it_was(response: dict[str, Any]):
    (_, told) = gemini(adk(call("c")), adk(result("c", response), role="user"))

    assert told["parts"] == [{"functionResponse": {"id": "c", "name": "look", "response": response}}]


def test_an_error_is_one():
    parts = [ledger(adk(call("c")), adk(result("c", each), role="user"))[1].parts[0] for each in ERRORS]

    assert [(part.is_error, part.content) for part in parts] == [
        (True, {"error": "no"}),
        (True, {"result": {"code": 3}, "error": "no"}),
        (False, {"error": None, "code": 3}),
    ]


ERRORS = ({"error": "no"}, {"error": "no", "code": 3}, {"error": None, "code": 3})


def test_parallel_calls_of_one_event_find_their_results_in_any_order():
    asked = adk(call("a"), call("b"), call("c"))
    answered = adk(result("c", {"n": 3}), result("a", {"n": 1}), role="user")
    late = adk(result("b", {"n": 2}), role="user")

    assert shape(ledger(QUESTION, asked, answered, QUESTION, late)) == [
        "user: Is it raining?",
        "assistant: call a, call b, call c",
        "user: result a={'n': 1}, result b={'n': 2}, result c={'n': 3}",
        "user: Is it raining?",
    ]


def test_calls_without_ids_are_found_by_name_and_number():
    calls = (call(None, n=1), call(None, "walk"), call(None, n=2))
    answers = (result(None, {"n": 1}), result(None, {"n": 2}), result(None, {"w": 0}, "walk"))
    twice = [adk(*calls), adk(*answers, role="user"), adk(*calls), adk(*answers, role="user")]

    messages = ledger(QUESTION, *twice)

    assert shape(messages)[1:3] == shape(messages)[3:]
    assert shape(messages)[2] == (
        "user: result e-1:look:0={'n': 1}, result e-1:walk:0={'w': 0}, result e-1:look:1={'n': 2}"
    )
    assert "id" not in str(encode(messages, "gemini").body)


def test_what_the_user_shows_is_in_the_message():
    shown = types.Part(inline_data=types.Blob(mime_type="image/png", data=PICTURE))
    linked = types.Part(
        file_data=types.FileData(file_uri="gs://b/a.pdf", mime_type="application/pdf", display_name="a")
    )

    (message,) = ledger(adk(text("See:"), shown, linked, author="user"))

    assert message.parts == (
        TextPart(text="See:"),
        ImagePart(media_type="image/png", data=PNG),
        DocumentPart(media_type="application/pdf", url="gs://b/a.pdf", name="a"),
    )


def test_a_result_carries_what_it_shows():
    blob = types.FunctionResponseBlob(mime_type="image/png", data=PICTURE)
    shown = result("c", {"ok": True}, parts=[types.FunctionResponsePart(inline_data=blob)])

    (_, answered) = ledger(adk(call("c")), adk(shown, role="user"))

    assert answered.parts[0].attachments == (ImagePart(media_type="image/png", data=PNG),)


def test_the_user_may_answer_a_call_and_say_more():
    answer = adk(result("c", {"ok": True}), text("I allow it."), author="user")

    assert shape(ledger(QUESTION, adk(call("c")), answer)) == [
        "user: Is it raining?",
        "assistant: call c",
        "user: result c={'ok': True}",
        "user: I allow it.",
    ]


def test_each_event_of_a_model_is_a_message_and_pieces_of_a_stream_are_none():
    log = [QUESTION, adk(text("Y"), partial=True), adk(text("Yes.")), adk(text("And so on."))]

    assert shape(ledger(*log)) == ["user: Is it raining?", "assistant: Yes.", "assistant: And so on."]


@pytest.mark.parametrize("name", ["adk_request_credential", "adk_request_confirmation"])
def test_what_adk_asks_for_itself_is_no_part_of_the_conversation(name: str):
    asked = adk(call("adk-9", name), role="user")
    answered = adk(result("adk-9", {"confirmed": True}, name), author="user")

    assert ledger(QUESTION, asked, answered) == ledger(QUESTION)


def test_what_stands_for_an_event_has_its_envelope_and_the_models():
    record = event(adk(text("Yes."), call("c")), labels={"a": "b"}, state_delta={"seen": 1})

    words, called = expand(record)

    assert {words.event_id, called.event_id} == {record.event_id}
    assert (words.timestamp, words.labels, words.state_delta) == (
        record.timestamp,
        {"a": "b"},
        {"seen": 1},
    )
    assert (words.provider, words.message_id) == ("gemini", record.data.body["id"])
    assert words.turn_id == "e-1"
    assert expand(event(QUESTION, turn_id="t"))[0].turn_id == "t"
    assert expand(event(QUESTION))[0].provider is None
    assert expand(words) == [words]


def test_items_in_a_row_are_one_message_and_go_back_as_they_came():
    log = [ASKED, REASONED, SPOKE, SEARCHED, CALLED, ANSWERED]

    assert shape(ledger(*log)) == [
        "user: Is it raining?",
        "assistant: Hm., I look., opaque openai-responses, call call_1",
        "user: result call_1=rain",
    ]
    assert openai(*log) == [each.body for each in log]


def test_two_texts_in_a_row_stay_two():
    spoke = [item(role="assistant", content="One."), item(role="assistant", content="Two.")]

    assert shape(ledger(ASKED, *spoke)) == ["user: Is it raining?", "assistant: One., Two."]
    assert openai(ASKED, *spoke) == [ASKED.body, *(each.body for each in spoke)]


def test_instructions_and_what_the_user_shows_are_understood():
    content = [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "low"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
    ]
    log = [item(type="message", role="developer", content="Be kind."), item(role="user", content=content)]

    assert openai(*log) == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": content}]


BY_ID = [
    {"type": "input_image", "file_id": "file-1", "detail": "high"},
    {"type": "input_file", "file_id": "file-2", "detail": "low"},
]


def test_files_that_openai_has_under_an_id_go_back_by_the_id():
    content = [{"type": "input_text", "text": "See:"}, *BY_ID]
    output = [{"type": "input_text", "text": "Seen."}, *BY_ID]
    log = [
        item(role="user", content=content),
        CALLED,
        item(type="function_call_output", call_id="call_1", output=output),
    ]

    assert openai(*(each.model_copy(update={"files_by_id": True}) for each in log)) == [
        each.body for each in log
    ]


def test_the_ledger_of_an_event_that_an_earlier_version_wrote_stays_without_the_files():
    assert openai(item(role="user", content=[{"type": "input_text", "text": "See:"}, *BY_ID])) == [
        {"role": "user", "content": "See:"}
    ]


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "gemini"])
def test_a_file_under_an_id_of_openai_is_named_as_what_others_cannot_fetch(provider: Provider):
    log = item(role="user", content=[{"type": "input_text", "text": "See:"}, *BY_ID])
    messages = ledger(log.model_copy(update={"files_by_id": True}))

    dropped = encode(messages, provider, lossy="drop").dropped

    assert [(fault.rule, fault.part_index) for fault in dropped] == [
        ("inexpressible", 1),
        ("inexpressible", 2),
    ]


def test_an_output_may_hold_an_image_and_a_custom_tool_takes_its_own():
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    output = [{"type": "input_text", "text": "Seen."}, image]
    custom = item(type="custom_tool_call", id="ct_1", call_id="call_2", name="run", input="1+1")
    log = [
        ASKED,
        CALLED,
        custom,
        item(type="function_call_output", call_id="call_1", output=output),
        item(type="custom_tool_call_output", call_id="call_2", output="2"),
    ]

    assert openai(*log) == [each.body for each in log]


def test_an_item_that_is_amended_away_is_gone():
    popped = EventAmended(offset=1, reason="popped")

    assert ledger(ASKED, SPOKE, popped) == ledger(ASKED)
    assert ledger(QUESTION, adk(call("c")), popped) == ledger(QUESTION)


def test_what_stands_for_an_item_is_its_models_too():
    instead = StandIn(type="assistant_message", data={"message": "Right."})

    log = events(ASKED, adk(text("Wrong.")), EventAmended(offset=1, stand_ins=(instead,), reason="?"))

    ((_, _), (place, event_), _) = expand_log(list(enumerate(log)))
    assert (place, event_.provider, event_.message_id) == ((1, 0), "gemini", log[1].data.body["id"])


def test_faults_have_the_offset_of_the_record():
    log = events(QUESTION, adk(call("a"), call("b")), adk(result("b", {}), result("x", {}), role="user"))

    faults = inspect_results((10 + 5 * at, each) for at, each in enumerate(log))

    assert [(fault.offset, fault.rule, fault.tool_use_id) for fault in faults] == [
        (15, "call-has-result", "a"),
        (20, "result-has-call", "x"),
    ]


def test_amendments_name_offsets_also_where_the_log_has_gaps():
    log = events(ASKED, SPOKE, EventAmended(offset=7, reason="popped"))

    assert shape(build_messages_from_log(zip([2, 7, 9], log, strict=True))) == ["user: Is it raining?"]


def test_a_fault_in_one_part_of_an_event_leaves_the_others():
    answered = adk(result("x", {"n": 0}), result("b", {"n": 2}), role="user")

    appended, messages = mended(events(adk(text("Hello."), call("a"), call("b")), answered))

    assert shape(messages) == [
        f"user: {BEGINNING}",
        "assistant: Hello., call a, call b",
        f"user: result a={{'error': '{INTERRUPTED}'}}, result b={{'n': 2}}",
    ]
    assert [type(data) for data in appended] == [EventAmended, EventAmended, ToolResult]


def test_several_faults_of_one_event_are_one_amendment():
    cut = [item(type="function_call", call_id=tool_id, name="look", arguments='{"a') for tool_id in "ab"]
    orphans = adk(result("x", {}), result("y", {}), text("And?"), author="user")

    appended, messages = mended(events(ASKED, *cut, orphans))

    assert [type(data) for data in appended] == [EventAmended] * 3 + [ToolResult] * 2
    assert shape(messages)[-1] == "user: And?"
    assert "'x'" in appended[2].reason
    assert "'y'" in appended[2].reason
