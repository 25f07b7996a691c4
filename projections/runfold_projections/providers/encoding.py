"""What the encoders share: where they are, how ids and names are made legal, and what happens to
the inexpressible.

An encoder never reorders. Ids and names that its provider would refuse are mapped, the same way for
every longer ledger that begins like this one, so a provider's cache of a prompt's beginning still
fits.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from runfold_projections.validation import Fault, Rule
from runfold_schemas.errors import InexpressibleError
from runfold_schemas.messages import Message, Part, Provider, Role, ToolResultPart, ToolUsePart

Lossy = Literal["refuse", "drop"]
"""What becomes of a part that the provider cannot express: an error, or a drop that is listed."""


class Limits(NamedTuple):
    """What a provider takes as the id of a call and as the name of a tool."""

    id_illegal: re.Pattern[str] | None
    """Matches each character that an id must not have; None where any is taken."""
    id_max: int
    name_illegal: re.Pattern[str]
    name_max: int
    ids_unique: bool
    """Whether an id may be used once in a conversation, or once in a message."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A ledger as a provider's request.

    `tool_names` and `tool_ids` lead from what stands in `body` back to the ledger's own, where the
    two differ.
    """

    body: dict[str, Any]
    """The part of the request that the ledger decides; model, tools and limits are the caller's to
    add.
    """
    dropped: list[Fault] = field(default_factory=list)
    tool_names: dict[str, str] = field(default_factory=dict)
    tool_ids: dict[str, str] = field(default_factory=dict)


class Call(NamedTuple):
    """A call as it stands in the request."""

    id: str
    name: str


class Encoding:
    """The state of one encoding. Walk with `messages` and `parts`, so that it knows where it is."""

    def __init__(self, provider: Provider, limits: Limits, lossy: Lossy) -> None:
        self._provider = provider
        self._limits = limits
        self._lossy = lossy
        self._message_index = self._part_index = 0
        # What the last assistant message called, by its id in the ledger.
        self._called: dict[str, list[Call]] = {}
        self._used_ids = Used(limits.id_max)
        self._used_names = Used(limits.name_max)
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.dropped: list[Fault] = []

    def messages(self, messages: Sequence[Message]) -> Iterator[Message]:
        for index, message in enumerate(messages):
            self._message_index, self._part_index = index, 0
            if message.role == "assistant":
                self._called = {}
                if not self._limits.ids_unique:
                    self._used_ids = Used(self._limits.id_max)
            yield message

    def parts(self, message: Message) -> Iterator[Part]:
        for index, part in enumerate(message.parts):
            self._part_index = index
            yield part

    def refuse(self, why: str, *, rule: Rule = "inexpressible", tool_use_id: str | None = None) -> None:
        """This part cannot be expressed: raises `InexpressibleError`, or notes that it is
        dropped.
        """
        self.leave_out(why, rule=rule, tool_use_id=tool_use_id)
        if self._lossy == "refuse":
            raise InexpressibleError(
                self._provider, why, message_index=self._message_index, part_index=self._part_index
            )

    def leave_out(self, why: str, *, rule: Rule = "inexpressible", tool_use_id: str | None = None) -> None:
        """Notes that this part is left out although that is no error: it says nothing that the
        provider would take.
        """
        self.dropped.append(
            Fault(
                rule=rule,
                text=f"{self._provider}: {why}",
                message_index=self._message_index,
                part_index=self._part_index,
                tool_use_id=tool_use_id,
            )
        )

    def own(self, part: Part) -> dict[str, Any]:
        """What the part carries for this provider; empty where it carries nothing."""
        data = getattr(part, "provider_data", None)
        own = data.get(self._provider) if data else None
        return own if isinstance(own, dict) else {}

    def call(self, part: ToolUsePart) -> Call:
        """The call under an id and a name that the provider takes."""
        limits = self._limits
        legal = _legal(part.id, limits.id_illegal, limits.id_max) or "call"
        tool_id = self._used_ids.unused(legal)
        self._ids[tool_id] = part.id
        call = Call(tool_id, self._name(part.name))
        self._called.setdefault(part.id, []).append(call)
        return call

    def answered(self, part: ToolResultPart) -> Call | None:
        """The call that a result answers; None, and `refuse`d, if there is none right before it."""
        calls = self._called.get(part.tool_use_id)
        if not calls:
            self.refuse(
                f"tool_result {part.tool_use_id!r} answers no call of the message before",
                rule="result-has-call",
                tool_use_id=part.tool_use_id,
            )
            return None
        return calls.pop(0) if len(calls) > 1 else calls[0]

    def encoded(self, body: dict[str, Any]) -> Encoded:
        return Encoded(
            body,
            dropped=self.dropped,
            tool_names={legal: name for name, legal in self._names.items() if legal != name},
            tool_ids={legal: tool_id for legal, tool_id in self._ids.items() if legal != tool_id},
        )

    def _name(self, name: str) -> str:
        # One name becomes the same everywhere, and two never become one.
        if name not in self._names:
            limits = self._limits
            legal = _legal(name, limits.name_illegal, limits.name_max) or "tool"
            self._names[name] = self._used_names.unused(legal)
        return self._names[name]


class Used:
    """Names that may be used once: one that is used already gets a number behind it.

    The last number of each is kept: a conversation whose ids all say the same is numbered in linear
    time.
    """

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}

    def unused(self, name: str) -> str:
        other = name
        while other in self._used:
            number = self._numbers[name] = self._numbers.get(name, 1) + 1
            suffix = f"-{number}"
            other = name[: self._length_max - len(suffix)] + suffix
        self._used.add(other)
        return other


def joined(messages: Iterable[tuple[Role, list[dict[str, Any]]]]) -> list[tuple[Role, list[dict[str, Any]]]]:
    """Adjacent messages of one role as one, for providers that demand that roles alternate. Empty
    ones are left out.
    """
    result: list[tuple[Role, list[dict[str, Any]]]] = []
    for role, blocks in messages:
        if result and result[-1][0] == role:
            result[-1][1].extend(blocks)
        elif blocks:
            result.append((role, list(blocks)))
    return result


def text_of(content: Any) -> str:
    """A result's content for a provider that takes text alone: a text as it is, anything else as
    JSON.
    """
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _legal(name: str, illegal: re.Pattern[str] | None, length_max: int) -> str:
    return (illegal.sub("_", name) if illegal else name)[:length_max]
