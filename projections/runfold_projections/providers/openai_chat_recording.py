"""Records responses of Chat Completions as events. `openai_chat` describes the data that parts hold
for this format only.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from runfold_projections.providers.openai_chat_deltas import join, members, tree
from runfold_projections.providers.openai_citations import citations
from runfold_projections.providers.recording import Blocks
from runfold_projections.providers.token_counts import uncounted
from runfold_projections.providers.values import get, plain
from runfold_schemas.data import Data
from runfold_schemas.whole_texts import whole

_ORDER: Final = ("reasoning_content", "reasoning", "content", "refusal", "audio")
"""The members of a message in the order of a stream. Other members follow."""

_OF_EACH_CHUNK: Final = ("service_tier", "system_fingerprint", "moderation")
_OF_RESPONSE: Final = frozenset(
    {"id", "object", "type", "created", "model", "choices", "usage", "error", "obfuscation"}
    | {*_OF_EACH_CHUNK}
)
_OF_CHOICE: Final = frozenset({"index", "delta", "message", "finish_reason", "logprobs"})
_OF_CALL: Final = frozenset({"index", "id", "type", "function", "custom"})
_OF_FUNCTION: Final = frozenset({"name", "arguments", "input", "parsed_arguments"})
"""The members that are recorded otherwise, or that the SDK has added. Others are kept."""

_SOURCES: Final = ("search_results", "citations")
"""The members of a response with the sources of its text: those of Perplexity and xAI."""

# The keys of blocks begin with their kind.
_REFUSAL: Final = ("text", "refusal")
_AUDIO: Final = ("text", "audio")
_FUNCTION_CALL: Final = ("call", "function_call")
_MEMBERS: Final = ("other", "members")

_HELPERS: Final = ("content.", "refusal.", "tool_calls.function.", "logprobs.")
"""How the types of events begin that `client.chat.completions.stream()` adds to the chunks. They
repeat the chunks.
"""


class ChatRecorder:
    """Records the first choice, because a run continues with one answer. Further choices are kept
    beside the content.

    Reasoning ends when the text begins. The rest of a message stays open until its `finish_reason`,
    because its deltas may arrive in any order: calls before the text, and pieces of several calls
    in turns.
    """

    def __init__(self, tool_names: Mapping[str, str]) -> None:
        self.blocks = Blocks("openai-chat", tool_names=tool_names)
        # The keys of blocks in the order of a whole message.
        self._content: list[Any] = []
        # The ids of calls by their keys, and the newest keys by index, place and id.
        self._calls: dict[Any, str | None] = {}
        self._newest: dict[int | str, Any] = {}
        self._thought: Any = None
        self._thoughts = 0
        self._reasoning: str | None = None
        self._sound: dict[str, Any] = {}
        self._annotations: list[Any] = []
        self._sources: dict[str, list[Any]] = {}
        self._members: dict[str, Any] = {}
        self._of_calls: dict[Any, dict[str, Any]] = {}
        self._custom: dict[Any, str] = {}
        self._logprobs: dict[str, list[Any]] = {}
        self._further: dict[int, Any] = {}

    def response(self, response: Any) -> Sequence[Data]:
        self._take_chunk(response)
        self._close()
        return self.blocks.end(finished=bool(get(response, "choices")))

    def feed(self, chunk: Any) -> Sequence[Data]:
        self._take_chunk(chunk)
        return self.blocks.take()

    def _take_chunk(self, chunk: Any) -> None:
        if self.blocks.response_id and (text := text_alone(chunk)) is not None:
            self._text(text)
            self.blocks.unfinished = self.blocks.stop_reason is None
            return
        choices = get(chunk, "choices")
        if choices is None and (kind := get(chunk, "type")) is not None:
            if is_helper(kind):
                return
            if kind == "chunk":
                chunk = get(chunk, "chunk")
                choices = get(chunk, "choices")
        self._begin(chunk)
        if not choices:
            self._without_choices(chunk)
            return
        for choice in self._items(choices, "choices"):
            index = get(choice, "index")
            if isinstance(index, int) and index > 0:
                self._take_further(index, choice)
            else:
                self._choice(choice)

    def _without_choices(self, chunk: Any) -> None:
        # A chunk with the usage has an empty list of choices.
        if (error := get(chunk, "error")) is not None:
            self.blocks.fault(f"the server broke off: {plain(get(error, 'message') or error)}")
        elif get(chunk, "choices") is None and get(chunk, "usage") is None:
            self.blocks.fault(f"a {type(chunk).__name__} without choices")

    def _begin(self, chunk: Any) -> None:
        blocks = self.blocks
        if not blocks.response_id:
            blocks.response_id = blocks.word(get(chunk, "id")) or None
            blocks.model = blocks.word(get(chunk, "model")) or blocks.model
            for name in _OF_EACH_CHUNK:
                if (member := get(chunk, name)) is not None:
                    blocks.beside({name: member})
        if (usage := get(chunk, "usage")) is not None:
            blocks.usage(usage)
            if more := uncounted(usage):
                blocks.beside({"usage": more})
        self._keep_beside(chunk, _OF_RESPONSE)

    def _keep_beside(self, value: Any, recorded: frozenset[str]) -> Mapping[str, Any]:
        """Keeps the members that are not recorded otherwise. Returns all members."""
        fields = members(value)
        # Most chunks have no other member, and this test is four times as fast as the loop.
        if not fields.keys() <= recorded:
            for name, member in fields.items():
                if member is not None and name not in recorded and member not in ("", [], {}):
                    self.blocks.beside({name: member})
                    if name in _SOURCES and isinstance(member, list):
                        self._sources[name] = member
        return fields

    def _choice(self, choice: Any) -> None:
        delta = get(choice, "delta")
        # A delta may have text and reasoning. The reasoning precedes the text.
        if delta is not None:
            self._take(_present(delta), is_whole=False)
        elif (message := get(choice, "message")) is not None:
            self._take(_present(message), is_whole=True)
        fields = self._keep_beside(choice, _OF_CHOICE)
        if (logprobs := fields.get("logprobs")) is not None:
            self._take_logprobs(logprobs)
        reason = get(choice, "finish_reason")
        self.blocks.unfinished = not reason and self.blocks.stop_reason is None and delta is not None
        if reason:
            self.blocks.stop_reason = self.blocks.word(reason) or None
            self._close()

    def _take_logprobs(self, logprobs: Any) -> None:
        for name, tokens in members(logprobs).items():
            if isinstance(tokens, list):
                self._logprobs.setdefault(name, []).extend(tokens)
        if self._logprobs:
            self.blocks.beside({"logprobs": self._logprobs})

    def _take_further(self, index: int, choice: Any) -> None:
        further = tree(choice)
        if (delta := further.pop("delta", None)) is not None:
            further["message"] = delta
        self._further[index] = join(self._further.get(index, {}), further)
        self.blocks.beside({"choices": list(self._further.values())})

    def _take(self, fields: Iterable[tuple[str, Any]], *, is_whole: bool) -> None:
        for name, value in fields:
            match name:
                case "role" | "parsed":
                    pass
                case "content":
                    self._take_content(value)
                case "reasoning_content" | "reasoning":
                    self._take_reasoning(name, value)
                case "refusal":
                    self._take_refusal(value)
                case "tool_calls":
                    self._take_calls(self._items(value, name), are_whole=is_whole)
                case "function_call":
                    self._take_function_call(value)
                case "audio":
                    self._take_audio(value)
                case "annotations":
                    self._annotations += tree(self._items(value, name))
                case "executed_tools":
                    # Groq's own tools, which its requests have no member for.
                    self.blocks.beside({name: value})
                case _:
                    self._members[name] = join(self._members.get(name), tree(value))

    def _take_reasoning(self, name: str, text: Any) -> None:
        # Some servers send reasoning under both names.
        self._reasoning = self._reasoning or name
        if name != self._reasoning:
            return
        if not self.blocks.is_open(self._thought):
            self._thoughts += 1
            self._thought = ("reasoning", self._thoughts)
        self.blocks.thinking(self._thought, self.blocks.string(text), member=name)

    def _take_content(self, content: Any) -> None:
        if isinstance(content, str):
            self._text(content)
            return
        for part in self._items(content, "content"):
            kind = get(part, "type")
            if kind == "text" and isinstance(text := get(part, "text"), str):
                self._text(text)
            elif kind == "refusal":
                self._take_refusal(get(part, "refusal"))
            elif kind == "thinking" and (pieces := _texts(get(part, "thinking"))) is not None:
                self._take_thoughts(part, pieces)
            else:
                self.blocks.other(self._next_content("other"), {"content": [plain(part)]})

    def _take_refusal(self, text: Any) -> None:
        self._end_reasoning()
        self.blocks.text(_REFUSAL, self.blocks.string(text), refusal=True)
        self.blocks.refuse(_REFUSAL)

    def _text(self, text: str) -> None:
        self.blocks.text(self._next_content("text"), text)

    def _take_thoughts(self, part: Any, pieces: list[str]) -> None:
        """Takes reasoning within the content, which is Mistral's form."""
        key = self._next_content("thinking")
        self.blocks.thinking(key, "".join(pieces), member="content")
        recorded = ("type", "thinking")
        if rest := {name: plain(value) for name, value in _present(part) if name not in recorded}:
            self.blocks.keep(key, {"part": rest})

    def _next_content(self, kind: str) -> Any:
        """The key of the block that content of this kind belongs to: the last block, or a new one,
        which ends the last block.
        """
        last = self._content[-1] if self._content else None
        if last and last[0] == kind and kind != "other" and self.blocks.is_open(last):
            return last
        self._end_reasoning()
        self.blocks.close(last)
        self._content.append((kind, len(self._content)))
        return self._content[-1]

    def _end_reasoning(self) -> None:
        """Ends the reasoning before a text, so that the text can be published while it grows."""
        if not self._content:
            self.blocks.close(self._thought)

    def _take_calls(self, calls: Sequence[Any], *, are_whole: bool) -> None:
        if are_whole:
            # Ids and indexes may be missing or repeated. The place is certain.
            for position, call in enumerate(calls):
                self._take_call(call, ("whole", position))
            return
        taken: set[Any] = set()
        for position, call in enumerate(calls):
            key = self._key_of(call, position if len(calls) > 1 else None, taken)
            taken.add(key)
            self._take_call(call, key)

    def _take_call(self, call: Any, key: Any) -> None:
        tool_id = self.blocks.word(get(call, "id"))
        function = get(call, "function", "custom")
        self._calls[key] = self._calls.get(key) or tool_id
        self.blocks.call(key, tool_id=tool_id, name=self.blocks.word(get(function, "name")))
        self._keep_members(key, call, function)
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

    def _keep_members(self, key: Any, call: Any, function: Any) -> None:
        """Keeps the members of a call that OpenAI's API does not have, for example signatures."""
        of_call = {name: tree(value) for name, value in _present(call) if name not in _OF_CALL}
        of_function = {name: tree(value) for name, value in _present(function) if name not in _OF_FUNCTION}
        rest = {"call": of_call, "function": of_function}
        if kept := {name: value for name, value in rest.items() if value}:
            self._of_calls[key] = join(self._of_calls.get(key, {}), kept)

    def _key_of(self, delta: Any, position: int | None, taken: Collection[Any]) -> Any:
        """The key of the call that a delta belongs to. `position` is the delta's place among
        several, and `taken` are the calls of those before it. Some servers omit `index` or `id`, or
        give every call the same.
        """
        index, tool_id = get(delta, "index"), self.blocks.word(get(delta, "id"))
        place = index if isinstance(index, int) else position
        if place is not None:
            key = self._newest.get(place)
        else:
            key = self._newest.get(tool_id) or next(reversed(self._calls), None)
        if key is None or self._is_another(delta, key, is_taken=key in taken):
            key = ("call", len(self._calls))
        for of_call in (place, tool_id or None):
            if of_call is not None:
                self._newest[of_call] = key
        return key

    def _is_another(self, delta: Any, key: Any, *, is_taken: bool) -> bool:
        """Whether a delta begins another call than the one that it seems to belong to."""
        tool_id, name = get(delta, "id"), get(get(delta, "function", "custom"), "name")
        if not name:
            return False
        if tool_id and (first_id := self._calls[key]):
            return bool(tool_id != first_id)
        if is_taken:
            return True
        if name != self.blocks.name_of(key):
            return not isinstance(get(delta, "index"), int) or self.blocks.has_arguments(key)
        # Some servers repeat the name in each piece.
        return self.blocks.has_whole_arguments(key)

    def _take_function_call(self, call: Any) -> None:
        """Takes the single call of the older form, which has no id. The call gets an id."""
        tool_id = f"{self.blocks.response_id or 'call'}-f"
        self._calls.setdefault(_FUNCTION_CALL, tool_id)
        self.blocks.call(_FUNCTION_CALL, tool_id=tool_id, name=self.blocks.word(get(call, "name")))
        self.blocks.arguments_text(_FUNCTION_CALL, self.blocks.string(get(call, "arguments")))

    def _take_audio(self, audio: Any) -> None:
        """Keeps the words of speech. The sound is not kept, because it is large and a request
        refers to it by its id.
        """
        self._end_reasoning()
        for name in ("id", "expires_at"):
            if isinstance(value := get(audio, name), str | int):
                self._sound[name] = plain(value)
        self.blocks.text(_AUDIO, self.blocks.string(get(audio, "transcript")), audio=self._sound)

    def _close(self) -> None:
        texts, calls = [*self._content, _REFUSAL, _AUDIO], list(self._calls)
        self._attach(texts, calls)
        thought, self._thought, self._content = self._thought, None, []
        self._calls, self._newest = {}, {}
        for key in (thought, *texts, *calls):
            self.blocks.close(key)

    def _attach(self, texts: list[Any], calls: list[Any]) -> None:
        """Attaches the data for this provider only: of a call to the call, and of the message to
        its first open part.
        """
        for key in calls:
            self.blocks.keep(key, plain(self._of_calls.pop(key, {})))
        open_texts = [key for key in texts if key[0] == "text" and self.blocks.is_open(key)]
        annotations, self._annotations = plain(self._annotations), []
        if annotations and open_texts:
            self.blocks.text(open_texts[0], "", annotations=annotations)
            self.blocks.cite(open_texts[0], citations(annotations))
        elif annotations:
            self.blocks.beside({"annotations": annotations})
        elif self._sources and open_texts:
            sources = next(self._sources[name] for name in _SOURCES if name in self._sources)
            self.blocks.cite(open_texts[0], citations(sources))
        rest, self._members = plain(self._members), {}
        if not rest:
            return
        parts = (key for key in (self._thought, *texts, *calls) if self.blocks.is_open(key))
        first = next((key for key in parts if key[0] != "other"), None)
        if first is None:
            texts.append(_MEMBERS)
            self.blocks.other(_MEMBERS, rest)
        else:
            self.blocks.keep(first, {"members": rest})

    def _items(self, value: Any, what: str) -> list[Any]:
        if isinstance(value, list):
            return value
        self.blocks.fault(f"{what} is a {type(value).__name__} and not a list")
        return []


def text_alone(chunk: Any) -> str | None:
    """The text of a chunk that has nothing else to record, as most chunks of a stream. None for any
    other chunk, and for one without text.
    """
    fields = members(chunk)
    choices = fields.get("choices")
    if type(choices) is not list or len(choices) != 1:
        return None
    choice = members(choices[0])
    if choice.get("index") != 0 or choice.get("finish_reason") or choice.get("logprobs") is not None:
        return None
    # An object may compute a member that its fields lack.
    is_known = fields is chunk or ("usage" in fields and "finish_reason" in choice)
    if not is_known or fields.get("usage") is not None:
        return None
    if not (fields.keys() <= _OF_RESPONSE and choice.keys() <= _OF_CHOICE):
        return None
    text = None
    for name, member in members(choice.get("delta")).items():
        if name == "content":
            text = member
        elif member and name != "role":
            return None
    return text if type(text) is str and text else None


def is_helper(kind: Any) -> bool:
    """Whether an event of this type is one that the SDK's stream helper adds to the chunks."""
    return isinstance(kind, str) and kind.startswith(_HELPERS)


def _present(value: Any) -> list[tuple[str, Any]]:
    """The members that are present, in the order of a message."""
    present = [member for member in members(value).items() if member[1]]
    return sorted(present, key=_rank) if len(present) > 1 else present


def _rank(member: tuple[str, Any]) -> int:
    return _ORDER.index(member[0]) if member[0] in _ORDER else len(_ORDER)


def _texts(thinking: Any) -> list[str] | None:
    """The texts of a thought, or None if it holds anything else, for example references."""
    if not isinstance(thinking, list):
        return None
    texts = [get(piece, "text") for piece in thinking if get(piece, "type") == "text"]
    strings = [text for text in texts if isinstance(text, str)]
    return strings if len(strings) == len(thinking) else None
