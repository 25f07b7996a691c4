"""The stream helper of OpenAI's client, and structured output, recorded as a caller has them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.openai_ledgers import ledger_of

from runfold_projections.providers import encode, provider_of, recorder
from runfold_schemas.data import Data
from runfold_schemas.events import ResponseRecorded

CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"city":"Oslo"}'}}
SAID = {"role": "assistant", "content": '{"city":"Oslo"}', "tool_calls": [CALL]}
QUESTION: Any = [{"role": "user", "content": "Where?"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Place(BaseModel):
    city: str


def chunks() -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": '{"city":'},
        {"content": '"Oslo"}'},
        {"tool_calls": [{"index": 0, **CALL, "function": {"name": "look", "arguments": '{"city"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ':"Oslo"}'}}]},
    ]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    return [
        {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5", "choices": [choice]}
        for choice in choices
    ]


async def complete(request: Any) -> Response:
    if (await request.json()).get("stream"):
        frames = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks()]
        return StreamingResponse(iter([*frames, "data: [DONE]\n\n"]), media_type="text/event-stream")
    choice = {"index": 0, "message": SAID, "finish_reason": "tool_calls"}
    answer = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [choice]}
    return JSONResponse(answer)


@asynccontextmanager
async def openai() -> AsyncIterator[AsyncOpenAI]:
    app = Starlette(routes=[Route("/chat/completions", complete, methods=["POST"])])
    transport = httpx.ASGITransport(app)
    async with (
        httpx.AsyncClient(transport=transport) as http,
        AsyncOpenAI(base_url="http://model", api_key="none", http_client=http) as client,
    ):
        yield client


def again(said: list[Data]) -> Any:
    last = said[-1]
    assert isinstance(last, ResponseRecorded)
    assert (last.faults, last.finished, last.response_id) == ((), True, "c-1")
    return encode(ledger_of(said, "openai-chat"), "openai-chat").body["messages"]


async def test_the_stream_helper_is_recorded_as_its_chunks():
    said: list[Data] = []
    kinds: set[str] = set()
    recording = recorder("openai-chat")
    async with (
        openai() as client,
        client.chat.completions.stream(
            model="gpt-5", messages=QUESTION, tools=[TOOL], response_format=Place
        ) as stream,
    ):
        async for event in stream:
            assert provider_of(event) == "openai-chat"
            kinds.add(event.type)
            said += [*recording.feed(event), *recording.blocks.partial()]

    assert {"chunk", "content.delta", "content.done", "tool_calls.function.arguments.done"} <= kinds
    assert again([*said, *recording.blocks.end()]) == [SAID]


async def test_the_final_completion_of_the_stream_helper_does_not_go_back_with_what_the_sdk_parsed():
    async with (
        openai() as client,
        client.chat.completions.stream(
            model="gpt-5", messages=QUESTION, tools=[TOOL], response_format=Place
        ) as stream,
    ):
        final: Any = await stream.get_final_completion()

    assert final.choices[0].message.parsed == Place(city="Oslo")
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments == {"city": "Oslo"}
    assert again(list(recorder("openai-chat").response(final))) == [SAID]


async def test_parsed_output_does_not_go_back():
    async with openai() as client:
        answer: ChatCompletion = await client.chat.completions.parse(
            model="gpt-5", messages=QUESTION, tools=[TOOL], response_format=Place
        )

    assert provider_of(answer) == "openai-chat"
    assert again(list(recorder("openai-chat").response(answer))) == [SAID]
