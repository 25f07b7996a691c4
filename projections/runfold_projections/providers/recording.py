"""What a provider's response becomes: events in the provider's order, from a whole response or from
its stream.

A provider's module translates its vocabulary into the calls of `Blocks`, and nothing that comes
from a provider raises here: what is unknown is kept as it is, what is wrong is a fault on the
response's last event. A block becomes an event when it is complete; one that the stream broke off
becomes what it can be without breaking the ledger.
"""

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from runfold_schemas.data import MESSAGE_ID_LENGTH_MAX, Data
from runfold_schemas.events import (
    AssistantMessage,
    ProviderPart,
    ResponseRecorded,
    Thinking,
    TokenUsage,
    ToolCall,
)
from runfold_schemas.messages import BASE64_PATTERN, Provider

_BASE64: Final = re.compile(BASE64_PATTERN)

_FAULTS_MAX: Final = 100


class Recorder(Protocol):
    """Makes events of one response of one provider. Use a new one for each response."""

    blocks: "Blocks"
    """What has arrived. `blocks.end()` gives the last events of a stream, also of one that broke
    off.
    """

    def response(self, response: Any) -> Sequence[Data]:
        """The events of a whole response to its end, given as the SDK's object or as decoded
        JSON.
        """

    def feed(self, chunk: Any) -> Sequence[Data]:
        """Takes the next chunk of a stream and gives the blocks that it completes."""


@dataclass(slots=True)
class _Block:
    kind: Literal["text", "thinking", "call", "other"]
    index: int
    pieces: list[str] = field(default_factory=list)
    signature: str = ""
    redacted: str | None = None
    tool_id: str = ""
    name: str = ""
    arguments: Any = None
    """Decoded already, where the provider sends them so; else they are in `pieces`."""
    content: Any = None
    usable: bool = True
    data: dict[str, Any] = field(default_factory=dict)
    """For the provider alone."""


class Blocks:
    """The blocks of a response while they arrive. Keys are the provider's: an index, or an id."""

    def __init__(
        self,
        provider: Provider,
        *,
        tool_names: Mapping[str, str] | None = None,
        has_ids: bool = True,
        arguments_are_text: bool = True,
    ) -> None:
        """`tool_names` is `Encoded.tool_names` of the request.

        `has_ids` says whether the provider's calls have ids, and `arguments_are_text` whether it
        takes the arguments of a call back as text: then their exact text is kept.
        """
        self.provider: Provider = provider
        self._has_ids = has_ids
        self._arguments_are_text = arguments_are_text
        self._message_id: str | None = None
        self.model: str | None = None
        self.stop_reason: str | None = None
        self.faults: list[str] = []
        self.unfinished = False
        """Set while a stream has begun and not said that it ends: then `end` leaves it marked as
        broken off.
        """
        self._tool_names = tool_names or {}
        self._open: dict[Any, _Block] = {}
        self._count = 0
        self._tool_ids: set[str] = set()
        # No model until the end: some providers count anew in each chunk.
        self._usage: dict[str, int] = {}

    @property
    def message_id(self) -> str | None:
        """The provider's id of the response, if it has said one that an event can carry."""
        return self._message_id

    @message_id.setter
    def message_id(self, id_: str | None) -> None:
        if id_ and len(id_) > MESSAGE_ID_LENGTH_MAX:
            self.fault(f"the response's id has more than {MESSAGE_ID_LENGTH_MAX} characters")
            return
        self._message_id = id_

    def text(self, key: Any, text: str, **data: Any) -> None:
        """More text of block `key`, which begins here if it is new. `data` is for the provider
        alone.
        """
        block = self._block(key, "text")
        block.pieces.append(text)
        block.data.update(data)

    def thinking(
        self, key: Any, text: str = "", *, signature: str = "", redacted: str | None = None, **data: Any
    ) -> None:
        """More thinking; a signature grows as the text does. `redacted` is base64 (`is_base64`)."""
        block = self._block(key, "thinking")
        block.pieces.append(text)
        block.signature += whole(signature)
        block.redacted = redacted or block.redacted
        block.data.update(data)

    def call(self, key: Any, *, tool_id: str | None, name: str | None, **data: Any) -> None:
        """A call of a tool begins, or says more of itself."""
        block = self._block(key, "call")
        block.tool_id = whole(tool_id or block.tool_id)
        block.name = whole(name or block.name)
        block.data.update(data)

    def arguments_text(self, key: Any, piece: str) -> None:
        """More of the JSON text of a call's arguments."""
        self._block(key, "call").pieces.append(piece)

    def arguments(self, key: Any, arguments: Any) -> None:
        """A call's arguments, decoded."""
        self._block(key, "call").arguments = arguments

    def other(self, key: Any, content: Any, *, usable: bool = True) -> None:
        """A block that has no word here. One that the provider would not take back is not
        `usable`.
        """
        block = self._block(key, "other")
        block.content, block.usable = content, usable

    def keep(self, key: Any, data: Mapping[str, Any]) -> None:
        """More of the open block `key` that is for the provider alone, under any names."""
        if block := self._open.get(key):
            block.data.update(data)

    def usage(self, **tokens: Any) -> None:
        """What the response cost so far; later figures replace earlier ones."""
        for name, count in tokens.items():
            if isinstance(count, int) and 0 <= count < 2**63:
                self._usage[name] = count

    def fault(self, text: str) -> None:
        """Notes what is wrong. A stream may say the same a thousand times, and a fault is a
        sentence.
        """
        if len(self.faults) < _FAULTS_MAX and (sentence := whole(text)) not in self.faults:
            self.faults.append(sentence)

    def string(self, value: Any) -> str:
        """A text as the provider gave it: "" if it gave none, and a fault if it is no text."""
        if isinstance(value, str):
            return value
        if value is not None:
            self.fault(f"a {type(value).__name__} stands in the place of a text: {value!r:.100}")
        return ""

    def word(self, value: Any) -> str:
        """As `string`, of one that comes whole, unlike the pieces of a stream, which may part a
        character.
        """
        return whole(self.string(value))

    def is_open(self, key: Any) -> bool:
        return key in self._open

    def close(self, key: Any) -> list[Data]:
        """Block `key` is complete: its event. Nothing if it is not open."""
        block = self._open.pop(key, None)
        return [] if block is None else self._event(block)

    def close_all(self) -> list[Data]:
        """Every open block is complete, in the order in which they began."""
        return [data for key in list(self._open) for data in self.close(key)]

    def partial(self) -> list[Data]:
        """The text that has arrived and is no event yet, so that who follows the run sees it
        grow.
        """
        events: list[Data] = []
        for block in self._open.values():
            text = whole("".join(block.pieces)) if block.kind == "text" else ""
            if text:
                events.append(AssistantMessage(message=text, content_index=block.index))
                block.pieces.clear()
        return events

    def end(self, *, finished: bool = True) -> list[Data]:
        """The response has ended, or broken off: what is left of its blocks, what it cost, and its
        last event.
        """
        finished = finished and not self.unfinished
        events = self.close_all() if finished else self._broken_off()
        if self._usage:
            named = {"model": self.model} if self.model else {}
            events.append(TokenUsage.model_validate({**self._usage, **named}))
        end = {"model": self.model, "stop_reason": self.stop_reason, "faults": tuple(self.faults)}
        given = {name: value for name, value in end.items() if value}
        events.append(ResponseRecorded(**given) if finished else ResponseRecorded(**given, finished=False))
        return events

    def _block(self, key: Any, kind: Literal["text", "thinking", "call", "other"]) -> _Block:
        block = self._open.get(key)
        if block is None:
            block = self._open[key] = _Block(kind, self._count)
            self._count += 1
        return block

    def _event(self, block: _Block) -> list[Data]:
        match block.kind:
            case "text":
                return self._text(block)
            case "thinking":
                return [self._thinking(block)]
            case "call":
                return [self._call(block)]
            case "other":
                finished = {} if block.usable else {"finished": False}
                return [ProviderPart(content=block.content, content_index=block.index, **finished)]

    def _broken_off(self) -> list[Data]:
        events: list[Data] = []
        for block in self._open.values():
            match block.kind:
                case "text":
                    events += self._text(block)
                case "thinking":
                    # Not signed, so no part of the ledger.
                    events.append(Thinking(text=whole("".join(block.pieces)), content_index=block.index))
                case "call":
                    self.fault(f"the call of {block.name!r} broke off in its arguments")
                    content = {"tool_call_id": block.tool_id, "tool_name": block.name}
                    content["arguments"] = whole("".join(block.pieces))
                    events.append(ProviderPart(content=content, content_index=block.index, finished=False))
                case "other":
                    events.append(
                        ProviderPart(content=block.content, content_index=block.index, finished=False)
                    )
        self._open.clear()
        return events

    def _text(self, block: _Block) -> list[Data]:
        text = whole("".join(block.pieces))
        if not text and not block.data:
            return []
        message = AssistantMessage(message=text, content_index=block.index, **self._provider_data(block))
        return [message]

    def _thinking(self, block: _Block) -> Thinking:
        given: dict[str, Any] = {"content_index": block.index, "final": True}
        if block.redacted:
            given["redacted"] = block.redacted
        else:
            given |= {"text": whole("".join(block.pieces)), "signature": block.signature}
        return Thinking(**given, **self._provider_data(block))

    def _call(self, block: _Block) -> ToolCall:
        payload = block.arguments
        if payload is None:
            text = whole("".join(block.pieces))
            payload = self._parsed(text, block)
            if (
                self._arguments_are_text
                and json.dumps(payload, ensure_ascii=False, separators=(",", ":")) != text
            ):
                block.data["arguments"] = text
        tool_id = block.tool_id
        if not tool_id:
            tool_id = f"{self.message_id or 'call'}-{block.index}"
            if self._has_ids:
                self.fault(f"the call of {block.name!r} has no id: it got {tool_id!r}")
        elif tool_id in self._tool_ids:
            self.fault(f"two calls have the id {tool_id!r}")
        self._tool_ids.add(tool_id)
        return ToolCall(
            tool_call_id=tool_id,
            tool_name=self._tool_names.get(block.name, block.name),
            payload=payload,
            **self._provider_data(block),
        )

    def _parsed(self, text: str, block: _Block) -> Any:
        try:
            payload = json.loads(text) if text else {}
            # No event carries NaN, infinity or half a surrogate pair, all of which Python's parser
            # takes.
            json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            self.fault(f"the arguments of {block.name!r} are no JSON")
            return text
        return payload

    def _provider_data(self, block: _Block) -> dict[str, Any]:
        return {"provider_data": {self.provider: block.data}} if block.data else {}


_NOTHING: Final[Mapping[str, Any]] = {}


def get(value: Any, *names: str) -> Any:
    """The first of these members that is there and not null, of an SDK's object or of decoded
    JSON.
    """
    # Every chunk of a stream comes through here, and both pydantic's own lookup and a test for
    # `Mapping` take a while.
    members = value if isinstance(value, dict) else getattr(value, "__dict__", _NOTHING)
    for name in names:
        found = members.get(name)
        if found is None and members is not value and name not in members:
            found = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if found is not None:
            return found
    return None


def plain(value: Any) -> Any:
    """An SDK's object as decoded JSON that an event can carry; bytes are base64, as on the wire."""
    if hasattr(value, "model_dump"):
        # An SDK takes what it does not know into fields of other types, and pydantic would warn of
        # them.
        return plain(value.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False))
    match value:
        case Mapping():
            return {whole(str(name)): plain(member) for name, member in value.items()}
        case list() | tuple():
            return [plain(member) for member in value]
        case str():
            return whole(value)
        case bytes() | bytearray():
            return b64encode(value).decode()
        case float() if not math.isfinite(value):
            return str(value)
        case int() | float() | None:
            return value
        case _:
            return str(value)


def whole(text: str) -> str:
    """The text in which halves of a surrogate pair are one character again, as streams part them;
    lone ones are replaced.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_base64(value: Any) -> bool:
    """Whether this is base64 as our events take it."""
    return isinstance(value, str) and _BASE64.fullmatch(value) is not None
