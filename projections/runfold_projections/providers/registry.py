"""The providers by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from runfold_projections.providers import anthropic, bedrock, gemini, openai_chat, openai_responses
from runfold_projections.providers.encoding import Encoded, Lossy
from runfold_projections.providers.recording import Recorder
from runfold_projections.validation import Fault, validate_bedrock, validate_strict
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.messages import Message, Provider, TextPart, ThinkingPart


class _Module(NamedTuple):
    encode: Callable[[Sequence[Message], Lossy], Encoded]
    recorder: Callable[[Mapping[str, str]], Recorder]
    recognizes: Callable[[Any], bool]
    """Whether this is one of its responses, or a chunk of one of its streams."""
    user_first: bool
    """Whether it refuses a conversation that the assistant begins, and a message of nothing but
    thinking.
    """


_MODULES: Final[Mapping[Provider, _Module]] = {
    "bedrock": _Module(bedrock.encode, bedrock.BedrockRecorder, bedrock.recognizes, user_first=True),
    "anthropic": _Module(
        anthropic.encode, anthropic.AnthropicRecorder, anthropic.recognizes, user_first=True
    ),
    "openai-chat": _Module(
        openai_chat.encode, openai_chat.ChatRecorder, openai_chat.recognizes, user_first=False
    ),
    "openai-responses": _Module(
        openai_responses.encode,
        openai_responses.ResponsesRecorder,
        openai_responses.recognizes,
        user_first=False,
    ),
    "gemini": _Module(gemini.encode, gemini.GeminiRecorder, gemini.recognizes, user_first=True),
}


def encode(messages: Sequence[Message], provider: Provider, *, lossy: Lossy = "refuse") -> Encoded:
    """The ledger as the provider's request. Raises `InexpressibleError` for a part that it has no
    form for.
    """
    return _MODULES[provider].encode(messages, lossy)


def recorder(provider: Provider, *, tool_names: Mapping[str, str] | None = None) -> Recorder:
    """Makes events of one response. `tool_names` are those of the request
    (`Encoded.tool_names`).
    """
    return _MODULES[provider].recorder(tool_names or {})


def provider_of(response: Any) -> Provider:
    """Whose response this is, or whose stream this is the first chunk of. Raises
    `InvalidEventError` if that cannot be told.
    """
    for provider, module in _MODULES.items():
        if module.recognizes(response):
            return provider
    raise InvalidEventError(
        f"a {type(response).__name__} is the response of no known provider: name the provider",
        field="provider",
    )


def validate(messages: Sequence[Message], provider: Provider, *, thinking: bool = False) -> list[Fault]:
    """Everything for which the provider would refuse the ledger; `thinking` says whether it is
    asked to think.
    """
    faults = validate_bedrock(messages, thinking=thinking) if provider == "bedrock" else []
    faults += validate_strict(messages)
    if _MODULES[provider].user_first:
        faults += _order_faults(messages, provider)
    inexpressible = encode(messages, provider, lossy="drop").dropped
    # Blank texts are left out by the encoder, and results without a call are told of above.
    return faults + [
        fault for fault in inexpressible if fault.rule not in ("text-not-blank", "result-has-call")
    ]


def _order_faults(messages: Sequence[Message], provider: Provider) -> list[Fault]:
    spoken = [
        (index, message)
        for index, message in enumerate(messages)
        if message.role != "system" and not all(_is_blank(part) for part in message.parts)
    ]
    faults = []
    if spoken and spoken[0][1].role != "user":
        text = f"{provider}: a conversation begins with a message of the user"
        faults.append(Fault(rule="first-message-user", text=text, message_index=spoken[0][0]))
    for index, message in spoken:
        if message.role == "assistant" and all(
            isinstance(part, ThinkingPart) or _is_blank(part) for part in message.parts
        ):
            text = f"{provider}: a message of the assistant says more than its thinking"
            faults.append(Fault(rule="more-than-thinking", text=text, message_index=index))
    return faults


def _is_blank(part: object) -> bool:
    """Whether the encoder leaves the part out, because it says nothing."""
    return isinstance(part, TextPart) and not part.text.strip()
