"""What a request leaves out may leave thinking alone in its message, which no provider accepts."""

import pytest
from tests.provider_types import check

from runfold_projections.providers import encode, validate
from runfold_schemas.messages import PROVIDERS, Message, Provider, TextPart, ThinkingPart, ToolUsePart

ASKED = Message(role="user", parts=[TextPart(text="Is there a train?")])
CUT = ToolUsePart(id="c", name="look", input='{"to": "Ly')
THOUGHTS = {
    "anthropic": ThinkingPart(text="Trains.", signature="s"),
    "bedrock": ThinkingPart(text="Trains.", signature="s"),
    "gemini": ThinkingPart(text="Trains.", provider_data={"gemini": {"thoughtSignature": "cw=="}}),
}


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "gemini"])
def test_a_message_that_would_be_thinking_alone_is_dropped_and_listed(provider: Provider):
    said = Message(role="assistant", parts=[THOUGHTS[provider], CUT])

    request = encode([ASKED, said, ASKED], provider, lossy="drop")

    check(provider, request.body)
    assert "Trains." not in str(request.body)
    assert [(fault.message_index, fault.part_index, fault.rule) for fault in request.dropped] == [
        (1, 1, "input-is-object"),
        (1, 0, "more-than-thinking"),
    ]
    assert "more-than-thinking" not in {fault.rule for fault in validate([ASKED, said], provider)}


@pytest.mark.parametrize("provider", ["anthropic", "bedrock", "gemini"])
def test_thinking_that_something_follows_stays(provider: Provider):
    said = Message(role="assistant", parts=[THOUGHTS[provider], CUT, TextPart(text="At seven.")])

    assert "Trains." in str(encode([ASKED, said, ASKED], provider, lossy="drop").body)


def test_a_call_without_arguments_needs_no_repair():
    call = Message(role="assistant", parts=[ToolUsePart(id="c", name="look")])

    for provider in PROVIDERS:
        rules = {fault.rule for fault in validate([ASKED, call], provider)}
        assert rules <= {"call-has-result", "user-after-calls"}
