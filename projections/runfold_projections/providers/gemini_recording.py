"""What a generateContent response becomes; what its parts carry for Gemini alone is told in
`gemini`.
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
    """Each chunk of a stream is a response with the parts that are new.

    Adjacent texts are pieces of one. A part with a signature stays by itself: Gemini asks not to
    merge it with others.
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
        given = _get(part, "thought_signature")
        signed = {} if given is None else self._signature(given)
        if isinstance(text, str):
            return self._text(text, "thinking" if _get(part, "thought") else "text", signed)
        call = _get(part, "function_call")
        if call is not None and not isinstance(call, str | int | float | list):
            return self._call(call, signed)
        return self._other(part)

    def _text(self, text: str, kind: str, signed: dict[str, Any]) -> list[Data]:
        if not text and not signed:
            return []
        events = [] if kind == self._open and not signed else self._turn_to(kind)
        if kind == "text":
            self.blocks.text(self._key, text, **signed)
        else:
            self.blocks.thinking(self._key, text, **signed)
        return events + self._turn_to("") if signed else events

    def _call(self, call: Any, signed: dict[str, Any]) -> list[Data]:
        tool_id = _word(_get(call, "id"))
        name = _word(_get(call, "name"))
        events: list[Data] = []
        if self._open != "call" or name:
            events = self._turn_to("call")
            self._arguments = {}
            signed = {"id": tool_id, **signed}
            if not name:
                self.blocks.fault("a call of no name")
        self.blocks.call(self._key, tool_id=tool_id, name=name, **signed)
        arguments = _get(call, "args")
        for piece in _items(_get(call, "partial_args")):
            self._argument(piece)
        if _get(call, "will_continue"):
            return events
        self.blocks.arguments(self._key, self._arguments if arguments is None else plain(arguments))
        return events + self._turn_to("")

    def _argument(self, piece: Any) -> None:
        """A piece of an argument, which Vertex AI streams where it is asked to: a path, and a value
        or more of a text.
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
            self.blocks.fault(f"a part that is none: {content!r}"[:200])
            return []
        events = self._turn_to("other")
        self.blocks.other(self._key, content)
        return events + self._turn_to("")

    def _turn_to(self, kind: str) -> list[Data]:
        """What the open block becomes, now that one of this kind begins, or none."""
        events = self.blocks.close(self._key) if self._open else []
        self._open = kind
        self._key += 1
        return events

    def _signature(self, given: Any) -> dict[str, Any]:
        signature = base64.b64encode(given).decode() if isinstance(given, bytes) else given
        if isinstance(signature, str) and _BASE64.fullmatch(signature):
            return {"thoughtSignature": signature}
        self.blocks.fault("a signature that is no base64")
        return {}

    def _usage(self, usage: Any) -> None:
        prompt = _get(usage, "prompt_token_count")
        thoughts = _count(_get(usage, "thoughts_token_count"))
        answer = _count(_get(usage, "candidates_token_count"))
        cached = _get(usage, "cached_content_token_count")
        self.blocks.usage(input_tokens=prompt, output_tokens=answer + thoughts, cache_read_tokens=cached)


def _get(value: Any, name: str) -> Any:
    """A member of an SDK's object or of JSON, by its name in snake_case. None where there is none.

    `recording.get` would ask an object for the name in camelCase too, and pydantic takes 5 us to
    say that it has none.
    """
    if isinstance(value, dict):
        found = value.get(name)
        return value.get(_camel_case(name)) if found is None else found
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
    """Sets what is at the end of the steps, or adds to the text there. Whether there is such a
    place.
    """
    for number, step in enumerate(steps):
        last = number + 1 == len(steps)
        if isinstance(step, int) and isinstance(target, list):
            target.extend([None] * (step + 1 - len(target)))
            standing = target[step]
        elif isinstance(step, str) and isinstance(target, dict):
            standing = target.get(step)
        else:
            return False
        if last and isinstance(standing, str) and isinstance(value, str):
            target[step] = standing + value
        elif last:
            target[step] = value
        elif standing is None:
            target[step] = [] if isinstance(steps[number + 1], int) else {}
        target = target[step]
    return bool(steps)


def _rest_form(value: Any, depth: int = 0) -> Any:
    """A part as the REST form has it: camelCase down to the fields of what it holds, bytes as
    base64.
    """
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
