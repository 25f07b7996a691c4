"""Turns a provider's response, whole or streamed, into events in the provider's order.

The module of a provider translates the response into calls of `Blocks`. No response raises an error
here: unknown blocks are kept unchanged, and defects become faults of the response's last event. A
complete block becomes an event. If the stream breaks off, an incomplete block becomes an event that
does not break the ledger.
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
    """Makes events of one response of one provider. Use a new recorder for each response."""

    blocks: "Blocks"
    """The blocks so far. `blocks.end()` returns the last events of a stream, also if it broke off.
    """

    def response(self, response: Any) -> Sequence[Data]:
        """The events of a whole response, which is an object of the SDK or decoded JSON."""

    def feed(self, chunk: Any) -> Sequence[Data]:
        """Takes the next chunk of a stream. Returns the events of the blocks that it completes."""


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
    """The arguments, if the provider sends them decoded. Otherwise their text is in `pieces`."""
    content: Any = None
    usable: bool = True
    data: dict[str, Any] = field(default_factory=dict)
    """Data for this provider only."""


class Blocks:
    """The blocks of a response while they arrive. Keys are the provider's indexes or ids."""

    def __init__(
        self,
        provider: Provider,
        *,
        tool_names: Mapping[str, str] | None = None,
        has_ids: bool = True,
        arguments_are_text: bool = True,
    ) -> None:
        """`tool_names` is `Encoded.tool_names` of the request.

        `has_ids` says whether the provider's calls have ids. `arguments_are_text` says whether
        requests hold the arguments of a call as text; then their exact text is kept.
        """
        self.provider: Provider = provider
        self._has_ids = has_ids
        self._arguments_are_text = arguments_are_text
        self._message_id: str | None = None
        self.model: str | None = None
        self.stop_reason: str | None = None
        self.faults: list[str] = []
        self.unfinished = False
        """True while a stream has begun and not announced its end. Then `end` marks the response as
        broken off.
        """
        self._tool_names = tool_names or {}
        self._open: dict[Any, _Block] = {}
        self._count = 0
        self._tool_ids: set[str] = set()
        # Kept until the end, because some providers count again in each chunk.
        self._usage: dict[str, int] = {}

    @property
    def message_id(self) -> str | None:
        """The provider's id of the response, if an event can hold it."""
        return self._message_id

    @message_id.setter
    def message_id(self, id_: str | None) -> None:
        if id_ and len(id_) > MESSAGE_ID_LENGTH_MAX:
            self.fault(f"the response's id has more than {MESSAGE_ID_LENGTH_MAX} characters")
            return
        self._message_id = id_

    def text(self, key: Any, text: str, **data: Any) -> None:
        """Adds text to block `key`, which begins with the first call. `data` is for this provider
        only.
        """
        block = self._block(key, "text")
        block.pieces.append(text)
        block.data.update(data)

    def thinking(
        self, key: Any, text: str = "", *, signature: str = "", redacted: str | None = None, **data: Any
    ) -> None:
        """Adds thinking, with text and signature in pieces. `redacted` is base64 (`is_base64`)."""
        block = self._block(key, "thinking")
        block.pieces.append(text)
        block.signature += whole(signature)
        block.redacted = redacted or block.redacted
        block.data.update(data)

    def call(self, key: Any, *, tool_id: str | None, name: str | None, **data: Any) -> None:
        """Begins a call of a tool, or adds to it."""
        block = self._block(key, "call")
        block.tool_id = whole(tool_id or block.tool_id)
        block.name = whole(name or block.name)
        block.data.update(data)

    def arguments_text(self, key: Any, piece: str) -> None:
        """Adds a piece of the JSON text of a call's arguments."""
        self._block(key, "call").pieces.append(piece)

    def arguments(self, key: Any, arguments: Any) -> None:
        """Sets a call's arguments, decoded."""
        self._block(key, "call").arguments = arguments

    def other(self, key: Any, content: Any, *, usable: bool = True) -> None:
        """Sets a block of an unknown kind. `usable` says whether the provider would accept the
        block in a request.
        """
        block = self._block(key, "other")
        block.content, block.usable = content, usable

    def keep(self, key: Any, data: Mapping[str, Any]) -> None:
        """Adds data for this provider only to the open block `key`."""
        if block := self._open.get(key):
            block.data.update(data)

    def usage(self, **tokens: Any) -> None:
        """Sets the number of tokens so far. Later numbers replace earlier numbers."""
        for name, count in tokens.items():
            if isinstance(count, int) and 0 <= count < 2**63:
                self._usage[name] = count

    def fault(self, text: str) -> None:
        """Adds a fault, a sentence. Repeated faults are ignored, because a stream may repeat a
        defect often.
        """
        if len(self.faults) < _FAULTS_MAX and (sentence := whole(text)) not in self.faults:
            self.faults.append(sentence)

    def string(self, value: Any) -> str:
        """`value` if it is a string. Otherwise "", with a fault unless it is None."""
        if isinstance(value, str):
            return value
        if value is not None:
            self.fault(f"a {type(value).__name__} instead of a text: {value!r:.100}")
        return ""

    def word(self, value: Any) -> str:
        """The same as `string` for a text that is not split into pieces. Pieces may split a
        character.
        """
        return whole(self.string(value))

    def is_open(self, key: Any) -> bool:
        return key in self._open

    def close(self, key: Any) -> list[Data]:
        """Ends block `key` and returns its event. Returns nothing if the block is not open."""
        block = self._open.pop(key, None)
        return [] if block is None else self._event(block)

    def close_all(self) -> list[Data]:
        """Ends all open blocks, in the order in which they began."""
        return [data for key in list(self._open) for data in self.close(key)]

    def partial(self) -> list[Data]:
        """Events for the text that has arrived so far, so that followers of the run see it grow."""
        events: list[Data] = []
        for block in self._open.values():
            text = whole("".join(block.pieces)) if block.kind == "text" else ""
            if text:
                events.append(AssistantMessage(message=text, content_index=block.index))
                block.pieces.clear()
        return events

    def end(self, *, finished: bool = True) -> list[Data]:
        """Ends the response, or marks it as broken off. Returns the events of the open blocks, the
        token usage and the last event.
        """
        finished = finished and not self.unfinished
        events = self.close_all() if finished else self._broken_off()
        if self._usage:
            model = {"model": self.model} if self.model else {}
            events.append(TokenUsage.model_validate({**self._usage, **model}))
        members = {"model": self.model, "stop_reason": self.stop_reason, "faults": tuple(self.faults)}
        fields = {name: value for name, value in members.items() if value}
        events.append(ResponseRecorded(**fields) if finished else ResponseRecorded(**fields, finished=False))
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
                    # Without its signature, so the ledger omits it.
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
        fields: dict[str, Any] = {"content_index": block.index, "final": True}
        if block.redacted:
            fields["redacted"] = block.redacted
        else:
            fields |= {"text": whole("".join(block.pieces)), "signature": block.signature}
        return Thinking(**fields, **self._provider_data(block))

    def _call(self, block: _Block) -> ToolCall:
        payload = block.arguments
        if payload is None:
            text = whole("".join(block.pieces))
            payload = self._parse_arguments(text, block)
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

    def _parse_arguments(self, text: str, block: _Block) -> Any:
        try:
            payload = json.loads(text) if text else {}
            # Python's parser accepts NaN, infinity and halves of surrogate pairs, which events
            # cannot hold.
            json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            self.fault(f"the arguments of {block.name!r} are not JSON")
            return text
        return payload

    def _provider_data(self, block: _Block) -> dict[str, Any]:
        return {"provider_data": {self.provider: block.data}} if block.data else {}


_NOTHING: Final[Mapping[str, Any]] = {}


def get(value: Any, *names: str) -> Any:
    """The first of these members that is present and not null, of an SDK's object or of decoded
    JSON.
    """
    # Every chunk of a stream passes here, and both pydantic's own lookup and a test for `Mapping`
    # are slow.
    members = value if isinstance(value, dict) else getattr(value, "__dict__", _NOTHING)
    for name in names:
        member = members.get(name)
        if member is None and members is not value and name not in members:
            member = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if member is not None:
            return member
    return None


def plain(value: Any) -> Any:
    """An SDK's object as decoded JSON that an event can hold. Bytes become base64."""
    if hasattr(value, "model_dump"):
        # An SDK puts unknown data into fields of other types, of which pydantic would warn.
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
    """`text` with split surrogate pairs joined, because streams may split them. Lone halves are
    replaced.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_base64(value: Any) -> bool:
    """Whether `value` is base64 in the form that events accept."""
    return isinstance(value, str) and _BASE64.fullmatch(value) is not None
