"""Messages, requests and responses for the tests of Gemini."""

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

from google.genai import types
from tests.builders import events
from tests.media import png

from runfold_projections.ledger import build_messages_from_events
from runfold_projections.providers import gemini
from runfold_projections.providers.encoding import Encoded
from runfold_schemas.data import Data
from runfold_schemas.messages import (
    Message,
    Part,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)

SIGNATURE = base64.b64encode(b"signed by Gemini").decode()
UNSIGNED = base64.b64encode(b"skip_thought_signature_validator").decode()
PNG = base64.b64encode(png()).decode()

SIGNED = {"gemini": {"thoughtSignature": SIGNATURE}}


def user(*parts: Part | str) -> Message:
    return _message("user", parts)


def system(*parts: Part | str) -> Message:
    return _message("system", parts)


def assistant(*parts: Part | str) -> Message:
    return _message("assistant", parts)


def _message(role: Any, parts: Iterable[Part | str]) -> Message:
    return Message(
        role=role, parts=tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    )


def call(tool_id: str = "c-1", name: str = "look", **options: Any) -> ToolUsePart:
    return ToolUsePart(id=tool_id, name=name, **({"input": {"at": 1}} | options))


def result(content: Any, tool_id: str = "c-1", **options: Any) -> ToolResultPart:
    return ToolResultPart(tool_use_id=tool_id, content=content, **options)


def encoded(*messages: Message, lossy: Any = "refuse") -> Encoded:
    return gemini.encode(messages, {"lossy": lossy})


def contents(*messages: Message) -> list[dict[str, Any]]:
    return valid(encoded(*messages)).body["contents"]


def valid(request: Encoded) -> Encoded:
    """The request, which google-genai's types take: they forbid what they do not know, and read
    base64.
    """
    json.dumps(request.body)
    for content in [*request.body["contents"], request.body.get("systemInstruction", {})]:
        types.Content.model_validate(content)
    return request


def response(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {
        "candidates": [candidate | {"finishReason": "STOP"}],
        "modelVersion": "gemini-3-pro",
        "responseId": "r-1",
    } | fields


def recorded(said: Any, **tool_names: str) -> list[Data]:
    return list(gemini.GeminiRecorder(tool_names).response(said))


def streamed(chunks: Iterable[Any], *, finished: bool = True) -> list[Data]:
    recorder = gemini.GeminiRecorder({})
    said = [data for chunk in chunks for data in recorder.feed(chunk)]
    return said + recorder.blocks.end(finished=finished)


def messages_of(said: Sequence[Data]) -> list[Message]:
    return build_messages_from_events(events(*said, message_id="r-1", provider="gemini"))
