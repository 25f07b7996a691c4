"""The providers by name, and the functions that choose a provider."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Unpack, get_args

from runfold_projections.providers import anthropic, bedrock, gemini, openai_chat, openai_responses
from runfold_projections.providers.encoding import Encoded, EncodeOptions, Lossy
from runfold_projections.providers.guarding import GuardedRecorder
from runfold_projections.providers.recording import Recorder
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.messages import Message, Provider


class _Module(NamedTuple):
    encode: Callable[[Sequence[Message], EncodeOptions], Encoded]
    recorder: Callable[[Mapping[str, str]], Recorder]
    recognizes: Callable[[Any], bool]
    """Whether a value is a response of the provider, or a chunk of a stream."""


_MODULES: Final[Mapping[Provider, _Module]] = {
    "bedrock": _Module(bedrock.encode, bedrock.BedrockRecorder, bedrock.recognizes),
    "anthropic": _Module(anthropic.encode, anthropic.AnthropicRecorder, anthropic.recognizes),
    "openai-chat": _Module(openai_chat.encode, openai_chat.ChatRecorder, openai_chat.recognizes),
    "openai-responses": _Module(
        openai_responses.encode, openai_responses.ResponsesRecorder, openai_responses.recognizes
    ),
    "gemini": _Module(gemini.encode, gemini.GeminiRecorder, gemini.recognizes),
}


_PROVIDER_NAMES: Final = f"The providers are {', '.join(_MODULES)}"


def encode(messages: Sequence[Message], provider: Provider, **options: Unpack[EncodeOptions]) -> Encoded:
    """The ledger as the provider's request. Raises `InexpressibleError` for a part that the request
    cannot hold, unless `lossy` is "drop". Raises what `check_options` raises.
    """
    check_provider(provider)
    check_options(options)
    return _MODULES[provider].encode(messages, options)


def check_provider(provider: object, *, field: str = "provider") -> None:
    """Raises `InvalidEventError` for a name that no provider has."""
    if not isinstance(provider, str) or provider not in _MODULES:
        raise InvalidEventError(f"{provider!r:.100} is no provider: {_PROVIDER_NAMES}", field=field)


def check_options(options: Mapping[str, Any]) -> None:
    """Raises `TypeError` for an option of another name than those of `EncodeOptions`, and
    `InvalidEventError` for a wrong value of `lossy`.
    """
    check_names(options, EncodeOptions)
    if options.get("lossy", "refuse") not in get_args(Lossy):
        values = " or ".join(map(repr, get_args(Lossy)))
        raise InvalidEventError(f"lossy is {values}, not {options['lossy']!r:.100}", field="lossy")


def check_names(options: Mapping[str, Any], fields: Any) -> None:
    """Raises `TypeError` for an option that `fields`, a `TypedDict` of options, does not have."""
    names = fields.__required_keys__ | fields.__optional_keys__
    if unknown := sorted(options.keys() - names):
        raise TypeError(f"unknown option {unknown[0]!r}: the options are {', '.join(sorted(names))}")


def recorder(provider: Provider, *, tool_names: Mapping[str, str] | None = None) -> Recorder:
    """A recorder for one response. `tool_names` is `Encoded.tool_names` of the request. It raises
    no error, whatever it is given.
    """
    check_provider(provider)
    return GuardedRecorder(_MODULES[provider].recorder(tool_names or {}))


def provider_of(response: Any) -> Provider:
    """The provider of a response, or of the first chunk of a stream. Raises `InvalidEventError` for
    a value of an unknown form, for example the error that a provider sent instead of a response.
    """
    for provider, module in _MODULES.items():
        # An object of the caller may raise anything when its members are read.
        with suppress(Exception):
            if module.recognizes(response):
                return provider
    if isinstance(response, Mapping) and "error" in response:
        form, cure = "an error", "the provider sent it instead of a response"
    else:
        form, cure = f"a value of the type {type(response).__name__}", "name the provider"
    why = f"{form} is not the response of a known provider: {cure}"
    raise InvalidEventError(f"{why}. {_PROVIDER_NAMES}", field="provider")


def mistaken_provider(response: Any, provider: Provider) -> Provider | None:
    """The provider of a response that does not have the form of the given provider. None if it has,
    or if its form is unknown.
    """
    with suppress(Exception):
        other = provider_of(response)
        return None if other == provider or _MODULES[provider].recognizes(response) else other
    return None
