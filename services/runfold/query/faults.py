"""Validating the messages of a stream, without holding all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Unpack

from runfold_projections.providers import ValidateOptions, validate
from runfold_projections.providers.blobs import Blobs
from runfold_projections.validation import Fault, validate_strict
from runfold_schemas.messages import Message, Provider, ToolUsePart

RulesName = Literal[Provider, "strict"]


@dataclass(frozen=True)
class Rules:
    """The rules that a ledger is validated by: those of a provider, or the strict rules, which need
    no options.
    """

    name: RulesName
    options: ValidateOptions

    @property
    def provider(self) -> Provider | None:
        """The provider whose rules these are. None for the strict rules."""
        return None if self.name == "strict" else self.name

    @property
    def maker(self) -> str | None:
        """The maker of the model that gets the request, if the caller named it."""
        return self.options.get("maker")

    def with_options(self, **options: Unpack[ValidateOptions]) -> "Rules":
        """The same rules for a ledger or a request with these options too."""
        return Rules(self.name, {**self.options, **options})

    def faults(self, messages: Sequence[Message]) -> list[Fault]:
        """The faults of a whole ledger."""
        if self.provider is None:
            return validate_strict(messages)
        return validate(messages, self.provider, **self.options)


class Validation:
    """Finds in a stream of messages the faults that `rules` would find in the whole list.

    The strict rules compare a message with its neighbours only where an assistant's calls meet
    their results. So the list is cut before every message that does not follow calls, and each
    piece is validated alone. A provider's rules need the whole conversation, so it is not cut.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._in_pieces = rules.provider is None
        self._piece: list[Message] = []
        self._first_index = 0
        self._faults: list[Fault] = []

    def feed(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self._in_pieces and self._piece and not _has_calls(self._piece[-1]):
                self._cut()
            self._piece.append(message)

    def finish(self, blobs: Blobs | None = None, *, broken_off: bool = False) -> list[Fault]:
        """All faults, in the order of the messages. `blobs` has what the messages refer to, and
        `broken_off` says whether the last response broke off.
        """
        self._rules = self._rules.with_options(broken_off=broken_off, blobs=blobs or None)
        self._cut()
        return self._faults

    def _cut(self) -> None:
        self._faults += [_shift(fault, self._first_index) for fault in self._rules.faults(self._piece)]
        self._first_index += len(self._piece)
        self._piece = []


def _has_calls(message: Message) -> bool:
    return message.role == "assistant" and any(isinstance(part, ToolUsePart) for part in message.parts)


def _shift(fault: Fault, by: int) -> Fault:
    return fault if fault.message_index is None else replace(fault, message_index=fault.message_index + by)
