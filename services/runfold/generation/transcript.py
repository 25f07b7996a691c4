"""A conversation as the model reads it: a line of JSON for each text, call and result."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from runfold.generation.lines import line
from runfold_schemas.messages import Message, Part

CONVERSATION_LENGTH_MAX: Final = 240_000
"""How many characters the model reads at most, the newest: some 60,000 tokens."""

_RESULT_LENGTH_MAX: Final = 4_000
"""The limit for a tool's input and for its result: the facts are in the messages about them."""


def transcript(messages: Iterable[Message]) -> tuple[str, bool]:
    """The conversation, and whether its beginning is left out because it is too long.

    Instructions of the application (system messages) and thinking are left out.
    """
    lines = [
        line(value)
        for message in messages
        if message.role != "system"
        for part in message.parts
        for value in _values(message.role, part)
    ]
    return _newest(lines)


def _values(role: str, part: Part) -> Iterator[dict[str, Any]]:
    match part.type:
        case "text":
            if part.text.strip():
                yield {"role": role, "text": part.text}
        case "tool_use":
            yield {"role": role, "calls": part.name, "with": _short(part.input)}
        case "tool_result":
            yield {"role": "tool", "answers": _short(part.content)}
        case "image" | "document":
            yield {"role": role, "shows": part.media_type or part.type}
        case "thinking" | "opaque":
            pass


def _short(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= _RESULT_LENGTH_MAX else text[:_RESULT_LENGTH_MAX] + "…"


def _newest(lines: Sequence[str]) -> tuple[str, bool]:
    room, kept = CONVERSATION_LENGTH_MAX, []
    for text in reversed(lines):
        room -= len(text) + 1
        if room < 0:
            break
        kept.append(text)
    if not kept and lines:
        kept.append(line({"text": lines[-1][-CONVERSATION_LENGTH_MAX:]}))
    return "\n".join(reversed(kept)), len(kept) < len(lines) or room < 0
