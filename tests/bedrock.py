"""Bedrock as the tests know it: what Converse takes, by its service model and its documented rules,
and what it answers.
"""

import json
import re
from base64 import b64encode
from itertools import groupby
from typing import Any

import botocore.session
from botocore.model import Shape
from botocore.validate import ParamValidator
from tests.ledgers import ledger_of

from runfold_projections.providers.bedrock import BedrockRecorder, encode
from runfold_projections.providers.encoding import input_of
from runfold_schemas.events import ResponseRecorded
from runfold_schemas.messages import Message, Part, TextPart, ThinkingPart, ToolResultPart, ToolUsePart

CONVERSE = botocore.session.get_session().get_service_model("bedrock-runtime").operation_model("Converse")
USAGE = {"inputTokens": 7, "outputTokens": 5, "totalTokens": 12, "cacheReadInputTokens": 3}
RECORDED = ResponseRecorded(stop_reason="end_turn", provider_data={"bedrock": {"metrics": {"latencyMs": 1}}})
CONTEXT = {"bedrock": {"context": "a note"}, "gemini": {"x": 1}}


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
    """Raises if Converse would refuse this: by its service model, then by the rules that it only
    documents.
    """
    report = ParamValidator().validate({"modelId": "model", **body}, CONVERSE.input_shape)
    assert not report.has_errors(), report.generate_report()
    obeys(body, CONVERSE.input_shape)
    roles = [message["role"] for message in body["messages"]]
    assert all(len(list(group)) == 1 for _, group in groupby(roles))
    names = [block["document"]["name"] for _, block in blocks(body) if "document" in block]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[\w\-()\[\]]+( [\w\-()\[\]]+)*", name, re.ASCII) for name in names)
    ids = [block["toolUse"]["toolUseId"] for _, block in blocks(body) if "toolUse" in block]
    assert len(ids) == len(set(ids))
    called: set[str] = set()
    for message in body["messages"]:
        kinds = [next(iter(block)) for block in message["content"]]
        assert kinds
        if "document" in kinds:
            assert "text" in kinds
        if message["role"] == "user":
            assert kinds == sorted(kinds, key=lambda kind: kind != "toolResult")
            answered = {one["toolResult"]["toolUseId"] for one in message["content"] if "toolResult" in one}
            assert answered <= called
        called = {one["toolUse"]["toolUseId"] for one in message["content"] if "toolUse" in one}


def obeys(value: Any, shape: Shape) -> None:
    """botocore checks names, types and least lengths; patterns, enumerations and greatest lengths
    only the service.
    """
    match value:
        case dict() if not shape.metadata.get("document"):
            for name, member in value.items():
                obeys(member, shape.members[name])
                if name == "text" and shape.name != "ReasoningTextBlock":
                    assert member.strip()
        case list():
            for member in value:
                obeys(member, shape.member)
        case str():
            assert re.fullmatch(shape.metadata.get("pattern", r"(?s).*"), value)
            assert value in shape.metadata.get("enum", [value])
            assert len(value) <= shape.metadata.get("max", len(value))


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
        case {"toolUse": call}:
            name = encoded.tool_names.get(call["name"], call["name"])
            return "call", encoded.tool_ids.get(call["toolUseId"], call["toolUseId"]), name, call["input"]
        case {"reasoningContent": {"reasoningText": said}}:
            return said["text"], said["signature"], None
        case {"reasoningContent": {"redactedContent": data}}:
            return "", "", b64encode(data).decode()
        case {"toolResult": result}:
            tool_id = encoded.tool_ids.get(result["toolUseId"], result["toolUseId"])
            return "result", tool_id, result.get("status") == "error"
        case {"text": text}:
            return text
    return next(iter(block))


def response(content: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {
        "output": {"message": message},
        "stopReason": "end_turn",
        "usage": USAGE,
        "metrics": {"latencyMs": 1},
    }


def response_parts(content: list[Any], *, tool_names: dict[str, str]) -> list[Part]:
    said = BedrockRecorder(tool_names).response(response(content))
    assert said[-1] == RECORDED
    return [part for message in ledger_of(list(said), "bedrock") for part in message.parts]


def start(index: int, said: Any) -> dict[str, Any]:
    return {"contentBlockStart": {"contentBlockIndex": index, "start": said}}


def delta(index: int, said: Any) -> dict[str, Any]:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": said}}


def stop(index: int) -> dict[str, Any]:
    return {"contentBlockStop": {"contentBlockIndex": index}}


def end(index: int) -> list[dict[str, Any]]:
    return [
        stop(index),
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": USAGE, "metrics": {"latencyMs": 1}}},
    ]


def call(arguments: str, tool_id: str) -> list[dict[str, Any]]:
    return [{"toolUse": {"toolUseId": tool_id, "name": "look", "input": json.loads(arguments)}}]


def stream(content: list[Any], size: int) -> list[dict[str, Any]]:
    """The events of ConverseStream for a response, its texts in pieces of this size."""
    chunks = [{"messageStart": {"role": "assistant"}}]
    for index, block in enumerate(content):
        match block:
            case {"text": text}:
                chunks += [delta(index, {"text": piece}) for piece in pieces(text, size)]
            case {"reasoningContent": {"reasoningText": said}}:
                for name in ("text", "signature"):
                    chunks += [
                        delta(index, {"reasoningContent": {name: piece}})
                        for piece in pieces(said[name], size)
                    ]
            case {"reasoningContent": {"redactedContent": data}}:
                chunks += [
                    delta(index, {"reasoningContent": {"redactedContent": piece}})
                    for piece in pieces(data, size)
                ]
            case {"toolUse": call}:
                chunks.append(start(index, {"toolUse": {name: call[name] for name in ("toolUseId", "name")}}))
                text = json.dumps(call["input"])
                chunks += [delta(index, {"toolUse": {"input": piece}}) for piece in pieces(text, size)]
        chunks.append(stop(index))
    return chunks + end(len(content))[1:]


def pieces(text: Any, size: int) -> list[Any]:
    return [text[place : place + size] for place in range(0, len(text), size)]


def wire(chunks: list[Any]) -> list[Any]:
    """The events as JSON has them, bytes in base64."""
    decoded: list[Any] = json.loads(json.dumps(chunks, default=lambda data: b64encode(data).decode()))
    return decoded
