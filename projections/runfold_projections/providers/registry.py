"""The providers by name, and the functions that choose a provider."""

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
    """Whether a value is a response of the provider, or a chunk of a stream."""
    user_first: bool
    """Whether the provider refuses a conversation that the assistant begins, and a message with
    nothing but thinking.
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
    """The ledger as the provider's request. Raises `InexpressibleError` for a part that the request
    format cannot hold, unless `lossy` is "drop".
    """
    return _MODULES[provider].encode(messages, lossy)


def recorder(provider: Provider, *, tool_names: Mapping[str, str] | None = None) -> Recorder:
    """A recorder for one response. `tool_names` is `Encoded.tool_names` of the request."""
    return _MODULES[provider].recorder(tool_names or {})


def provider_of(response: Any) -> Provider:
    """The provider of a response, or of the first chunk of a stream. Raises `InvalidEventError` for
    a value of an unknown form.
    """
    for provider, module in _MODULES.items():
        if module.recognizes(response):
            return provider
    raise InvalidEventError(
        f"a {type(response).__name__} is not the response of a known provider: name the provider",
        field="provider",
    )


def validate(messages: Sequence[Message], provider: Provider, *, thinking: bool = False) -> list[Fault]:
    """The faults for which the provider would refuse the ledger. `thinking` says whether the
    request turns thinking on.
    """
    faults = validate_bedrock(messages, thinking=thinking) if provider == "bedrock" else []
    faults += validate_strict(messages)
    if _MODULES[provider].user_first:
        faults += _order_faults(messages, provider)
    inexpressible = encode(messages, provider, lossy="drop").dropped
    # The encoder omits blank texts, and `validate_strict` reports results without a call.
    return faults + [
        fault for fault in inexpressible if fault.rule not in ("text-not-blank", "result-has-call")
    ]


def _order_faults(messages: Sequence[Message], provider: Provider) -> list[Fault]:
    visible = [
        (index, message)
        for index, message in enumerate(messages)
        if message.role != "system" and not all(_is_blank(part) for part in message.parts)
    ]
    faults = []
    if visible and visible[0][1].role != "user":
        text = f"{provider}: a conversation begins with a message of the user"
        faults.append(Fault(rule="first-message-user", text=text, message_index=visible[0][0]))
    for index, message in visible:
        if message.role == "assistant" and all(
            isinstance(part, ThinkingPart) or _is_blank(part) for part in message.parts
        ):
            text = f"{provider}: a message of the assistant contains more than thinking"
            faults.append(Fault(rule="more-than-thinking", text=text, message_index=index))
    return faults


def _is_blank(part: object) -> bool:
    """Whether the part is blank text, which the encoder omits."""
    return isinstance(part, TextPart) and not part.text.strip()
