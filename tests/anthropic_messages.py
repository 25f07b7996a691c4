"""Anthropic as the tests know it: what Messages takes, by the package's own types and its
documented rules, and what it answers.
"""

import importlib
import json
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import anthropic
from anthropic import types
from pydantic import TypeAdapter
from tests.ledgers import ledger_of

from runfold_projections.providers.anthropic import AnthropicRecorder, encode
from runfold_projections.providers.encoding import input_of
from runfold_schemas.events import ResponseRecorded
from runfold_schemas.messages import Message, Part, TextPart, ThinkingPart, ToolResultPart, ToolUsePart

MESSAGES: TypeAdapter[Any] = TypeAdapter(list[types.MessageParam])
PARAMS: dict[str, Any] = {
    "text": types.TextBlockParam,
    "image": types.ImageBlockParam,
    "document": types.DocumentBlockParam,
    "thinking": types.ThinkingBlockParam,
    "redacted_thinking": types.RedactedThinkingBlockParam,
    "tool_use": types.ToolUseBlockParam,
    "tool_result": types.ToolResultBlockParam,
    "server_tool_use": types.ServerToolUseBlockParam,
    "web_search_tool_result": types.WebSearchToolResultBlockParam,
}
SOURCES: dict[tuple[str, str], Any] = {
    ("image", "base64"): types.Base64ImageSourceParam,
    ("image", "url"): types.URLImageSourceParam,
    ("document", "base64"): types.Base64PDFSourceParam,
    ("document", "url"): types.URLPDFSourceParam,
    ("document", "text"): types.PlainTextSourceParam,
}
# The package brings httpx under one name or another.
httpx = importlib.import_module(anthropic.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])
ID = re.compile(r"[a-zA-Z0-9_-]+")
USAGE = {
    "input_tokens": 7,
    "output_tokens": 5,
    "cache_read_input_tokens": 3,
    "cache_creation_input_tokens": 2,
}


def user(*parts: Part) -> Message:
    return Message(role="user", parts=parts)


def assistant(*parts: Part) -> Message:
    return Message(role="assistant", parts=parts)


def exchange(*results: Part) -> list[Message]:
    called = assistant(ToolUsePart(id="1", name="look", input={}))
    return [called, user(*results)] if results else [called]


def valid(*messages: Message) -> dict[str, Any]:
    body = encode(messages, {"lossy": "refuse"}).body
    check(body)
    return body


def check(body: dict[str, Any]) -> None:
    """Raises if Messages would refuse this: by the package's types, then by the rules that its
    errors tell of.
    """
    # The types' iterables are validated only as they are walked.
    assert all(list(one["content"]) for one in MESSAGES.validate_python(body["messages"]))
    assert body.get("system") != []
    for block in body.get("system", []):
        obeys(block)
    for _, block in blocks(body):
        obeys(block)
    ids = [block["id"] for _, block in blocks(body) if block["type"] == "tool_use"]
    assert len(ids) == len(set(ids))
    called: set[str] = set()
    kinds: list[str] = []
    for message in body["messages"]:
        if message["role"] == "assistant":
            called = {one["id"] for one in message["content"] if one["type"] == "tool_use"}
            kinds = []
            continue
        kinds += [block["type"] for block in message["content"]]
        assert kinds == sorted(kinds, key=lambda kind: kind != "tool_result")
        assert {one["tool_use_id"] for one in message["content"] if one["type"] == "tool_result"} <= called


def obeys(block: dict[str, Any]) -> None:
    """The types are lax in a union: each block is held against its own, with what it needs and
    nothing else.
    """
    complete(block, PARAMS[block["type"]])
    match block:
        case {"type": "text", "text": text}:
            assert text.strip()
        case {"type": "tool_use", "id": tool_id, "name": name}:
            assert ID.fullmatch(tool_id)
            assert ID.fullmatch(name)
            assert len(name) <= 128
        case {"type": "tool_result", "content": str() as content}:
            assert content.strip()
        case {"type": "tool_result", "content": list() as content}:
            assert "is_error" not in block or {inner["type"] for inner in content} <= {"text"}
            for inner in content:
                obeys(inner)
        case {"type": "image" | "document" as kind, "source": source}:
            complete(source, SOURCES[kind, source["type"]])


def complete(block: dict[str, Any], param: Any) -> None:
    assert param.__required_keys__ <= set(block) <= set(get_type_hints(param)), (block, param)
    for name, hint in get_type_hints(param).items():
        if str(get_origin(hint)) == "typing.Literal" and name in block:
            assert block[name] in get_args(hint)


def blocks(body: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(one["role"], block) for one in body["messages"] for block in one["content"]]


def gist(part: Part, tool_ids: dict[str, str] | None = None) -> Any:
    match part:
        case ToolUsePart():
            return "call", (tool_ids or {}).get(part.id, part.id), part.name, input_of(part)
        case ThinkingPart():
            return part.text, part.signature, part.redacted
        case TextPart():
            return part.text
        case ToolResultPart():
            return "result", part.tool_use_id, part.is_error and not part.attachments
        case _:
            return part.type


def gist_of_block(block: dict[str, Any], encoded: Any) -> Any:
    match block:
        case {"type": "tool_use", "id": tool_id, "name": name}:
            return (
                "call",
                encoded.tool_ids.get(tool_id, tool_id),
                encoded.tool_names.get(name, name),
                block["input"],
            )
        case {"type": "thinking"}:
            return block["thinking"], block["signature"], None
        case {"type": "redacted_thinking"}:
            return "", "", block["data"]
        case {"type": "tool_result", "tool_use_id": tool_id}:
            return "result", encoded.tool_ids.get(tool_id, tool_id), block.get("is_error", False)
        case {"type": "text", "text": text}:
            return text
    return block["type"]


def response(content: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": content,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
    }


def response_parts(content: list[Any], *, tool_names: dict[str, str]) -> list[Part]:
    said = AnthropicRecorder(tool_names).response(response(content))
    assert said[-1] == ResponseRecorded(model="claude", stop_reason="end_turn", response_id="msg_1")
    return [part for message in ledger_of(list(said), "anthropic") for part in message.parts]


def start(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **said: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **said}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


BEGIN = {
    "type": "message_start",
    "message": {**response([]), "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}},
}
END = [
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    },
    {"type": "message_stop"},
]


def stream(content: list[Any], size: int) -> list[dict[str, Any]]:
    """The events of a stream for a response, its texts in pieces of this size."""
    events = [BEGIN, {"type": "ping"}]
    for index, block in enumerate(content):
        events += [*streamed(index, block, size), stop(index)]
    return events + END


def streamed(index: int, block: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    match block:
        case {"type": "text"}:
            yield start(index, {**block, "text": "", "citations": None})
            yield from (delta(index, "text_delta", text=piece) for piece in pieces(block["text"], size))
            for citation in block.get("citations", []):
                yield delta(index, "citations_delta", citation=citation)
        case {"type": "thinking"}:
            yield start(index, {**block, "thinking": "", "signature": ""})
            yield from (
                delta(index, "thinking_delta", thinking=piece) for piece in pieces(block["thinking"], size)
            )
            yield delta(index, "signature_delta", signature=block["signature"])
        case {"type": "tool_use" | "server_tool_use", "input": given}:
            yield start(index, {**block, "input": {}})
            yield delta(index, "input_json_delta", partial_json="")
            yield from (
                delta(index, "input_json_delta", partial_json=piece)
                for piece in pieces(json.dumps(given), size)
            )
        case _:
            yield start(index, block)


def pieces(text: str, size: int) -> list[str]:
    return [text[place : place + size] for place in range(0, len(text), size)]


def client(
    *, whole: dict[str, Any] | None = None, events: list[dict[str, Any]] | None = None
) -> anthropic.Anthropic:
    """The package's client, whose every request is answered with this message, or with these
    events.
    """

    def answer(request: Any) -> Any:
        if whole is not None:
            return httpx.Response(200, json=whole)
        lines = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events or [])
        return httpx.Response(200, text=lines, headers={"content-type": "text/event-stream"})

    return anthropic.Anthropic(
        api_key="none", http_client=httpx.Client(transport=httpx.MockTransport(answer)), max_retries=0
    )
