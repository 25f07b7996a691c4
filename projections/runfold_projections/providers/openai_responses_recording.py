"""Records responses of the Responses API as events. `openai_responses` describes the data that
parts hold for this format only.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runfold_projections.providers.recording import Blocks, get, plain, whole
from runfold_schemas.data import Data

_BROKEN: Final = frozenset({"failed", "cancelled", "in_progress", "queued"})


class ResponsesRecorder:
    """Records the items of a response.

    A stream has each item twice: in deltas, and whole when it is done. Text is taken from the
    deltas, because they may be events already (`Blocks.partial`). The rest is taken from the whole
    item. Items that the stream did not send are taken from the response in the last event.
    """

    def __init__(self, tool_names: Mapping[str, str]) -> None:
        self.blocks = Blocks("openai-responses", tool_names=tool_names)
        # For each item: the keys of texts that have begun, and the piece of reasoning to which the
        # last delta belonged.
        self._texts: dict[Any, list[Any]] = {}
        self._reasoning: dict[Any, tuple[Any, ...]] = {}
        self._streamed: set[Any] = set()
        self._done: set[Any] = set()

    def response(self, response: Any) -> Sequence[Data]:
        self._begin(response)
        events = self._last(response)
        if get(response, "output") is None:
            self.blocks.fault(f"a {type(response).__name__} without output")
        return [*events, *self.blocks.end()]

    def feed(self, chunk: Any) -> Sequence[Data]:
        match get(chunk, "type"):
            case "response.output_text.delta" | "response.refusal.delta" as kind:
                self._text_delta(chunk, refusal=kind == "response.refusal.delta")
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta":
                self._arguments_delta(chunk)
            case "response.reasoning_summary_text.delta":
                self._reasoning_delta(chunk, ("summary", get(chunk, "summary_index")))
            case "response.reasoning_text.delta":
                self._reasoning_delta(chunk, ("text", get(chunk, "content_index")))
            case "response.output_item.added":
                self._added(self._place(chunk), get(chunk, "item"))
            case "response.output_item.done":
                return self._item(self._place(chunk), get(chunk, "item"))
            case "response.created" | "response.in_progress" | "response.queued":
                self.blocks.unfinished = True
                self._begin(get(chunk, "response"))
            case "response.completed" | "response.incomplete" | "response.failed":
                self._begin(get(chunk, "response"))
                return self._last(get(chunk, "response"))
            case "error":
                self.blocks.unfinished = True
                self._error(get(chunk, "error") or chunk)
            case str():
                # The progress of a hosted tool, or the end of a series of deltas. The whole item
                # has all of it.
                pass
            case _:
                self.blocks.fault(f"a {type(chunk).__name__} without a type")
        return ()

    def _begin(self, response: Any) -> None:
        self.blocks.message_id = self.blocks.word(get(response, "id")) or self.blocks.message_id
        self.blocks.model = self.blocks.word(get(response, "model")) or self.blocks.model

    def _last(self, response: Any) -> list[Data]:
        """The last events, with items that the stream did not send, the usage and the status."""
        events: list[Data] = []
        output = enumerate(self._items(get(response, "output"), "output"))
        missing = [(index, item) for index, item in output if not self._is_done(index, item)]
        for index, item in missing:
            events += self._item(index, item)
        if (error := get(response, "error")) is not None:
            self._error(error)
        if (usage := get(response, "usage")) is not None:
            self._count(usage)
        status = self.blocks.word(get(response, "status"))
        reason = self.blocks.word(get(get(response, "incomplete_details"), "reason"))
        self.blocks.stop_reason = reason or status or None
        self.blocks.unfinished = status in _BROKEN
        return events

    def _is_done(self, index: int, item: Any) -> bool:
        return index in self._done or self.blocks.word(get(item, "id")) in self._done

    def _place(self, chunk: Any) -> Any:
        """The index of the chunk's item, or its id, because some servers only send the id."""
        index = get(chunk, "output_index")
        return index if isinstance(index, int) else self.blocks.word(get(chunk, "item_id"))

    def _text_delta(self, chunk: Any, *, refusal: bool) -> None:
        index = get(chunk, "content_index")
        key = (self._place(chunk), index if isinstance(index, int) else 0)
        text = self.blocks.string(get(chunk, "delta"))
        if self.blocks.is_open(key):
            self.blocks.text(key, text)
            return
        self._texts.setdefault(key[0], []).append(key)
        self.blocks.text(key, text, **({"refusal": True} if refusal else {}))

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

    def _item(self, place: Any, item: Any) -> list[Data]:
        """The events of a whole item."""
        self._done |= {place, self.blocks.word(get(item, "id")) or place}
        match get(item, "type"):
            case "message":
                return self._message(place, item)
            case "reasoning":
                return self._reasoning_item(place, item)
            case "function_call":
                return self._function_call(place, item)
            case "custom_tool_call":
                return self._custom_call(place, item)
            case _:
                self.blocks.other((place, "other"), plain(item))
                return self.blocks.close((place, "other"))

    def _message(self, place: Any, item: Any) -> list[Data]:
        open_keys = self._texts.pop(place, [])
        events: list[Data] = []
        members = _rest(item, "type", "role", "content")
        for index, part in enumerate(self._items(get(item, "content"), "content")):
            key = (place, index)
            kind = get(part, "type")
            if kind in ("output_text", "refusal"):
                text = self.blocks.string(get(part, "refusal" if kind == "refusal" else "text"))
                data: dict[str, Any] = {"item": members, "part": _rest(part, "type", "text", "refusal")}
                if kind == "refusal":
                    data["refusal"] = True
                data = {name: value for name, value in data.items() if value}
                self.blocks.text(key, "" if self.blocks.is_open(key) else text, **data)
            else:
                # The item is sent back without its id, which its texts have.
                self.blocks.other(key, {"type": "message", "role": "assistant", "content": [plain(part)]})
            events += self.blocks.close(key)
        return events + [data for key in open_keys for data in self.blocks.close(key)]

    def _reasoning_item(self, place: Any, item: Any) -> list[Data]:
        key = (place, "reasoning")
        pieces = [
            self.blocks.string(get(piece, "text"))
            for name in ("summary", "content")
            for piece in self._items(get(item, name) or [], name)
        ]
        text = "" if self.blocks.is_open(key) else "\n\n".join(pieces)
        self.blocks.thinking(key, text, item=_rest(item, "type"))
        return self.blocks.close(key)

    def _function_call(self, place: Any, item: Any) -> list[Data]:
        key = (place, "call")
        self._name(place, item)
        if place not in self._streamed:
            arguments = get(item, "arguments")
            decoded = arguments is not None and not isinstance(arguments, str)
            text = json.dumps(plain(arguments), ensure_ascii=False) if decoded else arguments or ""
            self.blocks.arguments_text(key, text)
        if members := _rest(item, "type", "call_id", "name", "arguments"):
            self.blocks.call(key, tool_id=None, name=None, item=members)
        return self.blocks.close(key)

    def _custom_call(self, place: Any, item: Any) -> list[Data]:
        key = (place, "call")
        self._name(place, item)
        self.blocks.arguments(key, {"input": whole(self.blocks.string(get(item, "input")))})
        members = _rest(item, "type", "call_id", "name", "input")
        self.blocks.call(key, tool_id=None, name=None, item=members, custom=True)
        return self.blocks.close(key)

    def _name(self, place: Any, item: Any) -> None:
        tool_id = self.blocks.word(get(item, "call_id", "id"))
        self.blocks.call((place, "call"), tool_id=tool_id, name=self.blocks.word(get(item, "name")))

    def _error(self, error: Any) -> None:
        members = (get(error, "code"), get(error, "message"))
        details = [str(plain(member)) for member in members if member is not None]
        self.blocks.fault(": ".join(["the response failed", *details]))

    def _count(self, usage: Any) -> None:
        details = get(usage, "input_tokens_details")
        self.blocks.usage(
            input_tokens=get(usage, "input_tokens"),
            output_tokens=get(usage, "output_tokens"),
            cache_read_tokens=get(details, "cached_tokens"),
            cache_write_tokens=get(details, "cache_write_tokens"),
        )

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
    members = plain(value)
    if not isinstance(members, dict):
        return {}
    return {
        name: member
        for name, member in members.items()
        if name not in recorded and member is not None and member != []
    }
