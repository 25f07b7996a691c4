"""Validates a ledger: all faults for which a provider would refuse its request."""

from collections.abc import Sequence
from typing import Final, TypedDict, Unpack

from runfold_projections.providers.blobs import Blobs
from runfold_projections.providers.model_faults import (
    SentMessages,
    faults_of_end,
    faults_of_thinking,
)
from runfold_projections.providers.models import rules_of
from runfold_projections.providers.open_calls import unanswered_items
from runfold_projections.providers.registry import check_names, check_provider, encode
from runfold_projections.providers.values import is_blank_part
from runfold_projections.validation import Fault, validate_bedrock, validate_strict
from runfold_schemas.messages import Message, Provider, ThinkingPart

_USER_FIRST: Final = frozenset[Provider]({"anthropic", "bedrock", "gemini"})
"""The providers that refuse a conversation that the assistant begins, and a message with nothing
but thinking.
"""


class ValidateOptions(TypedDict, total=False):
    """What a request will be, beside its format."""

    thinking: bool
    """Whether the request turns thinking on. By default False."""
    model: str | None
    """The name of the model that gets the request, whose public rules apply (`models`). Without it,
    a ledger may end with the assistant's answer, which waits for the user.
    """
    maker: str | None
    """The maker of that model, as in `EncodeOptions`."""
    broken_off: bool
    """Whether the last response broke off (`endings`). By default False."""
    blobs: Blobs | None
    """What the ledger refers to, as in `EncodeOptions`."""


_NO_FAULTS: Final = frozenset({"text-not-blank", "not-stored", "result-has-call"})
"""The rules of omitted parts that are no faults of a ledger: providers accept it without the part.
`validate_strict` reports results without a call.
"""


def validate(
    messages: Sequence[Message], provider: Provider, **options: Unpack[ValidateOptions]
) -> list[Fault]:
    """The faults for which the provider would refuse the ledger."""
    check_provider(provider)
    check_names(options, ValidateOptions)
    thinking, model = options.get("thinking", False), options.get("model")
    rules = rules_of(provider, model)
    thinking_first = thinking and rules.thinking_first
    faults = validate_bedrock(messages, thinking=thinking_first) if provider == "bedrock" else []
    faults += validate_strict(messages)
    if provider in _USER_FIRST:
        faults += _order_faults(messages, provider)
    if provider == "openai-responses":
        faults += _item_faults(messages)
    blobs = options.get("blobs") or {}
    request = encode(messages, provider, lossy="drop", model=model, maker=options.get("maker"), blobs=blobs)
    sent = SentMessages(messages, request.omitted)
    broken_off = options.get("broken_off", False)
    if broken_off or model is not None:
        faults += faults_of_end(sent, provider, rules, broken_off=broken_off)
    if thinking_first and provider == "anthropic":
        faults += faults_of_thinking(sent, provider)
    no_faults = _NO_FAULTS | ({"more-than-thinking"} if provider in _USER_FIRST else set())
    return faults + [fault for fault in request.dropped if fault.rule not in no_faults]


def _item_faults(messages: Sequence[Message]) -> list[Fault]:
    return [
        Fault(
            rule="call-has-result",
            text=f"openai-responses: the item of the call {call_id!r} has no output",
            message_index=message_index,
            part_index=part_index,
            tool_use_id=call_id,
        )
        for (message_index, part_index), call_id in unanswered_items(messages)
    ]


def _order_faults(messages: Sequence[Message], provider: Provider) -> list[Fault]:
    visible = [
        (index, message)
        for index, message in enumerate(messages)
        if message.role != "system" and not all(is_blank_part(part) for part in message.parts)
    ]
    faults = []
    if visible and visible[0][1].role != "user":
        text = f"{provider}: a conversation begins with a message of the user"
        faults.append(Fault(rule="first-message-user", text=text, message_index=visible[0][0]))
    for index, message in visible:
        if message.role == "assistant" and all(
            isinstance(part, ThinkingPart) or is_blank_part(part) for part in message.parts
        ):
            text = f"{provider}: a message of the assistant contains more than thinking"
            faults.append(Fault(rule="more-than-thinking", text=text, message_index=index))
    return faults
