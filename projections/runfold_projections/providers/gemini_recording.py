"""Records responses of generateContent as events. `gemini` describes the data that parts hold for
Gemini only.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from runfold_projections.providers.recording import Blocks, plain, whole
from runfold_schemas.data import Data

_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")


class GeminiRecorder:
    """Makes events of one response, or of a stream, whose chunks are responses with the new parts.

    Adjacent texts are pieces of one text. A part with a signature stays separate, because Gemini's
    documentation asks not to merge it with others.
    """

    def __init__(self, tool_names: Mapping[str, str]) -> None:
        self.blocks = Blocks("gemini", tool_names=tool_names, has_ids=False)
        self._key = 0
        self._open: str = ""
        self._arguments: dict[str, Any] = {}
        self._further = False

    def response(self, response: Any) -> Sequence[Data]:
        events = self.feed(response)
        self.blocks.unfinished = False
        return [*events, *self.blocks.end()]

    def feed(self, chunk: Any) -> Sequence[Data]:
        blocks = self.blocks
        blocks.message_id = blocks.message_id or _word(_get(chunk, "response_id"))
        blocks.model = blocks.model or _word(_get(chunk, "model_version"))
        if (usage := _get(chunk, "usage_metadata")) is not None:
            self._usage(usage)
        if (feedback := _get(chunk, "prompt_feedback")) is not None:
            blocked = _get(feedback, "block_reason")
            blocks.fault(f"the prompt was blocked: {_word(blocked) or 'no reason given'}")
        events: list[Data] = []
        for candidate in _items(_get(chunk, "candidates")):
            events += self._candidate(candidate)
        blocks.unfinished = blocks.stop_reason is None and feedback is None
        return events

    def _candidate(self, candidate: Any) -> list[Data]:
        index = _get(candidate, "index")
        if isinstance(index, int) and index > 0:
            if not self._further:
                self.blocks.fault("of several candidates only the first is recorded")
            self._further = True
            return []
        events: list[Data] = []
        for part in _items(_get(_get(candidate, "content"), "parts")):
            events += self._part(part)
        self.blocks.stop_reason = _word(_get(candidate, "finish_reason")) or self.blocks.stop_reason
        if message := _word(_get(candidate, "finish_message")):
            self.blocks.fault(message)
        return events

    def _part(self, part: Any) -> list[Data]:
        text = _get(part, "text")
        signature = _get(part, "thought_signature")
        signed = {} if signature is None else self._signature(signature)
        if isinstance(text, str):
            return self._text(text, "thinking" if _get(part, "thought") else "text", signed)
        call = _get(part, "function_call")
        if call is not None and not isinstance(call, str | int | float | list):
            return self._call(call, signed)
        return self._other(part)

    def _text(self, text: str, kind: str, signed: dict[str, Any]) -> list[Data]:
        if not text and not signed:
            return []
        events = [] if kind == self._open and not signed else self._switch_to(kind)
        if kind == "text":
            self.blocks.text(self._key, text, **signed)
        else:
            self.blocks.thinking(self._key, text, **signed)
        return events + self._switch_to("") if signed else events

    def _call(self, call: Any, signed: dict[str, Any]) -> list[Data]:
        tool_id = _word(_get(call, "id"))
        name = _word(_get(call, "name"))
        events: list[Data] = []
        if self._open != "call" or name:
            events = self._switch_to("call")
            self._arguments = {}
            signed = {"id": tool_id, **signed}
            if not name:
                self.blocks.fault("a call without a name")
        self.blocks.call(self._key, tool_id=tool_id, name=name, **signed)
        arguments = _get(call, "args")
        for piece in _items(_get(call, "partial_args")):
            self._argument(piece)
        if _get(call, "will_continue"):
            return events
        self.blocks.arguments(self._key, self._arguments if arguments is None else plain(arguments))
        return events + self._switch_to("")

    def _argument(self, piece: Any) -> None:
        """Adds a piece of an argument: a path with a value or more text. Vertex AI streams
        arguments on request.
        """
        path = _word(_get(piece, "json_path")) or ""
        values = (_get(piece, name) for name in ("string_value", "number_value", "bool_value"))
        value = plain(next((value for value in values if value is not None), None))
        self.blocks.arguments_text(self._key, json.dumps({path: value}))
        if not _put(self._arguments, _path(path), value):
            self.blocks.fault(f"a piece of the arguments has no place: {path!r}")

    def _other(self, part: Any) -> list[Data]:
        content = _rest_form(part)
        if not content or not isinstance(content, dict):
            self.blocks.fault(f"an empty part: {content!r}"[:200])
            return []
        events = self._switch_to("other")
        self.blocks.other(self._key, content)
        return events + self._switch_to("")

    def _switch_to(self, kind: str) -> list[Data]:
        """Ends the open block and begins a block of this kind, or none for "". Returns the events
        of the ended block.
        """
        events = self.blocks.close(self._key) if self._open else []
        self._open = kind
        self._key += 1
        return events

    def _signature(self, signature: Any) -> dict[str, Any]:
        text = base64.b64encode(signature).decode() if isinstance(signature, bytes) else signature
        if isinstance(text, str) and _BASE64.fullmatch(text):
            return {"thoughtSignature": text}
        self.blocks.fault("a signature that is not base64")
        return {}

    def _usage(self, usage: Any) -> None:
        prompt = _get(usage, "prompt_token_count")
        thoughts = _count(_get(usage, "thoughts_token_count"))
        answer = _count(_get(usage, "candidates_token_count"))
        cached = _get(usage, "cached_content_token_count")
        self.blocks.usage(input_tokens=prompt, output_tokens=answer + thoughts, cache_read_tokens=cached)


def _get(value: Any, name: str) -> Any:
    """A member of an SDK's object or of JSON, by its name in snake_case. None if it is absent.

    `recording.get` would also look up the name in camelCase, and pydantic takes 5 us for a missing
    attribute.
    """
    if isinstance(value, dict):
        member = value.get(name)
        return value.get(_camel_case(name)) if member is None else member
    return getattr(value, name, None)


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()


def _word(value: Any) -> str | None:
    word = value.value if isinstance(value, Enum) else value
    return whole(word) if isinstance(word, str) else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _path(path: str) -> list[str | int]:
    """The steps of a JSONPath (RFC 9535) to one value."""
    steps = re.findall(r"\.([^.\[\]]+)|\[(\d{1,4})\]|\[['\"](.*?)['\"]\]", path)
    return [int(index) if index else name or quoted for name, index, quoted in steps]


def _put(target: Any, steps: list[str | int], value: Any) -> bool:
    """Sets the value at the end of the steps, or appends to a text there. Returns whether the steps
    lead to a place.
    """
    for number, step in enumerate(steps):
        last = number + 1 == len(steps)
        if isinstance(step, int) and isinstance(target, list):
            target.extend([None] * (step + 1 - len(target)))
            current = target[step]
        elif isinstance(step, str) and isinstance(target, dict):
            current = target.get(step)
        else:
            return False
        if last and isinstance(current, str) and isinstance(value, str):
            target[step] = current + value
        elif last:
            target[step] = value
        elif current is None:
            target[step] = [] if isinstance(steps[number + 1], int) else {}
        target = target[step]
    return bool(steps)


def _rest_form(value: Any, depth: int = 0) -> Any:
    """A part in the REST form: names in camelCase on the first two levels, bytes as base64."""
    if hasattr(value, "model_dump"):
        return _rest_form(value.model_dump(by_alias=True, exclude_none=True, warnings=False), depth)
    if isinstance(value, Mapping) and depth < 2:
        members = ((whole(str(name)), member) for name, member in value.items() if member is not None)
        return {_camel_case(name): _rest_form(member, depth + 1) for name, member in members}
    return plain(value.value if isinstance(value, Enum) else value)


@lru_cache(maxsize=200)
def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other[:1].upper() + other[1:] for other in others)
