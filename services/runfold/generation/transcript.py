"""A conversation as the model reads it: a line of JSON for each thing said or done."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from runfold.generation.lines import line
from runfold_schemas.messages import Message, Part

CONVERSATION_LENGTH_MAX: Final = 240_000
"""Characters that the model reads at the most, the newest: some 60,000 tokens."""

_RESULT_LENGTH_MAX: Final = 4_000
"""Of what a tool was given or answered: the facts are in what is said of it."""


def transcript(messages: Iterable[Message]) -> tuple[str, bool]:
    """The conversation, and whether its beginning is left out because it is too long.

    Instructions of the application (system messages) and thinking are no part of it.
    """
    lines = [
        line(said)
        for message in messages
        if message.role != "system"
        for part in message.parts
        for said in _said(message.role, part)
    ]
    return _newest(lines)


def _said(role: str, part: Part) -> Iterator[dict[str, Any]]:
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
    for one in reversed(lines):
        room -= len(one) + 1
        if room < 0:
            break
        kept.append(one)
    if not kept and lines:
        kept.append(line({"text": lines[-1][-CONVERSATION_LENGTH_MAX:]}))
    return "\n".join(reversed(kept)), len(kept) < len(lines) or room < 0
