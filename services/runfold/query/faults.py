"""Validating messages on their way out, without holding all of them."""

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
    """The validator of that name. `thinking` says whether the model is called with thinking on."""
    return validate_strict if name == "strict" else partial(validate, provider=name, thinking=thinking)


class Validation:
    """Finds in a stream of messages what `validate` would find in the whole list.

    By the strict rules a message is judged by its neighbours only where an assistant's calls meet
    their results. So the list can be cut before every message that does not follow calls, and the
    pieces validated one by one. A provider's rules look at the conversation as a whole.
    """

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._in_pieces = validate is validate_strict
        self._piece: list[Message] = []
        self._first_index = 0
        self._faults: list[Fault] = []

    def feed(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self._in_pieces and self._piece and not _calls(self._piece[-1]):
                self._cut()
            self._piece.append(message)

    def finish(self) -> list[Fault]:
        """Everything that was found, in the order of the messages."""
        self._cut()
        return self._faults

    def _cut(self) -> None:
        self._faults += [_moved(fault, self._first_index) for fault in self._validate(self._piece)]
        self._first_index += len(self._piece)
        self._piece = []


def _calls(message: Message) -> bool:
    return message.role == "assistant" and any(isinstance(part, ToolUsePart) for part in message.parts)


def _moved(fault: Fault, by: int) -> Fault:
    return fault if fault.message_index is None else replace(fault, message_index=fault.message_index + by)
