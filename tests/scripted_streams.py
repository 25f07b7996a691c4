"""A whole response as the frames of its provider's stream, cut small."""

import json
from binascii import crc32
from collections.abc import Callable, Iterator
from struct import pack
from typing import Any

from runfold_schemas.messages import Provider

PIECE = 7
"""How many characters a delta has."""


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def _sse(data: Any, *, event: str | None = None) -> bytes:
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {json.dumps(data)}\n\n".encode()


def bedrock(said: dict[str, Any]) -> Iterator[bytes]:
    """ConverseStream. Texts and reasoning begin without a start."""
    yield _aws("messageStart", {"role": "assistant"})
    for index, block in enumerate(said["output"]["message"]["content"]):
        for kind, event in _converse_block(block):
            yield _aws(kind, {"contentBlockIndex": index, **event})
        yield _aws("contentBlockStop", {"contentBlockIndex": index})
    yield _aws("messageStop", {"stopReason": said["stopReason"]})
    yield _aws("metadata", {"usage": said["usage"], "metrics": said["metrics"]})


def _converse_block(block: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if "text" in block:
        for piece in _pieces(block["text"]):
            yield "contentBlockDelta", {"delta": {"text": piece}}
    elif "reasoningContent" in block:
        reasoning = block["reasoningContent"]["reasoningText"]
        for piece in _pieces(reasoning["text"]):
            yield "contentBlockDelta", {"delta": {"reasoningContent": {"text": piece}}}
        signature = {"signature": reasoning["signature"]}
        yield "contentBlockDelta", {"delta": {"reasoningContent": signature}}
    else:
        call = block["toolUse"]
        start = {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}
        yield "contentBlockStart", {"start": start}
        for piece in _pieces(json.dumps(call["input"])):
            yield "contentBlockDelta", {"delta": {"toolUse": {"input": piece}}}


def _aws(kind: str, event: dict[str, Any]) -> bytes:
    """A message of vnd.amazon.eventstream: a prelude of two lengths, headers of type string (7),
    payload, checksums.
    """
    payload = json.dumps(event).encode()
    given = {":message-type": "event", ":event-type": kind, ":content-type": "application/json"}
    headers = b"".join(
        pack("!B", len(name)) + name.encode() + pack("!BH", 7, len(value)) + value.encode()
        for name, value in given.items()
    )
    prelude = pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + pack("!I", crc32(prelude)) + headers + payload
    return message + pack("!I", crc32(message))


def anthropic(said: dict[str, Any]) -> Iterator[bytes]:
    """Messages."""
    for event in _anthropic_events(said):
        yield _sse(event, event=event["type"])


def _anthropic_events(said: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {"content": [], "stop_reason": None, "usage": said["usage"] | {"output_tokens": 1}}
    yield {"type": "message_start", "message": said | begun}
    yield {"type": "ping"}
    for index, block in enumerate(said["content"]):
        start, deltas = _anthropic_block(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": said["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": said["usage"]["output_tokens"]}
    yield {"type": "message_delta", "delta": stop, "usage": usage}
    yield {"type": "message_stop"}


def _anthropic_block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "text":
            return block | {"text": ""}, [
                {"type": "text_delta", "text": piece} for piece in _pieces(block["text"])
            ]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [*deltas, signature]
        case "tool_use":
            text = json.dumps(block["input"])
            return block | {"input": {}}, [
                {"type": "input_json_delta", "partial_json": piece} for piece in ["", *_pieces(text)]
            ]
        case _:
            return block, []


def chat(said: dict[str, Any]) -> Iterator[bytes]:
    """Chat Completions. The usage comes behind the choices, where it was asked for."""
    envelope = {"id": said["id"], "created": 1, "model": said["model"], "object": "chat.completion.chunk"}
    [choice] = said["choices"]
    for delta in _chat_deltas(choice["message"]):
        yield _sse({**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield _sse({**envelope, "choices": [end]})
    yield _sse({**envelope, "choices": [], "usage": said["usage"]})
    yield b"data: [DONE]\n\n"


def _chat_deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(message["content"]):
        yield {"content": piece}
    for index, call in enumerate(message.get("tool_calls", ())):
        begun = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
        yield {"tool_calls": [{"index": index, **begun}]}
        for piece in _pieces(call["function"]["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def responses(said: dict[str, Any]) -> Iterator[bytes]:
    """Responses: every event has its number."""
    for number, event in enumerate(_responses_events(said)):
        yield _sse(event | {"sequence_number": number}, event=event["type"])


def _responses_events(said: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = said | {"status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(said["output"]):
        start, deltas = _responses_item(item)
        yield {"type": "response.output_item.added", "output_index": index, "item": start}
        for delta in deltas:
            yield {"item_id": item["id"], "output_index": index, **delta}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": said}


def _responses_item(item: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match item["type"]:
        case "reasoning":
            [part] = item["summary"]
            deltas = _responses_text("reasoning_summary", "summary", part)
            return item | {"summary": [], "encrypted_content": None}, deltas
        case "message":
            [part] = item["content"]
            return item | {"content": [], "status": "in_progress"}, _responses_text("output", "content", part)
        case _:
            kind = "response.function_call_arguments"
            text = item["arguments"]
            deltas = [{"type": f"{kind}.delta", "delta": piece} for piece in _pieces(text)]
            done = {"type": f"{kind}.done", "name": item["name"], "arguments": text}
            return item | {"arguments": "", "status": "in_progress"}, [*deltas, done]


def _responses_text(name: str, index: str, part: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a text in a part: it is added, it grows, it is done."""
    place = {f"{index}_index": 0}
    of_part = "content_part" if name == "output" else "reasoning_summary_part"
    logs = {"logprobs": []} if name == "output" else {}
    return [
        {"type": f"response.{of_part}.added", **place, "part": part | {"text": ""}},
        *(
            {"type": f"response.{name}_text.delta", **place, "delta": piece, **logs}
            for piece in _pieces(part["text"])
        ),
        {"type": f"response.{name}_text.done", **place, "text": part["text"], **logs},
        {"type": f"response.{of_part}.done", **place, "part": part},
    ]


def gemini(said: dict[str, Any]) -> Iterator[bytes]:
    """streamGenerateContent: each chunk is a response, the last one says why it ends."""
    [candidate] = said["candidates"]
    parts = [piece for part in candidate["content"]["parts"] for piece in _gemini_parts(part)]
    for number, part in enumerate(parts):
        chunk = {"content": {"role": "model", "parts": [part]}, "index": 0}
        if number + 1 == len(parts):
            chunk["finishReason"] = candidate["finishReason"]
        yield _sse({**said, "candidates": [chunk]})


def _gemini_parts(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not part.get("text"):
        yield part
    for piece in _pieces(part.get("text", "")):
        yield part | {"text": piece}


STREAMS: dict[Provider, Callable[[dict[str, Any]], Iterator[bytes]]] = {
    "bedrock": bedrock,
    "anthropic": anthropic,
    "openai-chat": chat,
    "openai-responses": responses,
    "gemini": gemini,
}
