"""Calls among the opaque parts of a ledger that have no result, whoever executes them."""

from collections.abc import Iterator, Sequence

from runfold_projections.providers.openai_responses_tools import opaque_answer_id, opaque_call_id
from runfold_projections.providers.server_tools import refused_server_blocks
from runfold_projections.validation import Rule
from runfold_schemas.messages import Message, OpaquePart

PartPlace = tuple[int, int]
"""The indexes of a message and of a part."""


def refused_blocks(messages: Sequence[Message]) -> Iterator[tuple[PartPlace, Rule]]:
    """The calls of providers' own tools without their result, and the results without their call,
    for the model with the strictest rules.
    """
    for provider in ("anthropic", "bedrock"):
        refused = refused_server_blocks(messages, provider, instructions_within=False)
        yield from refused.rules.items()


def unanswered_items(messages: Sequence[Message]) -> Iterator[tuple[PartPlace, str]]:
    """The opaque items of the Responses API that the caller executes and that have no output, with
    the ids of the calls.
    """
    opaque = [
        ((index, at), part.content)
        for index, message in enumerate(messages)
        for at, part in enumerate(message.parts)
        if isinstance(part, OpaquePart) and part.provider == "openai-responses"
    ]
    answered = {opaque_answer_id(item) for _, item in opaque}
    for place, item in opaque:
        call_id = opaque_call_id(item)
        if call_id is not None and call_id not in answered:
            yield place, call_id
