"""Five model providers on loopback: they say what the script has, whole or as a stream, in the
shapes that were recorded.

    models = ScriptedModels()
    async with served(models.app) as client:  # client.base_url is the SDKs' base URL

Whoever has no results of tools yet gets `ASKS`, which thinks and calls two tools at once; then
comes `ANSWERS`. A request that the provider's own package would not have gets a 400.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.provider_types import check
from tests.scripted_streams import STREAMS

from runfold_schemas.messages import Provider

SIGNATURE = "c2lnbmVkIGJ5IHRoZSBtb2RlbA=="
WHERE = {"place": "Reykjavík", "days": [1, 2]}
THERE = {"place": "Atlantis"}
# Models write arguments as they like; these providers take them back as text, letter by letter.
WHERE_TEXT = json.dumps(WHERE, ensure_ascii=True, indent=1)
THERE_TEXT = json.dumps(THERE)
THOUGHT = "Two places, so two calls."
SAID = "I look at both."
ANSWER = "It rains in Reykjavík; Atlantis is not there."


def _converse(*blocks: dict[str, Any], stop: str) -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": list(blocks)}},
        "stopReason": stop,
        "usage": {"inputTokens": 20, "outputTokens": 10, "totalTokens": 30},
        "metrics": {"latencyMs": 5},
    }


def _message(*blocks: dict[str, Any], number: int, stop: str) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": list(blocks),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 20, "output_tokens": 10},
    }


def _completion(message: dict[str, Any], *, number: int, stop: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "refusal": None, **message}, "finish_reason": stop}
        ],
        "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30},
    }


def _response(*items: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "gpt-5",
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 20,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 4},
            "total_tokens": 30,
        },
    }


def _item_message(text: str, *, number: int) -> dict[str, Any]:
    content = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [content],
    }


def _item_call(arguments: str, *, number: int) -> dict[str, Any]:
    call = {"call_id": f"call_{number}", "name": "weather", "arguments": arguments, "status": "completed"}
    return {"id": f"fc_{number}", "type": "function_call", **call}


def _candidates(*parts: dict[str, Any], number: int) -> dict[str, Any]:
    return {
        "candidates": [
            {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}
        ],
        "usageMetadata": {
            "promptTokenCount": 20,
            "candidatesTokenCount": 6,
            "thoughtsTokenCount": 4,
            "totalTokenCount": 30,
        },
        "modelVersion": "gemini-3-pro",
        "responseId": f"r-{number}",
    }


def _chat_call(arguments: str, *, number: int) -> dict[str, Any]:
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "weather", "arguments": arguments},
    }


ASKS: dict[Provider, dict[str, Any]] = {
    "bedrock": _converse(
        {"reasoningContent": {"reasoningText": {"text": THOUGHT, "signature": SIGNATURE}}},
        {"text": SAID},
        {"toolUse": {"toolUseId": "tooluse_1", "name": "weather", "input": WHERE}},
        {"toolUse": {"toolUseId": "tooluse_2", "name": "weather", "input": THERE}},
        stop="tool_use",
    ),
    "anthropic": _message(
        {"type": "thinking", "thinking": THOUGHT, "signature": SIGNATURE},
        {"type": "redacted_thinking", "data": SIGNATURE},
        {"type": "text", "text": SAID},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": WHERE},
        {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": THERE},
        number=1,
        stop="tool_use",
    ),
    # Chat Completions of OpenAI do not show what the model thinks.
    "openai-chat": _completion(
        {
            "content": SAID,
            "tool_calls": [_chat_call(WHERE_TEXT, number=1), _chat_call(THERE_TEXT, number=2)],
        },
        number=1,
        stop="tool_calls",
    ),
    "openai-responses": _response(
        {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": THOUGHT}],
            "encrypted_content": SIGNATURE,
        },
        _item_message(SAID, number=1),
        _item_call(WHERE_TEXT, number=1),
        _item_call(THERE_TEXT, number=2),
        number=1,
    ),
    "gemini": _candidates(
        {"text": THOUGHT, "thought": True},
        {"text": SAID},
        {"functionCall": {"id": "g-1", "name": "weather", "args": WHERE}, "thoughtSignature": SIGNATURE},
        {"functionCall": {"id": "g-2", "name": "weather", "args": THERE}},
        number=1,
    ),
}

ANSWERS: dict[Provider, dict[str, Any]] = {
    "bedrock": _converse({"text": ANSWER}, stop="end_turn"),
    "anthropic": _message({"type": "text", "text": ANSWER}, number=2, stop="end_turn"),
    "openai-chat": _completion({"content": ANSWER}, number=2, stop="stop"),
    "openai-responses": _response(_item_message(ANSWER, number=2), number=2),
    "gemini": _candidates({"text": ANSWER}, {"text": "", "thoughtSignature": SIGNATURE}, number=2),
}

_BREAKS: dict[Provider, bytes] = {
    "bedrock": b'"toolUse": {"input"',
    "anthropic": b"input_json_delta",
    "openai-chat": b'"arguments": "',
    "openai-responses": b"function_call_arguments.delta",
    # Its calls come whole.
    "gemini": b"functionCall",
}
"""What is in the last frame of a stream that breaks off: it is in the middle of the second call."""


class ScriptedModels:
    """What was asked is in `requests`; with `breaks`, streams break off in the middle of their last
    call.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.breaks = False
        self.app = Starlette(
            routes=[
                Route("/model/{model}/converse", self._bedrock, methods=["POST"]),
                Route("/model/{model}/converse-stream", self._bedrock, methods=["POST"]),
                Route("/v1/messages", self._anthropic, methods=["POST"]),
                Route("/chat/completions", self._chat, methods=["POST"]),
                Route("/responses", self._responses, methods=["POST"]),
                Route("/{version}/models/{model}", self._gemini, methods=["POST"]),
            ]
        )

    async def _bedrock(self, request: Request) -> Response:
        return await self._answer(request, "bedrock", streamed=request.url.path.endswith("-stream"))

    async def _anthropic(self, request: Request) -> Response:
        return await self._answer(request, "anthropic")

    async def _chat(self, request: Request) -> Response:
        return await self._answer(request, "openai-chat")

    async def _responses(self, request: Request) -> Response:
        return await self._answer(request, "openai-responses")

    async def _gemini(self, request: Request) -> Response:
        return await self._answer(request, "gemini", streamed="stream" in request.path_params["model"])

    async def _answer(
        self, request: Request, provider: Provider, *, streamed: bool | None = None
    ) -> Response:
        body = await request.json()
        try:
            check(provider, body)
        except (AssertionError, ValueError) as error:
            return JSONResponse({"error": {"message": str(error)}, "message": str(error)}, status_code=400)
        self.requests.append(body)
        said = (ANSWERS if _has_results(body) else ASKS)[provider]
        if not (body.get("stream") if streamed is None else streamed):
            return JSONResponse(said)
        media_type = "application/vnd.amazon.eventstream" if provider == "bedrock" else "text/event-stream"
        return StreamingResponse(self._frames(provider, said), media_type=media_type)

    async def _frames(self, provider: Provider, said: dict[str, Any]) -> AsyncIterator[bytes]:
        frames = list(STREAMS[provider](said))
        for frame in frames[: _break(provider, frames)] if self.breaks else frames:
            yield frame
        if self.breaks:
            # The server drops the connection of a response that fails, without the end of its body.
            raise ConnectionAbortedError


def _has_results(body: dict[str, Any]) -> bool:
    text = json.dumps(body)
    words = ("toolResult", "tool_result", '"role": "tool"', "function_call_output", "functionResponse")
    return any(word in text for word in words)


def _break(provider: Provider, frames: list[bytes]) -> int:
    return max(number for number, frame in enumerate(frames) if _BREAKS[provider] in frame)
