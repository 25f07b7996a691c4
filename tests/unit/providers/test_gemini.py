"""Gemini: what a ledger is as its request, and what its responses become."""

import base64
from collections.abc import Sequence
from typing import Any

import pytest
from google.genai import types
from tests.gemini import (
    PNG,
    SIGNATURE,
    SIGNED,
    UNSIGNED,
    assistant,
    call,
    contents,
    encoded,
    messages_of,
    recorded,
    response,
    result,
    streamed,
    system,
    user,
    valid,
)

from runfold_projections.providers import gemini
from runfold_schemas.data import Data
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.events import (
    AssistantMessage,
    ProviderPart,
    ResponseRecorded,
    Thinking,
    ToolCall,
)
from runfold_schemas.messages import (
    Citation,
    DocumentPart,
    ImagePart,
    OpaquePart,
    Part,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    VideoPart,
)
from runfold_schemas.usage import TokenUsage


def test_a_conversation_is_contents_and_its_first_system_messages_an_instruction():
    request = valid(encoded(system("Be kind."), system("Be brief."), user("Hi"), assistant("Hello")))

    assert request.body == {
        "systemInstruction": {"parts": [{"text": "Be kind."}, {"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [{"text": "Hello"}]},
        ],
    }


def test_a_later_system_message_stays_in_its_place_as_words_of_the_user():
    request = encoded(user("Hi"), system("Be brief."))

    assert [fault.message_index for fault in request.restated] == [1]
    assert request.body == {
        "contents": [{"role": "user", "parts": [{"text": "Hi"}, {"text": "[Instructions] Be brief."}]}]
    }


def test_adjacent_messages_of_one_role_are_one_content_so_calls_follow_a_user():
    assert [
        (content["role"], len(content["parts"]))
        for content in contents(user("Hi"), user("You?"), assistant("Well"), assistant(call()))
    ] == [("user", 2), ("model", 2)]


def test_parallel_calls_are_answered_under_their_names_and_ids():
    asked = assistant(call("a", "look"), call("b", "find.it"))
    answered = user(
        result("sunny", "a"), result({"error": "no such place"}, "b", is_error=True), result(None, "a")
    )

    [_, calls, results] = contents(user("Hi"), asked, answered)

    assert calls["parts"] == [
        {"functionCall": {"id": "a", "name": "look", "args": {"at": 1}}, "thoughtSignature": UNSIGNED},
        {"functionCall": {"id": "b", "name": "find.it", "args": {"at": 1}}},
    ]
    assert [part["functionResponse"] for part in results["parts"]] == [
        {"id": "a", "name": "look", "response": {"output": "sunny"}},
        {"id": "b", "name": "find.it", "response": {"error": "no such place"}},
        {"id": "a", "name": "look", "response": {"output": None}},
    ]


@pytest.mark.parametrize(
    ("given", "response"),
    [
        (result({"degrees": 3}), {"degrees": 3}),
        (result({"output": 1}), {"output": {"output": 1}}),
        (result({"error": None}), {"output": {"error": None}}),
        (result([1]), {"output": [1]}),
        (result("boom", is_error=True), {"error": "boom"}),
        (result({"result": 1, "error": "late"}, is_error=True), {"result": 1, "error": "late"}),
    ],
)
def test_what_a_tool_gave_is_told_from_an_error(given: ToolResultPart, response: dict[str, Any]):
    [_, results] = contents(assistant(call()), user(given))

    assert results["parts"][0]["functionResponse"]["response"] == response


def test_images_that_a_tool_gave_are_inside_its_response():
    image, page = (
        ImagePart(media_type="image/png", data=PNG),
        DocumentPart(media_type="application/pdf", url="gs://b/p"),
    )

    [_, results] = contents(assistant(call()), user(result("see", attachments=(image, page))))

    assert results["parts"][0]["functionResponse"]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": PNG}},
        {"fileData": {"fileUri": "gs://b/p", "mimeType": "application/pdf"}},
    ]


@pytest.mark.parametrize(
    "model", ["gemini-2.5-flash", "models/gemini-1.5-pro", "google/gemini-2.0-flash-001"]
)
def test_images_that_a_tool_gave_follow_the_responses_for_models_that_refuse_them_inside(model: str):
    image = ImagePart(media_type="image/png", data=PNG)
    messages = [
        assistant(call("1"), call("2")),
        user(result("see", "1", attachments=(image,)), result("blind", "2"), TextPart(text="Well?")),
        user(TextPart(text="And?")),
    ]

    [_, results, media, further] = valid(gemini.encode(messages, {"model": model})).body["contents"]

    assert [list(part) for part in results["parts"]] == [["functionResponse"], ["functionResponse"], ["text"]]
    assert not any("parts" in part.get("functionResponse", {}) for part in results["parts"])
    assert media == {
        "role": "user",
        "parts": [
            {"text": "The result of look contains:"},
            {"inlineData": {"mimeType": "image/png", "data": PNG}},
        ],
    }
    assert further["parts"] == [{"text": "And?"}]


def test_media_are_bytes_or_what_gemini_fetches():
    image = ImagePart(url="https://example.com/a.png")

    [content] = contents(user(image, DocumentPart(media_type="text/plain", data=PNG, name="notes")))

    assert content["parts"] == [
        {"fileData": {"fileUri": "https://example.com/a.png"}},
        {"inlineData": {"mimeType": "text/plain", "data": PNG}},
    ]


@pytest.mark.parametrize(
    "part",
    [
        ImagePart(media_type="image/gif", data=base64.b64encode(b"GIF89a").decode()),
        ImagePart(url="s3://bucket/a.png"),
        ThinkingPart(text="Hm.", signature="another's"),
        ThinkingPart(redacted="aGk="),
        OpaquePart(provider="anthropic", content={"type": "server_tool_use"}),
        call(input=[1]),
    ],
    ids=lambda part: part.type,
)
def test_what_gemini_has_no_form_for_is_refused_by_its_place_or_dropped_and_listed(part: Part):
    messages = [user("Hi"), assistant("Well", part)]

    with pytest.raises(InexpressibleError) as refused:
        gemini.encode(messages, {"lossy": "refuse"})
    request = valid(gemini.encode(messages, {"lossy": "drop"}))

    assert (refused.value.message_index, refused.value.part_index) == (1, 1)
    assert [(fault.message_index, fault.part_index) for fault in request.dropped] == [(1, 1)]
    assert request.body["contents"][1]["parts"] == [{"text": "Well"}]


def test_names_begin_with_a_letter_and_lead_back():
    request = valid(encoded(assistant(call("a", "1st tool"), call("b", "_1st_tool"), call("c", ""))))

    calls = [part["functionCall"]["name"] for part in request.body["contents"][0]["parts"]]
    assert calls == ["_1st_tool", "_1st_tool-2", "_"]
    assert request.tool_names == {"_1st_tool": "1st tool", "_1st_tool-2": "_1st_tool", "_": ""}


def test_a_call_that_gemini_made_without_an_id_goes_back_without_one():
    own = {"gemini": {"id": None, "thoughtSignature": SIGNATURE}}

    [calls, results] = contents(assistant(call("r-1-0", provider_data=own)), user(result("ok", "r-1-0")))

    assert calls["parts"] == [
        {"functionCall": {"name": "look", "args": {"at": 1}}, "thoughtSignature": SIGNATURE}
    ]
    assert results["parts"] == [{"functionResponse": {"name": "look", "response": {"output": "ok"}}}]


def test_signatures_go_back_where_they_stood():
    thought = ThinkingPart(text="Hm.", provider_data=SIGNED)

    [content] = contents(assistant(thought, TextPart(text="", provider_data=SIGNED)))

    assert content["parts"] == [
        {"text": "Hm.", "thought": True, "thoughtSignature": SIGNATURE},
        {"text": "", "thoughtSignature": SIGNATURE},
    ]


WHOLE = response(
    {"text": "Let me see.", "thought": True},
    {"text": "I look."},
    {"functionCall": {"id": "g-1", "name": "look", "args": {"at": 1.5}}, "thoughtSignature": SIGNATURE},
    {"functionCall": {"name": "find", "args": {}}},
    {"executableCode": {"language": "PYTHON", "code": "1+1"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
    {"inlineData": {"mimeType": "image/png", "data": PNG}},
    {"text": "", "thoughtSignature": SIGNATURE},
    usageMetadata={
        "promptTokenCount": 10,
        "cachedContentTokenCount": 4,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 2,
    },
)


def test_a_response_is_recorded_part_by_part_in_its_order():
    assert recorded(WHOLE, look="1look") == [
        Thinking(text="Let me see.", final=True),
        AssistantMessage(message="I look.", content_index=1),
        ToolCall(
            tool_call_id="g-1",
            tool_name="1look",
            payload={"at": 1.5},
            provider_data={"gemini": {"id": "g-1", "thoughtSignature": SIGNATURE}},
        ),
        ToolCall(tool_call_id="r-1-3", tool_name="find", payload={}, provider_data={"gemini": {"id": None}}),
        ProviderPart(content={"executableCode": {"language": "PYTHON", "code": "1+1"}}, content_index=4),
        ProviderPart(
            content={"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}, content_index=5
        ),
        ProviderPart(content={"inlineData": {"mimeType": "image/png", "data": PNG}}, content_index=6),
        AssistantMessage(message="", content_index=7, provider_data=SIGNED),
        TokenUsage(
            model="gemini-3-pro", input_tokens=10, output_tokens=5, cache_read_tokens=4, reasoning_tokens=2
        ),
        ResponseRecorded(model="gemini-3-pro", stop_reason="STOP", response_id="r-1"),
    ]


def test_the_sdks_object_and_its_dicts_say_the_same_as_the_json():
    sdk = types.GenerateContentResponse.model_validate(WHOLE)

    assert recorded(sdk) == recorded(WHOLE)
    assert recorded(sdk.model_dump()) == recorded(WHOLE)
    assert recorded(sdk.model_dump(mode="json", exclude_none=True)) == recorded(WHOLE)


def test_what_gemini_said_goes_back_to_it_as_it_was():
    [back] = contents(*messages_of(recorded(WHOLE)))

    # Gemini takes a turn back without its summaries of thoughts; nothing it signed is missing.
    assert back == {"role": "model", "parts": WHOLE["candidates"][0]["content"]["parts"][1:]}


GROUNDED = {
    "groundingChunks": [{"web": {"uri": "https://example.com/a", "title": "A"}}],
    "groundingSupports": [
        {"segment": {"startIndex": 3, "endIndex": 9, "text": "Köln."}, "groundingChunkIndices": [0, 7]}
    ],
}


def beside(said: Sequence[Data]) -> dict[str, Any]:
    """What stands beside the content of a response."""
    end = said[-1]
    assert isinstance(end, ResponseRecorded)
    return (end.provider_data or {}).get("gemini", {})


def chunks_of_a_grounded_answer() -> list[dict[str, Any]]:
    """Two pieces of the text, and a second candidate. The sources come with the last piece."""
    other = [{"index": 1, "content": {"role": "model", "parts": [{"text": text}]}} for text in ("Ro", "me")]
    said = [{"content": {"role": "model", "parts": [{"text": text}]}} for text in ("In ", "Köln.")]
    last = {
        **said[1],
        "finishReason": "STOP",
        "groundingMetadata": GROUNDED,
        "safetyRatings": [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}],
        "avgLogprobs": -0.5,
        "citationMetadata": {"citations": [{"startIndex": 0, "endIndex": 2, "uri": "https://example.com/b"}]},
    }
    return [{"candidates": [said[0], other[0]]}, {"candidates": [last, other[1]]}]


@pytest.mark.parametrize("as_objects", [False, True], ids=["JSON", "objects"])
def test_what_stands_beside_the_content_is_kept_and_sources_are_cited(as_objects: bool):
    chunks: list[Any] = chunks_of_a_grounded_answer()
    if as_objects:
        chunks = [types.GenerateContentResponse.model_validate(chunk) for chunk in chunks]

    said = streamed(chunks)

    [text] = [data for data in said if isinstance(data, AssistantMessage)]
    assert text.citations == (
        Citation(url="https://example.com/b", start=0, end=2),
        Citation(url="https://example.com/a", title="A", start=3, end=8),
    )
    kept = beside(said)
    assert kept["groundingMetadata"] == GROUNDED
    assert kept["safetyRatings"] == [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}]
    assert kept["avgLogprobs"] == -0.5
    assert kept["candidates"][0]["content"]["parts"] == [{"text": "Ro"}, {"text": "me"}]
    assert said[-1].faults == ()


def test_a_signed_text_has_its_sources_too():
    chunks = chunks_of_a_grounded_answer()
    chunks[1]["candidates"][0]["content"]["parts"][0]["thoughtSignature"] = "c2ln"

    said = streamed(chunks)

    texts = [data for data in said if isinstance(data, AssistantMessage)]
    assert [text.message for text in texts] == ["In ", "Köln."]
    assert [[source.title for source in text.citations] for text in texts] == [[], [None, "A"]]
    assert texts[1].provider_data == {"gemini": {"thoughtSignature": "c2ln"}}


def test_feedback_on_a_prompt_that_was_not_blocked_is_kept_and_no_fault():
    feedback = {"safetyRatings": [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}]}

    said = recorded(response({"text": "hi"}) | {"promptFeedback": feedback})

    assert said[-1].faults == ()
    assert beside(said) == {"promptFeedback": feedback}


def test_an_error_in_the_place_of_a_response_is_a_fault():
    error = {"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}

    [end] = streamed([{"error": error}])

    assert end.faults == ("an error instead of a response: The model is overloaded.",)
    assert not end.finished


def test_members_that_have_no_place_in_an_event_go_back_to_gemini():
    parts = [
        {"text": "hm", "thought": True, "thoughtSignature": "c2ln", "partMetadata": {"a": 1}},
        {"text": "I look.", "partMetadata": {"b": [2]}},
        {"functionCall": {"name": "look", "args": {}, "later": 3}, "thoughtSignature": "c2ln"},
    ]

    [message] = messages_of(recorded(response(*parts)))

    assert gemini.encode([message], {}).body["contents"] == [{"role": "model", "parts": parts}]


@pytest.mark.parametrize(
    ("model", "signed"), [(None, False), ("gemini-2.5-pro", False), ("models/gemini-3-pro-preview", True)]
)
def test_calls_that_an_earlier_model_did_not_sign_get_the_documented_signature_for_gemini_3(
    model: str | None, signed: bool
):
    calls = [{"functionCall": {"name": name, "args": {}}} for name in ("a", "b")]
    [message] = messages_of(recorded(response(*calls)))

    parts = gemini.encode([message], {"model": model}).body["contents"][0]["parts"]

    assert ["thoughtSignature" in part for part in parts] == [signed, False]


def test_a_blocked_prompt_and_broken_parts_are_faults():
    blocked = recorded({"promptFeedback": {"blockReason": "SAFETY"}})
    broken = recorded(response({}, 5, {"text": "hi", "thoughtSignature": "é"}, {"functionCall": {}}))  # type: ignore[arg-type]

    assert [type(data) for data in blocked] == [ResponseRecorded]
    assert blocked[0].faults == ("the prompt was blocked: SAFETY",)
    assert beside(blocked) == {"promptFeedback": {"blockReason": "SAFETY"}}
    assert len(broken[-1].faults) == 4
    assert [type(data) for data in broken] == [AssistantMessage, ToolCall, ResponseRecorded]


def test_arguments_that_vertex_streams_are_put_together():
    def piece(**said: Any) -> dict[str, Any]:
        return response({"functionCall": {"willContinue": True, **said}})

    pieces = [
        piece(name="look", id="v-1"),
        piece(partialArgs=[{"jsonPath": "$.place", "stringValue": "Bos", "willContinue": True}]),
        piece(
            partialArgs=[
                {"jsonPath": "$.place", "stringValue": "ton"},
                {"jsonPath": "$.days[1].at", "numberValue": 3},
            ]
        ),
        response({"functionCall": {}}),
    ]

    done, cut = streamed(pieces), streamed(pieces[:2], finished=False)

    assert done[0].payload == {"place": "Boston", "days": [None, {"at": 3}]}
    assert cut[0] == ProviderPart(
        content={"tool_call_id": "v-1", "tool_name": "look", "arguments": '{"$.place": "Bos"}'},
        finished=False,
    )
    assert not cut[-1].finished


def test_a_video_keeps_its_metadata():
    members = {"videoMetadata": {"fps": 2.0}}
    video = VideoPart(url="gs://a/b.mp4", provider_data={"gemini": {"members": members}})

    assert contents(user(video))[0]["parts"] == [{**members, "fileData": {"fileUri": "gs://a/b.mp4"}}]


def test_a_stream_without_a_finish_reason_has_broken_off():
    chunk = {"candidates": [{"content": {"parts": [{"text": "Hel"}]}}]}

    assert streamed([chunk]) == [
        AssistantMessage(message="Hel", content_index=0),
        ResponseRecorded(finished=False),
    ]
