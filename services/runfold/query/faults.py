"""Validating the messages of a stream, without holding all of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from runfold_projections.providers import validate
from runfold_projections.validation import Fault, validate_strict
from runfold_schemas.messages import Message, Provider, ToolUsePart

Rules = Literal[Provider, "strict"]
Validate = Callable[[Sequence[Message]], list[Fault]]


def rules(name: Rules, *, thinking: bool) -> Validate:
    """The validator of that name. `thinking`: the model is called with thinking on."""
    return validate_strict if name == "strict" else partial(validate, provider=name, thinking=thinking)


class Validation:
    """Finds in a stream of messages the faults that `validate` would find in the whole list.

    The strict rules compare a message with its neighbours only where an assistant's calls meet
    their results. So the list is cut before every message that does not follow calls, and each
    piece is validated alone. A provider's rules need the whole conversation, so it is not cut.
    """

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._in_pieces = validate is validate_strict
        self._piece: list[Message] = []
        self._first_index = 0
        self._faults: list[Fault] = []

    def feed(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self._in_pieces and self._piece and not _has_calls(self._piece[-1]):
                self._cut()
            self._piece.append(message)

    def finish(self) -> list[Fault]:
        """All faults, in the order of the messages."""
        self._cut()
        return self._faults

    def _cut(self) -> None:
        self._faults += [_shift(fault, self._first_index) for fault in self._validate(self._piece)]
        self._first_index += len(self._piece)
        self._piece = []


def _has_calls(message: Message) -> bool:
    return message.role == "assistant" and any(isinstance(part, ToolUsePart) for part in message.parts)


def _shift(fault: Fault, by: int) -> Fault:
    return fault if fault.message_index is None else replace(fault, message_index=fault.message_index + by)
