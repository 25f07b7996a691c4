"""The rules in which models of one format differ."""

import base64
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.media import png
from tests.provider_types import check

from runfold_projections.providers import Encoded, encode, validate
from runfold_projections.providers.models import rules_of
from runfold_schemas.messages import (
    PROVIDERS,
    AudioPart,
    ImagePart,
    Message,
    OpaquePart,
    Provider,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
    VideoPart,
)

ASKED = Message(role="user", parts=[TextPart(text="Is there a train?")])
ANSWERED = Message(role="assistant", parts=[TextPart(text="At seven.")])
CHANGED = Message(role="system", parts=[TextPart(text="Be short.")])


@pytest.mark.parametrize(
    ("model", "continues"),
    [
        ("claude-3-5-sonnet-20241022", True),
        ("claude-3-7-sonnet-latest", True),
        ("claude-opus-4-20250514", True),
        ("claude-opus-4@20250514", True),
        ("claude-sonnet-4-5-20250929", True),
        ("claude-haiku-4-5", True),
        ("claude-opus-4-6", False),
        ("claude-sonnet-4-6", False),
        ("claude-opus-4-8-20260528", False),
        ("claude-sonnet-5-5", False),
        ("claude-mythos-preview", False),
        ("claude-opus-9", False),
        ("a-name-of-the-caller", False),
    ],
)
def test_claude_continues_the_assistants_message_up_to_4_5(model: str, continues: bool):
    assert rules_of("anthropic", model).continues is continues
    assert rules_of("bedrock", f"us.anthropic.{model}-v1:0").continues is continues


@pytest.mark.parametrize(
    ("provider", "model", "within"),
    [
        ("anthropic", None, False),
        ("anthropic", "claude-sonnet-4-6", False),
        ("anthropic", "claude-opus-4-8", True),
        ("anthropic", "claude-opus-4-8@20260528", False),
        ("anthropic", "claude-fable-5-2", True),
        ("bedrock", "anthropic.claude-opus-4-8", False),
        ("gemini", "gemini-3-pro", False),
        ("openai-chat", None, True),
        ("openai-chat", "gpt-6-sol", True),
        ("openai-chat", "mistral-large-latest", False),
        ("openai-chat", "mistralai/Devstral-Small-2-24B", False),
        ("openai-chat", "Qwen/Qwen3.6-27B-FP8", False),
        ("openai-chat", "qwen3-32b", True),
        ("openai-responses", "gpt-6-sol", True),
    ],
)
def test_instructions_within_the_conversation_are_for_the_models_that_take_them(
    provider: Provider, model: str | None, within: bool
):
    assert rules_of(provider, model).instructions_within is within


@pytest.mark.parametrize("model", ["claude-opus-4.6", "anthropic/claude-sonnet-5"])
def test_a_router_has_the_rules_of_its_model(model: str):
    assert not rules_of("openai-chat", model).continues


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "gemini"])
def test_instructions_that_a_model_does_not_take_are_the_users_words(provider: Provider):
    messages = [ASKED, ANSWERED, CHANGED]

    request = encode(messages, provider)

    check(provider, request.body)
    said = "[Instructions] Be short."
    assert said in str(request.body)
    assert [(fault.message_index, fault.rule) for fault in request.restated] == [(2, "instructions-within")]
    assert request.dropped == []
    assert validate(messages, provider) == []


@pytest.mark.parametrize("model", [None, "mistral-large-latest"])
def test_in_openais_format_the_model_decides(model: str | None):
    request = encode([ASKED, ANSWERED, CHANGED], "openai-chat", model=model)

    last: dict[str, Any] = request.body["messages"][-1]
    expected = ("system", "Be short.") if model is None else ("user", "[Instructions] Be short.")
    assert (last["role"], last["content"]) == expected


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "gemini", "openai-chat", "openai-responses"])
def test_instructions_before_the_conversation_stay_instructions(provider: Provider):
    request = encode([CHANGED, CHANGED, ASKED], provider)

    assert request.restated == []
    assert "[Instructions]" not in str(request.body)


CALLED = Message(role="assistant", parts=[ToolUsePart(id="c", name="look", input={})])
ANSWER = Message(role="user", parts=[ToolResultPart(tool_use_id="c", content="At seven.")])
THOUGHT = ThinkingPart(text="Trains.", signature="s")
THINKING = CALLED.model_copy(update={"parts": (THOUGHT, *CALLED.parts)})
PAUSED = Message(
    role="assistant",
    parts=[
        OpaquePart(provider="anthropic", content={"type": "server_tool_use", "id": "srvtoolu_1", "name": "n"})
    ],
)


def rules_broken(provider: Provider, *messages: Message, **options: Any) -> list[tuple[int | None, str]]:
    return [(fault.message_index, fault.rule) for fault in validate(messages, provider, **options)]


@pytest.mark.parametrize(
    ("provider", "model", "is_refused"),
    [
        ("anthropic", "claude-sonnet-4-5", False),
        ("anthropic", "claude-sonnet-4-6", True),
        ("anthropic", None, False),
        ("bedrock", "meta.llama3-8b-instruct-v1:0", True),
        ("openai-chat", "gpt-6-sol", False),
        ("openai-chat", "mistral-large-latest", True),
        ("openai-responses", "gpt-6-sol", False),
        ("gemini", "gemini-3-pro", True),
    ],
)
def test_a_request_that_ends_with_the_assistant_is_a_fault_of_the_models_that_refuse_it(
    provider: Provider, model: str | None, is_refused: bool
):
    expected = [(1, "last-message-user")] if is_refused else []

    assert rules_broken(provider, ASKED, ANSWERED, model=model) == expected
    assert rules_broken(provider, ASKED, ANSWERED, ASKED, model=model) == []


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "gemini"])
def test_after_a_response_that_broke_off_no_model_needs_a_name(provider: Provider):
    assert rules_broken(provider, ASKED, ANSWERED, broken_off=True) == [(1, "last-message-user")]
    assert rules_broken(provider, ASKED, ANSWERED, ASKED, broken_off=True) == []


def test_a_text_that_a_model_continues_ends_without_white_space():
    spaced = Message(role="assistant", parts=[TextPart(text="There is ")])

    assert rules_broken("anthropic", ASKED, spaced, model="claude-haiku-4-5") == [(1, "no-trailing-space")]
    assert rules_broken("openai-chat", ASKED, spaced, model="gpt-6-sol") == []


def test_a_paused_turn_and_a_call_at_the_end_are_no_end():
    assert rules_broken("anthropic", ASKED, PAUSED, model="claude-sonnet-5-5") == []
    assert rules_broken("anthropic", ASKED, CALLED, model="claude-sonnet-5-5") == [(1, "call-has-result")]


@pytest.mark.parametrize(
    ("messages", "broken"),
    [
        ([ASKED, CALLED, ANSWER], [(1, "thinking-first")]),
        ([ASKED, THINKING, ANSWER], []),
        ([ASKED, THINKING, ANSWER, CALLED, ANSWER], []),
        ([ASKED, CALLED, ANSWER, ASKED], []),
        ([ASKED, ANSWERED, ASKED], []),
    ],
    ids=["without", "with", "later in the turn", "an earlier turn", "without calls"],
)
def test_with_thinking_on_the_last_turn_with_calls_starts_with_thinking(
    messages: list[Message], broken: list[tuple[int, str]]
):
    assert rules_broken("anthropic", *messages, thinking=True, model="claude-sonnet-4-5") == broken
    assert rules_broken("anthropic", *messages, thinking=True) == broken
    assert rules_broken("anthropic", *messages, thinking=True, model="claude-opus-4-8") == []
    assert rules_broken("anthropic", *messages) == []


def test_thinking_of_another_maker_starts_no_turn():
    other = THINKING.model_copy(update={"maker": "deepseek"})

    broken = rules_broken("anthropic", ASKED, other, ANSWER, thinking=True, maker="anthropic")

    assert broken == [(1, "thinking-first"), (1, "inexpressible")]


MISTRAL = "devstral-small-latest"


def test_mistral_answers_results_before_the_user_goes_on():
    messages = [ASKED, CALLED, ANSWER, ASKED]

    bridged = encode(messages, "openai-chat", model=MISTRAL)
    plain = encode(messages, "openai-chat", model="gpt-6-sol")

    assert roles(bridged) == ["user", "assistant", "tool", "assistant", "user"]
    assert bridged.body["messages"][3] == {"role": "assistant", "content": "OK."}
    assert [(each.rule, each.message_index) for each in bridged.restated] == [("assistant-after-results", 3)]
    assert roles(plain) == ["user", "assistant", "tool", "user"]
    assert plain.restated == []
    assert rules_broken("openai-chat", *messages, model=MISTRAL) == []


def test_images_of_results_and_instructions_wait_for_mistrals_answer_too():
    image = ImagePart(media_type="image/png", data=base64.b64encode(png()).decode())
    result = ToolResultPart(tool_use_id="c", content="At seven.", attachments=(image,))
    within = Message(role="system", parts=[TextPart(text="Be brief.")])

    pictured = encode([ASKED, CALLED, Message(role="user", parts=[result])], "openai-chat", model=MISTRAL)
    told = encode([ASKED, CALLED, ANSWER, within], "openai-chat", model=MISTRAL)

    assert roles(pictured) == roles(told) == ["user", "assistant", "tool", "assistant", "user"]


def roles(encoded: Encoded) -> list[str]:
    return [message["role"] for message in encoded.body["messages"]]


def called(*ids: str) -> list[Message]:
    return [
        message
        for tool_id in ids
        for message in (
            Message(role="assistant", parts=[ToolUsePart(id=tool_id, name="look", input={})]),
            Message(role="user", parts=[ToolResultPart(tool_use_id=tool_id, content="ok")]),
        )
    ]


@given(st.lists(st.text(max_size=12), min_size=1, max_size=6))
def test_ids_for_mistral_have_nine_letters_and_digits(ids: list[str]):
    encoded = encode([ASKED, *called(*ids)], "openai-chat", model=MISTRAL)

    sent = [call["id"] for message in encoded.body["messages"] for call in message.get("tool_calls", [])]
    answered = [message["tool_call_id"] for message in encoded.body["messages"] if message["role"] == "tool"]
    assert sent == answered
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", tool_id) for tool_id in sent)
    assert [encoded.tool_ids.get(tool_id, tool_id) for tool_id in sent] == ids


def test_ids_for_mistral_stay_as_they_are_and_apart():
    calls = [ToolUsePart(id=tool_id, name="look", input={}) for tool_id in ("Abc123xyZ", "call_1", "call_1")]

    encoded = encode([ASKED, Message(role="assistant", parts=calls)], "openai-chat", model=MISTRAL)
    longer = encode(
        [ASKED, Message(role="assistant", parts=calls), *called("call_2")], "openai-chat", model=MISTRAL
    )

    ids = [call["id"] for call in encoded.body["messages"][1]["tool_calls"]]
    assert ids[0] == "Abc123xyZ"
    assert len(set(ids)) == 3
    assert longer.body["messages"][1] == encoded.body["messages"][1]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_result_whose_attachment_is_refused_is_sent(provider: Provider):
    refused = AudioPart(media_type="application/x-unknown", data="AAAA")
    result = ToolResultPart(tool_use_id="c", content="At seven.", attachments=(refused,))
    answer = Message(role="user", parts=[result])

    encoded = encode([ASKED, CALLED, answer, ANSWERED], provider, lossy="drop")

    assert [(fault.message_index, fault.part_index) for fault in encoded.dropped] == [(2, 0)]
    assert encoded.omitted == set()


def test_mistral_answers_results_with_a_refused_attachment_too():
    video = VideoPart(media_type="video/mp4", data="AAAA")
    result = ToolResultPart(tool_use_id="c", content="At seven.", attachments=(video,))
    answer = Message(role="user", parts=[result])

    rules = rules_broken("openai-chat", ASKED, CALLED, answer, ASKED, model="mistral-large-latest")

    assert rules == [(2, "inexpressible")]
