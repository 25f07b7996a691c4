"""Several makers share a format. Only the maker of a response gets back what others cannot use."""

import pytest
from tests.builders import event

from runfold.client.envelope import event_of
from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import encode
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.events import AssistantMessage, ResponseRecorded, Thinking, UserMessage
from runfold_schemas.messages import Message

REASONED = {"openai-chat": {"member": "reasoning_content"}}


def ledger(maker: str | None) -> list[Message]:
    said = {"provider": "openai-chat", "maker": maker, "message_id": "m-1"}
    said = {name: value for name, value in said.items() if value is not None}
    return build_messages_from_events(
        [
            event(UserMessage(message="Where?")),
            event(Thinking(text="hm", final=True, provider_data=REASONED), **said),
            event(AssistantMessage(message="Here."), **said),
            event(ResponseRecorded(next_request={"openai-chat": {"conversation": "c-1"}}), **said),
        ]
    )


@pytest.mark.parametrize("maker", [None, "deepseek", "DeepSeek"])
def test_the_maker_of_a_response_gets_its_thinking_back(maker: str | None):
    request = encode(ledger("deepseek"), "openai-chat", maker=maker)

    assert request.body["messages"][1] == {
        "role": "assistant",
        "content": "Here.",
        "reasoning_content": "hm",
    }
    assert request.next_request == {"conversation": "c-1"}


def test_another_maker_gets_what_was_said_alone():
    with pytest.raises(InexpressibleError, match="only deepseek understands the thinking part"):
        encode(ledger("deepseek"), "openai-chat", maker="groq")

    request = encode(ledger("deepseek"), "openai-chat", maker="groq", lossy="drop")

    assert request.body["messages"][1] == {"role": "assistant", "content": "Here."}
    assert [(fault.message_index, fault.part_index) for fault in request.dropped] == [(1, 0)]
    assert request.next_request == {}


def test_a_response_of_an_unknown_maker_goes_back_to_everybody():
    assert "reasoning_content" in encode(ledger(None), "openai-chat", maker="groq").body["messages"][1]


def test_thinking_is_left_out_on_demand_and_is_no_loss():
    request = encode(ledger("deepseek"), "openai-chat", with_thinking=False)

    assert request.body["messages"][1] == {"role": "assistant", "content": "Here."}
    assert request.dropped == []


@pytest.mark.parametrize(
    ("maker", "name"),
    [
        ("deepseek", "deepseek"),
        ("DeepSeek", "DeepSeek"),
        ("api.groq.com", "api.groq.com"),
        ("https://api.groq.com/openai/v1", "api.groq.com"),
        ("https://key:word@API.groq.com:443?x=1", "API.groq.com"),
        ("api.groq.com/openai/v1", "api.groq.com"),
        ("api.groq.com:443", "api.groq.com"),
        ("localhost:8000/v1", "localhost"),
        ("vllm:8000", "vllm"),
        ("http://vllm/v1", "vllm"),
        ("http://[::1]:8000/v1", "[::1]"),
        ("openrouter/deepseek", "openrouter/deepseek"),
        ("llama:70b", "llama:70b"),
        ("Mistral AI", "Mistral AI"),
        ("https://", "https://"),
    ],
)
def test_a_url_or_a_host_with_a_port_is_recorded_as_its_host(maker: str, name: str):
    assert event_of(UserMessage(message="Hi"), "r-1", maker=maker).maker == name


@pytest.mark.parametrize(
    ("recorded", "named"),
    [("https://api.groq.com/v1", "API.groq.com"), ("api.groq.com", "https://api.groq.com/openai/v1")],
)
def test_a_request_compares_hosts(recorded: str, named: str):
    request = encode(ledger(recorded), "openai-chat", maker=named)

    assert request.body["messages"][1]["reasoning_content"] == "hm"
