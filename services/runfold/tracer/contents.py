"""What was said and what tools were given, as attributes. They are exported on request only."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from runfold_schemas.data import Data
from runfold_schemas.events import (
    AssistantMessage,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)

_TEXT_MAX: Final = 8_192

_MESSAGES_MAX: Final = 32_768
"""Collectors refuse very long attributes. Longer texts are cut, and further parts are left out."""

Part = Mapping[str, Any]


def part_of(data: Data) -> tuple[str, Part] | None:
    """The role and the part of a message by the conventions, None for other data."""
    match data:
        case SystemMessage():
            return "system", text_part(data.message)
        case UserMessage():
            return "user", text_part(data.message)
        case AssistantMessage():
            return "assistant", text_part(data.message)
        case Thinking() if data.text:
            return "assistant", {"type": "reasoning", "content": _cut(data.text)}
        case ToolCall():
            call = {"id": data.tool_call_id, "name": data.tool_name, "arguments": _bounded(data.payload)}
            return "assistant", {"type": "tool_call", **call}
        case ToolResult():
            result = _bounded(data.result if data.error is None else data.error)
            return "tool", {"type": "tool_call_response", "id": data.tool_call_id, "response": result}
        case _:
            return None


def text_part(text: str) -> Part:
    return {"type": "text", "content": _cut(text)}


def messages_json(parts: Iterable[tuple[str, Part]], *, finish_reason: str | None = None) -> str:
    """The messages of these parts in the form of `gen_ai.input.messages`."""
    messages: list[dict[str, Any]] = []
    size = 0
    for role, part in parts:
        size += len(_json(part))
        if size > _MESSAGES_MAX:
            break
        if not messages or messages[-1]["role"] != role:
            messages.append({"role": role, "parts": []})
        messages[-1]["parts"].append(part)
    if messages and finish_reason is not None:
        messages[-1]["finish_reason"] = finish_reason
    return _json(messages)


def value_json(value: Any) -> str:
    """An argument or a result of a tool."""
    return _json(_bounded(value))


def _bounded(value: Any) -> Any:
    """The value, or the beginning of its JSON text if that is long."""
    text = _json(value)
    return value if len(text) <= _TEXT_MAX else _cut(text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
