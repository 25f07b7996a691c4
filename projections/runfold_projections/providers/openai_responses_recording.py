"""Records responses of the Responses API as events. `openai_responses` describes the data that
parts hold for this format only.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runfold_projections.providers.openai_citations import citations
from runfold_projections.providers.openai_responses_tools import TOOLS, id_of, is_executed_by_caller
from runfold_projections.providers.recording import Blocks
from runfold_projections.providers.token_counts import uncounted
from runfold_projections.providers.values import get, others, plain
from runfold_schemas.data import Data
from runfold_schemas.whole_texts import whole

_BROKEN: Final = frozenset({"failed", "cancelled", "in_progress", "queued"})

_CUT_OFF: Final = frozenset(
    {"in_progress", "queued", "searching", "interpreting", "generating", "calling", "incomplete"}
)
"""The statuses of a hosted tool's item that has no outcome."""

_NOT_SENT: Final = frozenset({"parsed", "parsed_arguments", "created_by"})
"""Members of items that a request does not have: two of the SDK's helpers, and an author that the
API adds to stored items.
"""

_RECORDED: Final = frozenset(
    {"id", "object", "model", "output", "output_text", "usage", "status", "created_at", "completed_at"}
    | {"instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "prompt", "truncation"}
    | {"temperature", "top_p", "top_logprobs", "max_output_tokens", "max_tool_calls", "background"}
    | {"presence_penalty", "frequency_penalty"}
)
"""The members of a response that the events have elsewhere, or that repeat the request."""


class ResponsesRecorder:
    """Records the items of a response.

    A stream has each item twice: in deltas, and whole when it is done. Text is taken from the
    deltas, because they may be events already (`Blocks.partial`). The rest is taken from the whole
    item. Items that the stream did not send are taken from the response in the last event.
    """

    def __init__(self, tool_names: Mapping[str, str], *, as_before: bool = False) -> None:
        """With `as_before`, items become the events of older versions, for logs that hold items."""
        self._as_before = as_before
        self._stored: bool | None = None
        self.blocks = Blocks("openai-responses", tool_names=tool_names)
        # For each item: the keys of texts that have begun, and the piece of reasoning to which the
        # last delta belonged.
        self._texts: dict[Any, list[Any]] = {}
        self._reasoning: dict[Any, tuple[Any, ...]] = {}
        self._streamed: set[Any] = set()
        self._done: set[Any] = set()

    def response(self, response: Any) -> Sequence[Data]:
        self._begin(response)
        self._last(response)
        if get(response, "output") is None:
            self.blocks.fault(f"a {type(response).__name__} without output")
        return self.blocks.end()

    def feed(self, chunk: Any) -> Sequence[Data]:
        self._take(chunk)
        return self.blocks.take()

    def _take(self, chunk: Any) -> None:
        match get(chunk, "type"):
            case "response.output_text.delta" | "response.refusal.delta" as kind:
                self._text_delta(chunk, refusal=kind == "response.refusal.delta")
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                self._arguments_delta(chunk)
            case "response.reasoning_summary_text.delta":
                self._reasoning_delta(chunk, ("summary", get(chunk, "summary_index")))
            case "response.reasoning_text.delta":
                self._reasoning_delta(chunk, ("text", get(chunk, "content_index")))
            case "response.content_part.added":
                self._part_added(chunk)
            case "response.output_item.added":
                self._added(self._place(chunk), get(chunk, "item"))
            case "response.output_item.done":
                self._item(self._place(chunk), get(chunk, "item"))
            case "response.created" | "response.in_progress" | "response.queued":
                self.blocks.unfinished = True
                self._begin(get(chunk, "response"))
            case "response.completed" | "response.incomplete" | "response.failed":
                self._begin(get(chunk, "response"))
                self._last(get(chunk, "response"))
            case "error":
                self.blocks.unfinished = True
                self._error(get(chunk, "error") or chunk)
            case str():
                # The progress of a hosted tool, or the end of a series of deltas. The whole item
                # has all of it.
                pass
            case _:
                self.blocks.fault(f"a {type(chunk).__name__} without a type")

    def _begin(self, response: Any) -> None:
        self.blocks.response_id = self.blocks.word(get(response, "id")) or self.blocks.response_id
        self.blocks.model = self.blocks.word(get(response, "model")) or self.blocks.model
        if isinstance(stored := get(response, "store"), bool):
            self._stored = stored

    def _last(self, response: Any) -> None:
        """Takes the items that the stream did not send, the usage and the status."""
        streamed = frozenset(self._done)
        for index, item in enumerate(self._items(get(response, "output"), "output")):
            if index not in streamed and self.blocks.word(get(item, "id")) not in streamed:
                self._item(index, item)
        if (error := get(response, "error")) is not None:
            self._error(error)
        if (usage := get(response, "usage")) is not None:
            self.blocks.usage(usage)
            if more := uncounted(usage):
                self.blocks.beside({"usage": more})
            self.blocks.usage({"output": get(response, "output")})
        status = self.blocks.word(get(response, "status"))
        reason = self.blocks.word(get(get(response, "incomplete_details"), "reason"))
        self.blocks.stop_reason = reason or status or None
        self.blocks.unfinished = status in _BROKEN
        self._keep_rest(response, status)

    def _keep_rest(self, response: Any, status: str) -> None:
        """Keeps what stands beside the output, and what the next request needs."""
        rest = {name: member for name, member in others(response, _RECORDED).items() if _says(member)}
        details = rest.get("incomplete_details")
        if isinstance(details, dict) and details.keys() == {"reason"}:
            del rest["incomplete_details"]  # the stop reason
        self.blocks.beside(rest)
        if status != "completed":
            return
        if conversation := self.blocks.word(get(get(response, "conversation"), "id")):
            self.blocks.next_request(conversation=conversation)
        elif self._stored and self.blocks.response_id:
            self.blocks.next_request(previous_response_id=self.blocks.response_id)

    def _place(self, chunk: Any) -> Any:
        """The index of the chunk's item, or its id, because some servers only send the id."""
        index = get(chunk, "output_index")
        return index if isinstance(index, int) else self.blocks.word(get(chunk, "item_id"))

    def _text_delta(self, chunk: Any, *, refusal: bool) -> None:
        index = get(chunk, "content_index")
        key = (self._place(chunk), index if isinstance(index, int) else 0)
        if not self.blocks.is_open(key):
            self._texts.setdefault(key[0], []).append(key)
        self.blocks.text(key, self.blocks.string(get(chunk, "delta")))
        if refusal:
            self._refuse(key)

    def _part_added(self, chunk: Any) -> None:
        """Begins a text that may stay empty, because the texts of an item keep their order."""
        if get(get(chunk, "part"), "type") in ("output_text", "refusal"):
            self._text_delta(chunk, refusal=False)

    def _refuse(self, key: Any) -> None:
        self.blocks.keep(key, {"refusal": True})
        self.blocks.refuse(key)

    def _arguments_delta(self, chunk: Any) -> None:
        if text := self.blocks.string(get(chunk, "delta")):
            place = self._place(chunk)
            self._streamed.add(place)
            self.blocks.arguments_text((place, "call"), text)

    def _reasoning_delta(self, chunk: Any, piece: tuple[Any, ...]) -> None:
        place = self._place(chunk)
        before = self._reasoning.get(place, piece)
        text = self.blocks.string(get(chunk, "delta"))
        self._reasoning[place] = piece
        self.blocks.thinking((place, "reasoning"), text if before == piece else f"\n\n{text}")

    def _added(self, place: Any, item: Any) -> None:
        self.blocks.unfinished = True
        # Recorded now, so that a call that breaks off in its arguments has a name.
        if get(item, "type") in ("function_call", "custom_tool_call"):
            self._name(place, item)
        elif self._is_call(item):
            self._name_call(place, item)

    def _item(self, place: Any, item: Any) -> None:
        """Takes a whole item."""
        self._done |= {place, self.blocks.word(get(item, "id")) or place}
        match get(item, "type"):
            case "message":
                self._message(place, item)
            case "reasoning":
                self._reasoning_item(place, item)
            case "function_call":
                self._function_call(place, item)
            case "custom_tool_call":
                self._custom_call(place, item)
            case _ if self._is_call(item):
                self._call(place, item)
            case _:
                usable = self._as_before or str(get(item, "status")) not in _CUT_OFF
                self.blocks.other((place, "other"), self._opaque(item), usable=usable)
                self.blocks.close((place, "other"))

    def _opaque(self, item: Any) -> Any:
        content = plain(item)
        if isinstance(content, dict) and not self._as_before:
            return {name: member for name, member in content.items() if name not in _NOT_SENT}
        return content

    def _is_call(self, item: Any) -> bool:
        return not self._as_before and is_executed_by_caller(item)

    def _call(self, place: Any, item: Any) -> None:
        """Takes a call that the caller executes, of a tool that the API defines."""
        key = (place, "call")
        self._name_call(place, item)
        members = ("type", "id", "status")
        payload = others(item, {*members, "call_id", *_NOT_SENT})
        own = {name: plain(member) for name in members if (member := get(item, name)) is not None}
        self.blocks.arguments(key, payload)
        self.blocks.keep(key, {"item": own})
        self._end_call(key, item)

    def _name_call(self, place: Any, item: Any) -> None:
        tool_id = self.blocks.word(id_of(item))
        self.blocks.call((place, "call"), tool_id=tool_id, name=TOOLS[get(item, "type")])

    def _message(self, place: Any, item: Any) -> None:
        open_keys = self._texts.pop(place, [])
        members = _rest(item, "type", "role", "content")
        for index, part in enumerate(self._items(get(item, "content"), "content")):
            key = (place, index)
            kind = get(part, "type")
            if kind in ("output_text", "refusal"):
                text = self.blocks.string(get(part, "refusal" if kind == "refusal" else "text"))
                data: dict[str, Any] = {"item": members, "part": _rest(part, "type", "text", "refusal")}
                data = {name: value for name, value in data.items() if value}
                self.blocks.text(key, "" if self.blocks.is_open(key) else text, **data)
                if kind == "refusal":
                    self._refuse(key)
                self.blocks.cite(key, citations(self._items(get(part, "annotations"), "annotations")))
            else:
                # The message is sent back as one item if its id is the same.
                named = {} if self._as_before else members
                content = {"type": "message", "role": "assistant", **named, "content": [plain(part)]}
                self.blocks.other(key, content)
            self.blocks.close(key)
        for key in open_keys:
            self.blocks.close(key)

    def _reasoning_item(self, place: Any, item: Any) -> None:
        key = (place, "reasoning")
        pieces = [
            self.blocks.string(get(piece, "text"))
            for name in ("summary", "content")
            for piece in self._items(get(item, name) or [], name)
        ]
        text = "" if self.blocks.is_open(key) else "\n\n".join(pieces)
        self.blocks.thinking(key, text, item=_rest(item, "type"))
        if self._stored is not None:
            self.blocks.keep(key, {"stored": self._stored})
        self.blocks.close(key)

    def _function_call(self, place: Any, item: Any) -> None:
        key = (place, "call")
        self._name(place, item)
        if place not in self._streamed:
            arguments = get(item, "arguments")
            decoded = arguments is not None and not isinstance(arguments, str)
            text = json.dumps(plain(arguments), ensure_ascii=False) if decoded else arguments or ""
            self.blocks.arguments_text(key, text)
        if members := _rest(item, "type", "call_id", "name", "arguments"):
            self.blocks.call(key, tool_id=None, name=None, item=members)
        self._end_call(key, item)

    def _custom_call(self, place: Any, item: Any) -> None:
        key = (place, "call")
        self._name(place, item)
        self.blocks.arguments(key, {"input": whole(self.blocks.string(get(item, "input")))})
        members = _rest(item, "type", "call_id", "name", "input")
        self.blocks.call(key, tool_id=None, name=None, item=members, custom=True)
        self._end_call(key, item)

    def _end_call(self, key: Any, item: Any) -> None:
        """Ends a call. A call that was cut off in its arguments is not to be executed."""
        is_cut_off = get(item, "status") == "incomplete" and not self._as_before
        if is_cut_off:
            self.blocks.break_off(key)
        else:
            self.blocks.close(key)

    def _name(self, place: Any, item: Any) -> None:
        tool_id = self.blocks.word(get(item, "call_id", "id"))
        self.blocks.call((place, "call"), tool_id=tool_id, name=self.blocks.word(get(item, "name")))

    def _error(self, error: Any) -> None:
        members = (get(error, "code"), get(error, "message"))
        details = [str(plain(member)) for member in members if member is not None]
        self.blocks.fault(": ".join(["the response failed", *details]))

    def _items(self, value: Any, what: str) -> list[Any]:
        if isinstance(value, list):
            return value
        if value is not None:
            self.blocks.fault(f"{what} is a {type(value).__name__} and not a list")
        return []


def _rest(value: Any, *recorded: str) -> dict[str, Any]:
    """The members that are not recorded otherwise. Nulls are left out, because the API refuses some
    of them in a request.
    """
    left_out = {*recorded, *_NOT_SENT}
    if hasattr(value, "model_dump"):
        members = plain(
            value.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=left_out, warnings=False)
        )
    else:
        members = plain(value)
    if not isinstance(members, dict):
        return {}
    return {
        name: member
        for name, member in members.items()
        if name not in left_out and member is not None and member != []
    }


def _says(member: Any) -> bool:
    """Whether the member has content: many are null or hold nulls only."""
    if isinstance(member, Mapping):
        return any(map(_says, member.values()))
    return member not in (None, "", [])
