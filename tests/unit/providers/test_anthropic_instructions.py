"""Instructions within the conversation, for Anthropic's models that take them there and for the
others.
"""

import pytest
from tests.anthropic_messages import assistant, check, user

from runfold_projections.providers import encode
from runfold_schemas.messages import Message, OpaquePart, TextPart, ToolResultPart, ToolUsePart

MODEL = "claude-opus-5"
QUESTION, ANSWER = user(TextPart(text="how is it?")), assistant(TextPart(text="well"))
BRIEF = Message(role="system", parts=(TextPart(text="be brief"),))
KIND = Message(role="system", parts=(TextPart(text="be kind"),))
BLANK = assistant(TextPart(text=" "))
CALL, RESULT = (
    assistant(ToolUsePart(id="1", name="look", input={})),
    ToolResultPart(tool_use_id="1", content="a"),
)
SEARCH = assistant(
    OpaquePart(
        provider="anthropic",
        content={"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}},
    )
)
FOUND = OpaquePart(
    provider="anthropic",
    content={"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
)


@pytest.mark.parametrize(
    ("conversation", "roles"),
    [
        ([QUESTION, BRIEF], ["user", "system"]),
        ([QUESTION, BRIEF, ANSWER, QUESTION], ["user", "system", "assistant", "user"]),
        ([QUESTION, BRIEF, BLANK, ANSWER], ["user", "system", "assistant"]),
        ([QUESTION, CALL, user(RESULT), BRIEF, ANSWER], ["user", "assistant", "user", "system", "assistant"]),
        ([QUESTION, SEARCH, BRIEF], ["user", "assistant", "system"]),
        (
            [QUESTION, SEARCH, BRIEF, assistant(FOUND, TextPart(text="found")), QUESTION],
            ["user", "assistant", "system", "assistant", "user"],
        ),
    ],
)
def test_a_model_that_takes_instructions_within_gets_them_there(
    conversation: list[Message], roles: list[str]
):
    encoded = encode([KIND, *conversation], "anthropic", model=MODEL)

    check(encoded.body)
    messages = encoded.body["messages"]
    assert [message["role"] for message in messages] == roles
    assert messages[roles.index("system")]["content"] == [{"type": "text", "text": "be brief"}]
    assert encoded.body["system"] == [{"type": "text", "text": "be kind"}]
    assert encoded.restated == []
    assert [fault.rule for fault in encoded.dropped] in ([], ["text-not-blank"])


def test_instructions_in_a_row_are_one_message():
    encoded = encode([QUESTION, BRIEF, KIND, ANSWER], "anthropic", model=MODEL)

    check(encoded.body)
    texts = [{"type": "text", "text": "be brief"}, {"type": "text", "text": "be kind"}]
    assert encoded.body["messages"][1] == {"role": "system", "content": texts}


@pytest.mark.parametrize(
    "conversation",
    [
        [QUESTION, ANSWER, BRIEF, QUESTION],
        [QUESTION, ANSWER, BRIEF],
        [QUESTION, BRIEF, QUESTION],
        [BLANK, BRIEF, QUESTION],
    ],
)
def test_where_the_api_takes_no_instructions_they_are_the_words_of_the_user(conversation: list[Message]):
    encoded = encode(conversation, "anthropic", model=MODEL)

    check(encoded.body)
    assert "system" not in [message["role"] for message in encoded.body["messages"]]
    assert "[Instructions] be brief" in str(encoded.body["messages"])
    assert [fault.rule for fault in encoded.restated] == ["instructions-within"]


def test_a_model_that_takes_none_gets_the_words_of_the_user_and_no_call_that_they_cut_off():
    encoded = encode([QUESTION, SEARCH, BRIEF], "anthropic", model="claude-sonnet-4-5")

    check(encoded.body)
    texts = [message["content"][0]["text"] for message in encoded.body["messages"]]
    assert texts == ["how is it?", "[Instructions] be brief"]
    assert [fault.rule for fault in encoded.dropped] == ["server-call-has-result"]
