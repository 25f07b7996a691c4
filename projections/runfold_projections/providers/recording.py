"""Turns a provider's response, whole or streamed, into events in the provider's order.

The module of a provider translates the response into calls of `Blocks`. No response raises an error
here: unknown blocks are kept unchanged, and defects become faults of the response's last event. A
complete block becomes an event. If the stream breaks off, an incomplete block becomes an event that
does not break the ledger.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Final, Literal, Protocol

from runfold_projections.providers.beside import plain_members
from runfold_projections.providers.refusals import is_refusal
from runfold_projections.providers.token_counts import UsageReader
from runfold_projections.providers.values import is_deep
from runfold_schemas.data import MESSAGE_ID_LENGTH_MAX, Data
from runfold_schemas.events import (
    AssistantMessage,
    ProviderPart,
    ResponseRecorded,
    Thinking,
    ToolCall,
)
from runfold_schemas.messages import Citation, Provider
from runfold_schemas.usage import TokenUsage
from runfold_schemas.whole_texts import whole, whole_value

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
    complete: bool = True
    refusal: bool = False
    citations: tuple[Citation, ...] = ()
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
        self._response_id: str | None = None
        self.model: str | None = None
        self.named_model: str | None = None
        """The name of the model that the caller gives, for a response without one."""
        self.stop_reason: str | None = None
        self.faults: list[str] = []
        self.unfinished = False
        """True while a stream has begun and not announced its end. Then `end` marks the response as
        broken off.
        """
        self._tool_names = tool_names or {}
        self._open: dict[Any, _Block] = {}
        # The complete blocks behind an open text, and the texts that began, as heaps by index: a
        # response may have 100,000 blocks.
        self._waiting: list[tuple[int, _Block]] = []
        self._texts: list[int] = []
        self._closed_texts: set[int] = set()
        # The events of blocks that are complete, until `take` returns them.
        self._complete: list[Data] = []
        self._count = 0
        self._tool_ids: set[str] = set()
        self._tokens = UsageReader(provider)
        self._has_refused = False
        self._beside: dict[str, Any] = {}
        self._next_request: dict[str, Any] = {}

    @property
    def response_id(self) -> str | None:
        """The provider's id of the response, if an event can hold it."""
        return self._response_id

    @response_id.setter
    def response_id(self, id_: str | None) -> None:
        if id_ and len(id_) > MESSAGE_ID_LENGTH_MAX:
            self.fault(f"the response's id has more than {MESSAGE_ID_LENGTH_MAX} characters")
            return
        self._response_id = id_

    def text(self, key: Any, text: str, **data: Any) -> None:
        """Adds text to block `key`, which begins with the first call. `data` is for this provider
        only.
        """
        block = self._block(key, "text")
        block.pieces.append(text)
        block.data.update(data)

    def refuse(self, key: Any) -> None:
        """Marks the open text `key` as a refusal, and the response as refused."""
        self._has_refused = True
        if block := self._open.get(key):
            block.refusal = True

    def cite(self, key: Any, citations: Iterable[Citation]) -> None:
        """Sets the sources of the open text `key`, in the common form."""
        if block := self._open.get(key):
            block.citations = tuple(citations)

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

    def name_of(self, key: Any) -> str:
        """The name of the tool that the open call `key` calls, "" if it has not come yet."""
        return self._block(key, "call").name

    def has_arguments(self, key: Any) -> bool:
        """Whether the arguments of the open call `key` have begun."""
        return any((block := self._block(key, "call")).pieces) or block.arguments is not None

    def has_whole_arguments(self, key: Any) -> bool:
        """Whether the arguments of the open call `key` are the whole text of a JSON object."""
        pieces = self._block(key, "call").pieces
        if not pieces or not pieces[-1].rstrip().endswith("}"):
            return False
        try:
            return isinstance(json.loads("".join(pieces)), dict)
        except (ValueError, RecursionError):
            return False

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

    def usage(self, usage: Any) -> None:
        """Takes the provider's object of counts. Later numbers replace earlier numbers."""
        self._tokens.take(usage)

    def beside(self, members: Mapping[str, Any]) -> None:
        """Adds what stands beside the content of the response, as decoded JSON or objects of an
        SDK. Later members replace earlier members of the same name.
        """
        self._beside.update(members)

    def next_request(self, **members: Any) -> None:
        """Adds members beside the messages that the next request needs, as decoded JSON."""
        self._next_request.update(members)

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

    def close(self, key: Any) -> None:
        """Ends block `key`, if it is open. Then `take` returns the events of complete blocks.

        While a text is open, the blocks that began after it wait for its end, because a part of the
        text may be an event already.
        """
        block = self._open.pop(key, None)
        if block is None:
            return
        if block.kind == "text":
            self._closed_texts.add(block.index)
        heappush(self._waiting, (block.index, block))
        self._release()

    def break_off(self, key: Any) -> None:
        """The same as `close` for a block that the provider left incomplete."""
        if block := self._open.get(key):
            block.complete = False
        self.close(key)

    def take(self) -> Sequence[Data]:
        """The events of the blocks that are complete and were not taken yet."""
        if not self._complete:
            return ()
        events, self._complete = self._complete, []
        return events

    def partial(self) -> list[Data]:
        """The event for the text that has arrived so far, so that followers of the run see it grow.
        Only the first open block has such an event: no other block is between its events.
        """
        block = next(iter(self._open.values()), None)
        if block is None or block.kind != "text":
            return []
        text = "".join(block.pieces)
        # The other half of the character may be in the next chunk.
        half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        block.pieces = [half] if half else []
        if text == half:
            return []
        refusal = {"refusal": True} if block.refusal else {}
        message = whole(text[: len(text) - len(half)])
        return [AssistantMessage(message=message, content_index=block.index, **refusal)]

    def end(self, *, finished: bool = True) -> list[Data]:
        """Ends the response, or marks it as broken off. Returns the events that were not taken,
        those of the open blocks, the token usage and the last event.
        """
        finished = finished and not self.unfinished
        self.model = self.model or self.named_model
        if finished:
            for key in list(self._open):
                self.close(key)
        else:
            self._complete += self._broken_off()
        events = [*self.take(), *self._token_usage()]
        beside = plain_members(self._beside, self.fault)
        members: dict[str, Any] = {
            "model": self.model,
            "stop_reason": self.stop_reason,
            "refused": self._has_refused or is_refusal(self.provider, self.stop_reason),
            "faults": tuple(self.faults),
            "response_id": self.response_id,
            "provider_data": beside and {self.provider: beside},
            "next_request": self._next_request and {self.provider: self._next_request},
        }
        fields = {name: value for name, value in members.items() if value}
        events.append(ResponseRecorded(**fields) if finished else ResponseRecorded(**fields, finished=False))
        return events

    def _token_usage(self) -> list[Data]:
        """An event for each call of a model, the response's own last."""
        calls = self._tokens.further_calls()
        if counts := self._tokens.counts():
            calls.append(counts)
        events: list[Data] = []
        for call in calls:
            model = call.pop("model", self.model)
            named = {"model": whole(model)} if isinstance(model, str) and model else {}
            events.append(TokenUsage.model_validate({**call, **named}))
        return events

    def _block(self, key: Any, kind: Literal["text", "thinking", "call", "other"]) -> _Block:
        block = self._open.get(key)
        if block is None:
            block = self._open[key] = _Block(kind, self._count)
            if kind == "text":
                heappush(self._texts, self._count)
            self._count += 1
        return block

    def _event(self, block: _Block) -> list[Data]:
        if not block.complete:
            return self._incomplete(block)
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

    def _release(self) -> None:
        """Completes the waiting blocks that no open text precedes."""
        while self._texts and self._texts[0] in self._closed_texts:
            self._closed_texts.remove(heappop(self._texts))
        first_text = self._texts[0] if self._texts else self._count
        while self._waiting and self._waiting[0][0] < first_text:
            self._complete += self._event(heappop(self._waiting)[1])

    def _broken_off(self) -> list[Data]:
        complete = {index for index, _ in self._waiting}
        blocks = [*(block for _, block in self._waiting), *self._open.values()]
        blocks.sort(key=attrgetter("index"))
        self._open.clear()
        self._waiting.clear()
        return [
            data
            for block in blocks
            for data in (self._event(block) if block.index in complete else self._incomplete(block))
        ]

    def _incomplete(self, block: _Block) -> list[Data]:
        """The events of a block that the stream did not complete."""
        content = block.content
        match block.kind:
            case "text":
                return self._text(block)
            case "thinking":
                # Without its signature, so the ledger omits it.
                return [Thinking(text=whole("".join(block.pieces)), content_index=block.index)]
            case "call":
                self.fault(f"the call of {block.name!r} broke off in its arguments")
                content = {"tool_call_id": block.tool_id, "tool_name": block.name}
                content["arguments"] = whole("".join(block.pieces))
        return [ProviderPart(content=content, content_index=block.index, finished=False)]

    def _text(self, block: _Block) -> list[Data]:
        text = whole("".join(block.pieces))
        if not text and not block.data and not block.citations:
            return []
        members: dict[str, Any] = {"refusal": True} if block.refusal else {}
        if block.citations:
            members["citations"] = block.citations
        members |= self._provider_data(block)
        return [AssistantMessage(message=text, content_index=block.index, **members)]

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
            # A request has an empty object in the place of null.
            exact = payload is None or json.dumps(payload, ensure_ascii=False, separators=(",", ":")) != text
            if self._arguments_are_text and exact:
                block.data["arguments"] = text
        tool_id = block.tool_id
        if not tool_id:
            tool_id = f"{self.response_id or 'call'}-{block.index}"
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
            payload = whole_value(json.loads(text)) if text else {}
            # Python's parser accepts NaN and infinity, which events cannot hold.
            encoded = json.dumps(payload, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            self.fault(f"the arguments of {block.name!r} are not JSON")
            return text
        if is_deep(encoded):
            self.fault(f"the arguments of {block.name!r} are nested too deep")
            return text
        return payload

    def _provider_data(self, block: _Block) -> dict[str, Any]:
        return {"provider_data": {self.provider: block.data}} if block.data else {}
