"""The shared state of encoders: the current part, legal ids and names, and the parts that cannot be
expressed.

An encoder never reorders parts. It replaces ids and names that the provider would refuse. A longer
ledger with the same beginning gets the same replacements, so a provider's prompt cache still
matches.
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
"""How to treat a part that the request format cannot hold: raise an error, or drop and list it."""


class Limits(NamedTuple):
    """A provider's limits for ids of calls and names of tools."""

    id_illegal: re.Pattern[str] | None
    """Matches each character that an id must not have. None if all characters are allowed."""
    id_max: int
    name_illegal: re.Pattern[str]
    name_max: int
    ids_unique: bool
    """Whether an id is unique in a conversation (True) or in a message (False)."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A ledger as a provider's request.

    `tool_names` and `tool_ids` map the names and ids in `body` to those of the ledger, if they
    differ.
    """

    body: dict[str, Any]
    """The messages of the request. The caller adds model, tools and limits."""
    dropped: list[Fault] = field(default_factory=list)
    """The parts that were omitted."""
    tool_names: dict[str, str] = field(default_factory=dict)
    tool_ids: dict[str, str] = field(default_factory=dict)


class Call(NamedTuple):
    """The id and the name of a call in the request."""

    id: str
    name: str


class Encoding:
    """The state of one encoding. `messages` and `parts` iterate and track the current part."""

    def __init__(self, provider: Provider, limits: Limits, lossy: Lossy) -> None:
        self._provider = provider
        self._limits = limits
        self._lossy = lossy
        self._message_index = self._part_index = 0
        # The calls of the last assistant message, by their id in the ledger.
        self._calls: dict[str, list[Call]] = {}
        self._used_ids = UniqueNames(limits.id_max)
        self._used_names = UniqueNames(limits.name_max)
        self._ids: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.dropped: list[Fault] = []

    def messages(self, messages: Sequence[Message]) -> Iterator[Message]:
        for index, message in enumerate(messages):
            self._message_index, self._part_index = index, 0
            if message.role == "assistant":
                self._calls = {}
                if not self._limits.ids_unique:
                    self._used_ids = UniqueNames(self._limits.id_max)
            yield message

    def parts(self, message: Message) -> Iterator[Part]:
        for index, part in enumerate(message.parts):
            self._part_index = index
            yield part

    def refuse(self, why: str, *, rule: Rule = "inexpressible", tool_use_id: str | None = None) -> None:
        """Raises `InexpressibleError` for the current part, or lists it as dropped."""
        self.leave_out(why, rule=rule, tool_use_id=tool_use_id)
        if self._lossy == "refuse":
            raise InexpressibleError(
                self._provider, why, message_index=self._message_index, part_index=self._part_index
            )

    def leave_out(self, why: str, *, rule: Rule = "inexpressible", tool_use_id: str | None = None) -> None:
        """Lists the current part as dropped without an error, because it has no content that the
        provider would accept.
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

    def provider_data(self, part: Part) -> dict[str, Any]:
        """The data that the part holds for this provider. Empty if there are none."""
        by_provider = getattr(part, "provider_data", None)
        data = by_provider.get(self._provider) if by_provider else None
        return data if isinstance(data, dict) else {}

    def call(self, part: ToolUsePart) -> Call:
        """The call with an id and a name that the provider accepts."""
        limits = self._limits
        legal = _legal(part.id, limits.id_illegal, limits.id_max) or "call"
        tool_id = self._used_ids.claim(legal)
        self._ids[tool_id] = part.id
        call = Call(tool_id, self._name(part.name))
        self._calls.setdefault(part.id, []).append(call)
        return call

    def match_call(self, part: ToolResultPart) -> Call | None:
        """The call that a result answers. Refuses the result and returns None if the message before
        has no such call.
        """
        calls = self._calls.get(part.tool_use_id)
        if not calls:
            self.refuse(
                f"tool_result {part.tool_use_id!r} answers no call of the message before",
                rule="result-has-call",
                tool_use_id=part.tool_use_id,
            )
            return None
        return calls.pop(0) if len(calls) > 1 else calls[0]

    def finish(self, body: dict[str, Any]) -> Encoded:
        """The result of the encoding."""
        return Encoded(
            body,
            dropped=self.dropped,
            tool_names={legal: name for name, legal in self._names.items() if legal != name},
            tool_ids={legal: tool_id for legal, tool_id in self._ids.items() if legal != tool_id},
        )

    def _name(self, name: str) -> str:
        # Equal names stay equal, and different names stay different.
        if name not in self._names:
            limits = self._limits
            legal = _legal(name, limits.name_illegal, limits.name_max) or "tool"
            self._names[name] = self._used_names.claim(legal)
        return self._names[name]


class UniqueNames:
    """Names that must be unique. A name that is used already gets a number as suffix.

    The last number of each name is kept, so that a conversation with equal ids is numbered in
    linear time.
    """

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self._used: set[str] = set()
        self._numbers: dict[str, int] = {}

    def claim(self, name: str) -> str:
        """`name`, or a variant of it that is not used yet. The result counts as used."""
        variant = name
        while variant in self._used:
            number = self._numbers[name] = self._numbers.get(name, 1) + 1
            suffix = f"-{number}"
            variant = name[: self._length_max - len(suffix)] + suffix
        self._used.add(variant)
        return variant


def merge_adjacent(
    messages: Iterable[tuple[Role, list[dict[str, Any]]]],
) -> list[tuple[Role, list[dict[str, Any]]]]:
    """Merges adjacent messages of the same role, for providers whose roles must alternate. Empty
    messages are omitted.
    """
    result: list[tuple[Role, list[dict[str, Any]]]] = []
    for role, blocks in messages:
        if result and result[-1][0] == role:
            result[-1][1].extend(blocks)
        elif blocks:
            result.append((role, list(blocks)))
    return result


def text_of(content: Any) -> str:
    """A result's content as text: a string unchanged, anything else as JSON."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _legal(name: str, illegal: re.Pattern[str] | None, length_max: int) -> str:
    return (illegal.sub("_", name) if illegal else name)[:length_max]
