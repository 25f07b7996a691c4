"""Records responses of Chat Completions as events. `openai_chat` describes the data that parts hold
for this format only.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from runfold_projections.providers.recording import Blocks, get, plain, whole
from runfold_schemas.data import Data

_ORDER: Final = ("reasoning_content", "reasoning", "content", "refusal", "audio")
"""The members of a message in the order of a stream. Other members follow."""


class ChatRecorder:
    """Records the first choice, because a run continues with one answer. Other choices become a
    fault.

    A message stays open until its `finish_reason`, because its deltas may arrive in any order:
    calls before the text, and pieces of several calls in turns.
    """

    def __init__(self, tool_names: Mapping[str, str]) -> None:
        self.blocks = Blocks("openai-chat", tool_names=tool_names)
        # The keys of open blocks in the order of a whole message.
        self._content: list[Any] = []
        self._calls: dict[Any, str | None] = {}
        self._reasoning: str | None = None
        self._sound: dict[str, Any] = {}
        self._annotations: list[Any] = []
        self._members: dict[str, Any] = {}
        self._custom: dict[Any, str] = {}
        self._other_choices = False

    def response(self, response: Any) -> Sequence[Data]:
        events = [*self.feed(response), *self._close()]
        return [*events, *self.blocks.end(finished=bool(get(response, "choices")))]

    def feed(self, chunk: Any) -> Sequence[Data]:
        if not self.blocks.message_id:
            self._begin(chunk)
        if (usage := get(chunk, "usage")) is not None:
            self._count(usage)
        choices = get(chunk, "choices")
        if not choices:
            self._without_choices(chunk)
            return ()
        events: list[Data] = []
        for choice in self._items(choices, "choices"):
            if get(choice, "index") in (None, 0):
                events += self._choice(choice)
            elif not self._other_choices:
                self._other_choices = True
                self.blocks.fault("more than one choice: the first is recorded")
        return events

    def _without_choices(self, chunk: Any) -> None:
        # A chunk with the usage has an empty list of choices.
        if (error := get(chunk, "error")) is not None:
            self.blocks.fault(f"the server broke off: {plain(get(error, 'message') or error)}")
        elif get(chunk, "choices") is None and get(chunk, "usage") is None:
            self.blocks.fault(f"a {type(chunk).__name__} without choices")

    def _begin(self, chunk: Any) -> None:
        self.blocks.message_id = self.blocks.word(get(chunk, "id")) or None
        self.blocks.model = self.blocks.word(get(chunk, "model")) or self.blocks.model

    def _choice(self, choice: Any) -> list[Data]:
        delta = get(choice, "delta")
        if delta is not None:
            self._take(_members(delta))
        elif (message := get(choice, "message")) is not None:
            self._take(sorted(_members(message), key=_rank))
        reason = get(choice, "finish_reason")
        self.blocks.unfinished = not reason and self.blocks.stop_reason is None and delta is not None
        if not reason:
            return []
        self.blocks.stop_reason = self.blocks.word(reason) or None
        return self._close()

    def _take(self, members: Iterable[tuple[str, Any]]) -> None:
        for name, value in members:
            if not value:
                continue
            match name:
                case "role":
                    pass
                case "content":
                    self._take_content(value)
                case "reasoning_content" | "reasoning":
                    self._take_reasoning(name, value)
                case "refusal":
                    self.blocks.text("refusal", self.blocks.string(value), refusal=True)
                case "tool_calls":
                    for position, call in enumerate(self._items(value, name)):
                        self._take_call(call, position)
                case "function_call":
                    self._take_function_call(value)
                case "audio":
                    self._take_audio(value)
                case "annotations":
                    self._annotations += plain(self._items(value, name))
                case _:
                    self._members[whole(name)] = _extend(self._members.get(name), plain(value))

    def _take_reasoning(self, name: str, text: Any) -> None:
        # Some servers send reasoning under both names.
        self._reasoning = self._reasoning or name
        if name == self._reasoning:
            self.blocks.thinking("reasoning", self.blocks.string(text), member=name)

    def _take_content(self, content: Any) -> None:
        if isinstance(content, str):
            self._text(content)
            return
        for part in self._items(content, "content"):
            if get(part, "type") == "text" and isinstance(text := get(part, "text"), str):
                self._text(text)
            elif get(part, "type") == "refusal":
                self.blocks.text("refusal", self.blocks.string(get(part, "refusal")), refusal=True)
            else:
                self._content.append(key := ("content", len(self._content)))
                self.blocks.other(key, {"content": [plain(part)]})

    def _text(self, text: str) -> None:
        if not self._content or self._content[-1][0] != "text":
            self._content.append(("text", len(self._content)))
        self.blocks.text(self._content[-1], text)

    def _take_call(self, call: Any, position: int) -> None:
        tool_id = self.blocks.word(get(call, "id"))
        function = get(call, "function", "custom")
        name = self.blocks.word(get(function, "name"))
        key = self._call_key(get(call, "index"), position, tool_id=tool_id, name=name)
        self.blocks.call(key, tool_id=tool_id, name=name)
        if get(call, "type") == "custom" or key in self._custom:
            text = self._custom.get(key, "") + self.blocks.string(get(function, "input"))
            self._custom[key] = text
            self.blocks.call(key, tool_id=None, name=None, custom=True)
            self.blocks.arguments(key, {"input": whole(text)})
        elif (arguments := get(function, "arguments")) is not None:
            # Some servers decode the arguments before they answer.
            text = (
                arguments if isinstance(arguments, str) else json.dumps(plain(arguments), ensure_ascii=False)
            )
            self.blocks.arguments_text(key, text)

    def _call_key(self, index: Any, position: int, *, tool_id: str, name: str) -> Any:
        """The key of the call that a delta belongs to. Some servers omit `index`, or give every
        call the same index.
        """
        key: Any = ("call", index if isinstance(index, int) else position)
        if isinstance(index, int) or tool_id:
            first_id = self._calls.get(key)
            if first_id and tool_id and name and tool_id != first_id:
                key = (*key, tool_id)
        elif self._calls:
            key = next(reversed(self._calls))
        self._calls[key] = self._calls.get(key) or tool_id
        return key

    def _take_function_call(self, call: Any) -> None:
        """Takes the single call of the older form, which has no id. The call gets an id."""
        tool_id = f"{self.blocks.message_id or 'call'}-f"
        self._calls.setdefault("function_call", tool_id)
        self.blocks.call("function_call", tool_id=tool_id, name=self.blocks.word(get(call, "name")))
        self.blocks.arguments_text("function_call", self.blocks.string(get(call, "arguments")))

    def _take_audio(self, audio: Any) -> None:
        """Keeps the words of speech. The sound is not kept, because it is large and a request
        refers to it by its id.
        """
        for name in ("id", "expires_at"):
            if isinstance(value := get(audio, name), str | int):
                self._sound[name] = plain(value)
        self.blocks.text("audio", self.blocks.string(get(audio, "transcript")), audio=self._sound)

    def _close(self) -> list[Data]:
        texts, calls = [*self._content, "refusal", "audio"], list(self._calls)
        self._attach(texts, calls)
        self._content, self._calls = [], {}
        return [data for key in ("reasoning", *texts, *calls) for data in self.blocks.close(key)]

    def _attach(self, texts: list[Any], calls: list[Any]) -> None:
        """Attaches the data for this provider only to the first part of the message."""
        open_texts = [key for key in texts if self.blocks.is_open(key) and key[0] != "content"]
        annotations, self._annotations = self._annotations, []
        if annotations and open_texts:
            self.blocks.text(open_texts[0], "", annotations=annotations)
        members, self._members = self._members, {}
        if not members:
            return
        if self.blocks.is_open("reasoning"):
            self.blocks.thinking("reasoning", members=members)
        elif open_texts:
            self.blocks.text(open_texts[0], "", members=members)
        elif calls:
            self.blocks.call(calls[0], tool_id=None, name=None, members=members)
        else:
            texts.append("members")
            self.blocks.other("members", members)

    def _count(self, usage: Any) -> None:
        details = get(usage, "prompt_tokens_details")
        self.blocks.usage(
            input_tokens=get(usage, "prompt_tokens"),
            output_tokens=get(usage, "completion_tokens"),
            cache_read_tokens=get(details, "cached_tokens"),
            cache_write_tokens=get(details, "cache_write_tokens"),
        )

    def _items(self, value: Any, what: str) -> list[Any]:
        if isinstance(value, list):
            return value
        self.blocks.fault(f"{what} is a {type(value).__name__} and not a list")
        return []


def _members(value: Any) -> Iterable[tuple[str, Any]]:
    """The members of a message or a delta, also those that the SDK does not know."""
    if isinstance(value, Mapping):
        return value.items()
    fields = getattr(value, "__dict__", None) or {}
    extra = getattr(value, "__pydantic_extra__", None)
    return [*fields.items(), *extra.items()] if extra else fields.items()


def _rank(member: tuple[str, Any]) -> int:
    return _ORDER.index(member[0]) if member[0] in _ORDER else len(_ORDER)


def _extend(old: Any, new: Any) -> Any:
    """The value of a member that a stream sends piece by piece."""
    match old, new:
        case (str(), str()) | (list(), list()):
            return old + new
        case dict(), dict():
            return {**old, **new}
        case _:
            return new
