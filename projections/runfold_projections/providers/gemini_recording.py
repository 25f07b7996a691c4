"""Records responses of generateContent as events. `gemini` describes the data that parts hold for
Gemini only.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from runfold_projections.providers.gemini_sources import Sources
from runfold_projections.providers.recording import Blocks
from runfold_projections.providers.values import camel_case, plain
from runfold_schemas.data import Data
from runfold_schemas.whole_texts import whole

_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")

_PART: Final = frozenset(
    {"text", "thought", "thought_signature", "thoughtSignature", "function_call", "functionCall"}
)
_CALL: Final = frozenset(
    {"id", "name", "args", "partial_args", "partialArgs", "will_continue", "willContinue"}
)
"""The members of a part and of a call that have a place in an event, in both spellings."""

_ORDINARY: Final = frozenset(
    {"candidates", "usage_metadata", "usageMetadata", "model_version", "modelVersion"}
    | {"response_id", "responseId", "sdk_http_response"}
    | {"content", "index", "finish_reason", "finishReason"}
)
"""The members that chunks mostly have. A chunk with these alone is read faster."""

_NOTHING: Final[Mapping[str, Any]] = {}

_BESIDE: Final = ("prompt_feedback", "create_time", "model_status")
_BESIDE_CONTENT: Final = (
    "grounding_metadata",
    "url_context_metadata",
    "safety_ratings",
    "avg_logprobs",
    "logprobs_result",
    "token_count",
)
"""What stands beside the content, of a response and of a candidate. A later chunk replaces it."""


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
        # The key and the pieces of the open text, and the sources of the first candidate.
        self._text_key = 0
        self._pieces: list[str] = []
        self._sources = Sources()
        # The other candidates, by index.
        self._further: dict[int, dict[str, Any]] = {}

    def response(self, response: Any) -> Sequence[Data]:
        self._take(response)
        self.blocks.unfinished = False
        return self.blocks.end()

    def feed(self, chunk: Any) -> Sequence[Data]:
        self._take(chunk)
        return self.blocks.take()

    def _take(self, chunk: Any) -> None:
        blocks = self.blocks
        if blocks.response_id and blocks.model and self._open == "text" and (text := text_alone(chunk)):
            if (usage := _get(chunk, "usage_metadata")) is not None:
                blocks.usage(usage)
            self._text(text, "text", {})
            blocks.unfinished = blocks.stop_reason is None
            return
        blocks.response_id = blocks.response_id or _word(_get(chunk, "response_id"))
        blocks.model = blocks.model or _word(_get(chunk, "model_version"))
        if (usage := _get(chunk, "usage_metadata")) is not None:
            blocks.usage(usage)
        feedback = _get(chunk, "prompt_feedback")
        blocked = None if feedback is None else _get(feedback, "block_reason")
        if blocked:
            blocks.refuse(None)
            blocks.fault(f"the prompt was blocked: {_word(blocked) or 'no reason given'}")
        if not _ORDINARY.issuperset(_names(chunk)):
            self._keep(chunk, _BESIDE)
            if (error := _get(chunk, "error")) is not None:
                blocks.fault(
                    f"an error instead of a response: {_word(_get(error, 'message')) or plain(error)}"
                )
        for candidate in _items(_get(chunk, "candidates")):
            self._candidate(candidate)
        blocks.unfinished = blocks.stop_reason is None and not blocked

    def _candidate(self, candidate: Any) -> None:
        index = _get(candidate, "index")
        if isinstance(index, int) and index > 0:
            self._keep_further(index, candidate)
            return
        for part in _items(_get(_get(candidate, "content"), "parts")):
            self._part(part)
        if not _ORDINARY.issuperset(_names(candidate)):
            self._keep(candidate, _BESIDE_CONTENT)
            self._cite(candidate)
            self.blocks.usage(_get(candidate, "grounding_metadata"))
        self.blocks.stop_reason = _word(_get(candidate, "finish_reason")) or self.blocks.stop_reason
        if message := _word(_get(candidate, "finish_message")):
            self.blocks.fault(message)

    def _keep(self, value: Any, names: Sequence[str]) -> None:
        members = {camel_case(name): _get(value, name) for name in names}
        kept = {name: _rest_form(member) for name, member in members.items() if member is not None}
        if kept:
            self.blocks.beside(kept)

    def _keep_further(self, index: int, candidate: Any) -> None:
        """Keeps another candidate beside the content. A run continues with one answer."""
        form = _rest_form(candidate)
        further = self._further.setdefault(index, {})
        content, earlier = form.get("content") or {}, further.get("content") or {}
        parts = [*_items(earlier.get("parts")), *_items(content.get("parts"))]
        further |= form | {"content": {**earlier, **content, "parts": parts}}
        self.blocks.beside({"candidates": list(self._further.values())})

    def _cite(self, candidate: Any) -> None:
        """Cites the sources in the open text. The sources of a text that has ended are kept beside
        the content only.
        """
        metadata = _get(candidate, "citation_metadata")
        if self._sources.add(_rest_form(metadata), _rest_form(_get(candidate, "grounding_metadata"))):
            if self._sources.licensed:
                self.blocks.beside({"citationMetadata": {"citations": self._sources.licensed}})
            if self._pieces and (cited := self._sources.citations("".join(self._pieces))):
                self.blocks.cite(self._text_key, cited)

    def _part(self, part: Any) -> None:
        text = _get(part, "text")
        signature = _get(part, "thought_signature")
        signed = {} if signature is None else self._signature(signature)
        if others := _others(part, _PART):
            signed["members"] = others
        call = _get(part, "function_call")
        if isinstance(text, str):
            self._text(text, "thinking" if _get(part, "thought") else "text", signed)
        elif call is not None and not isinstance(call, str | int | float | list):
            self._call(call, signed)
        else:
            self._other(part)

    def _text(self, text: str, kind: str, signed: dict[str, Any]) -> None:
        if not text and not signed:
            return
        # Gemini 3 streams a signature in an empty part behind the text.
        is_behind_text = kind == "text" and not text and bool(self._pieces)
        if kind != self._open or signed:
            self._switch_to(kind, keeps_text=is_behind_text)
        if kind == "text":
            if text:
                self._text_key = self._key
                self._pieces.append(text)
            self.blocks.text(self._key, text, **signed)
        else:
            self.blocks.thinking(self._key, text, **signed)
        if signed:
            # The sources of the text may still come, but no further text joins it.
            self._open = f"signed {kind}"

    def _call(self, call: Any, signed: dict[str, Any]) -> None:
        tool_id = _word(_get(call, "id"))
        name = _word(_get(call, "name"))
        if self._open != "call" or name:
            self._switch_to("call")
            self._arguments = {}
            signed = {"id": tool_id, **signed}
            if others := _others(call, _CALL):
                signed["call"] = others
            if not name:
                self.blocks.fault("a call without a name")
        self.blocks.call(self._key, tool_id=tool_id, name=name, **signed)
        arguments = _get(call, "args")
        for piece in _items(_get(call, "partial_args")):
            self._argument(piece)
        if not _get(call, "will_continue"):
            self.blocks.arguments(self._key, plain(self._arguments if arguments is None else arguments))
            self._switch_to("")

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

    def _other(self, part: Any) -> None:
        content = _rest_form(part)
        if not content or not isinstance(content, dict):
            self.blocks.fault(f"an empty part: {content!r}"[:200])
            return
        self._switch_to("other")
        self.blocks.other(self._key, content)
        self._switch_to("")

    def _switch_to(self, kind: str, *, keeps_text: bool = False) -> None:
        """Ends the open blocks and begins a block of this kind, or none for "". With `keeps_text`
        the text stays open, because its sources may follow.
        """
        if not keeps_text:
            self.blocks.close(self._text_key)
            self._pieces.clear()
        if self._key != self._text_key:
            self.blocks.close(self._key)
        self._open = kind
        self._key += 1

    def _signature(self, signature: Any) -> dict[str, Any]:
        text = base64.b64encode(signature).decode() if isinstance(signature, bytes) else signature
        if isinstance(text, str) and _BASE64.fullmatch(text):
            return {"thoughtSignature": text}
        self.blocks.fault("a signature that is not base64")
        return {}


def text_alone(chunk: Any) -> str | None:
    """The text of a chunk that has nothing else to record but its counts, as most chunks of a
    stream. None for any other chunk, and for one without text.
    """
    candidate = _only_item(chunk, "candidates")
    fields = _fields(candidate)
    if fields.get("index") or fields.get("finish_reason") or fields.get("finishReason"):
        return None
    if not (_ORDINARY.issuperset(_names(chunk)) and _ORDINARY.issuperset(_names(candidate))):
        return None
    part = _only_item(fields.get("content"), "parts")
    text = _fields(part).get("text")
    return text if type(text) is str and {"text"}.issuperset(_names(part)) else None


def _only_item(value: Any, name: str) -> Any:
    """The item of a list among the members. None if the list has no item, or several."""
    items = _fields(value).get(name)
    return items[0] if type(items) is list and len(items) == 1 else None


def _fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else getattr(value, "__dict__", _NOTHING)


def _get(value: Any, name: str) -> Any:
    """A member of an SDK's object or of JSON, by its name in snake_case. None if it is absent.

    `values.get` would also look up the name in camelCase, and pydantic takes 5 us for a missing
    attribute.
    """
    if isinstance(value, dict):
        member = value.get(name)
        return value.get(camel_case(name)) if member is None else member
    return getattr(value, name, None)


def _names(value: Any) -> Iterable[str]:
    """The names of the members that an SDK's object or JSON has."""
    return value if isinstance(value, dict) else getattr(value, "__pydantic_fields_set__", ())


def _others(value: Any, recorded: frozenset[str]) -> dict[str, Any]:
    """The members of a part or a call, in the REST form, that have no place in an event."""
    if recorded.issuperset(_names(value)):
        return {}
    form = _rest_form(value)
    if not isinstance(form, dict):
        return {}
    return {name: member for name, member in form.items() if name not in recorded and member is not False}


def _items(value: Any) -> Sequence[Any]:
    if type(value) is list:
        return value
    return value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()


def _word(value: Any) -> str | None:
    word = value.value if isinstance(value, Enum) else value
    return whole(word) if isinstance(word, str) else None


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
        return {camel_case(name): _rest_form(member, depth + 1) for name, member in members}
    return plain(value.value if isinstance(value, Enum) else value)
