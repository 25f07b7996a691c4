"""Whole conversations with the SDKs' own clients, through record and replay: what a model said goes
back to it as it was.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import boto3
import pytest
from anthropic import AsyncAnthropic
from botocore.config import Config
from google import genai
from openai import AsyncOpenAI
from tests.provider_types import check
from tests.querying import served
from tests.scripted_models import ANSWER, ASKS, SAID, THERE, THERE_TEXT, WHERE, WHERE_TEXT, ScriptedModels

from runfold import Run, Runfold, SystemMessage, ToolResult, UserMessage
from runfold_projections.providers import Encoded
from runfold_schemas.events import (
    AssistantMessage,
    ProviderPart,
    ResponseRecorded,
    ToolCall,
)
from runfold_schemas.messages import (
    PROVIDERS,
    Message,
    Provider,
    TextPart,
    ThinkingPart,
    ToolResultPart,
    ToolUsePart,
)
from runfold_schemas.usage import TokenUsage

each_provider = pytest.mark.parametrize("provider", PROVIDERS)
whole_and_streamed = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class Models:
    """The SDKs' clients of the five providers, on one server."""

    def __init__(self, script: ScriptedModels, url: str) -> None:
        self.script = script
        self._bedrock = boto3.client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=url,
            aws_access_key_id="none",
            aws_secret_access_key="none",
            config=Config(retries={"total_max_attempts": 1}),
        )
        self._anthropic = AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
        self._openai = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        self._gemini = genai.Client(api_key="none", http_options={"base_url": url})

    async def ask(self, provider: Provider, body: dict[str, Any], *, streamed: bool) -> Any:
        """The SDK's response, or its stream."""
        match provider:
            case "bedrock" if streamed:
                response = await asyncio.to_thread(self._bedrock.converse_stream, modelId="m", **body)
                return response["stream"]
            case "bedrock":
                return await asyncio.to_thread(self._bedrock.converse, modelId="m", **body)
            case "anthropic":
                return await self._anthropic.messages.create(model="m", max_tokens=9, stream=streamed, **body)
            case "openai-chat":
                options = {"stream_options": {"include_usage": True}} if streamed else {}
                create = self._openai.chat.completions.create
                return await create(model="m", stream=streamed, **options, **body)
            case "openai-responses":
                return await self._openai.responses.create(model="m", store=False, stream=streamed, **body)
            case "gemini":
                models = self._gemini.aio.models
                generate = models.generate_content_stream if streamed else models.generate_content
                config = {"system_instruction": body.get("systemInstruction")}
                return await generate(model="m", contents=body["contents"], config=config)

    async def close(self) -> None:
        self._bedrock.close()
        await self._anthropic.close()
        await self._openai.close()
        await self._gemini.aio.aclose()
        self._gemini.close()


@pytest.fixture(scope="module")
async def runfold(kafka: str) -> AsyncIterator[Runfold]:
    async with Runfold(kafka, prefix=f"t{uuid4().hex[:8]}", create_topics=True) as runfold:
        yield runfold


@pytest.fixture(scope="module")
async def served_models() -> AsyncIterator[Models]:
    script = ScriptedModels()
    async with served(script.app) as client:
        models = Models(script, str(client.base_url))
        yield models
        await models.close()


@pytest.fixture
def models(served_models: Models) -> Models:
    served_models.script.requests.clear()
    served_models.script.breaks = False
    return served_models


async def turn(
    run: Run, models: Models, provider: Provider, *, streamed: bool, lossy: Any = "refuse"
) -> Encoded:
    """The model says something on the run's ledger, and it is recorded. What it was sent."""
    request = await run.ledger(provider, lossy=lossy)
    response = await models.ask(provider, request.body, streamed=streamed)
    if not streamed:
        await run.record(response, provider=provider, request=request)
        return request
    async for _ in run.record_stream(response, provider=provider, request=request):
        pass
    return request


async def begun(runfold: Runfold) -> Run:
    run = await runfold.open_run(agent_id="weather")
    await run.publish(SystemMessage(message="Be brief."))
    await run.publish(UserMessage(message="How is the weather in Reykjavík and in Atlantis?"))
    return run


async def answer_calls(run: Run) -> None:
    """One tool answers, the other one fails."""
    first, second = [part for part in (await run.ledger())[-1].parts if isinstance(part, ToolUsePart)]
    await run.publish(ToolResult(tool_call_id=first.id, result={"rain": True}))
    await run.publish(ToolResult(tool_call_id=second.id, error="no such place"))


def said_by_model(provider: Provider, body: dict[str, Any]) -> Any:
    """What the provider's request has of the assistant's first message."""
    match provider:
        case "bedrock" | "anthropic":
            return body["messages"][1]["content"]
        case "openai-chat":
            return body["messages"][2]
        case "openai-responses":
            return body["input"][2:-2]
        case "gemini":
            return body["contents"][1]["parts"]


def said_in_script(provider: Provider) -> Any:
    """What the model said, in the form in which it takes it back."""
    said = ASKS[provider]
    match provider:
        case "bedrock":
            return said["output"]["message"]["content"]
        case "anthropic":
            return said["content"]
        case "openai-chat":
            message = said["choices"][0]["message"]
            return {name: value for name, value in message.items() if value is not None}
        case "openai-responses":
            return said["output"]
        case "gemini":
            # Gemini does without its summaries of thoughts: it has signed the calls.
            return said["candidates"][0]["content"]["parts"][1:]


@each_provider
@whole_and_streamed
async def test_a_tool_loop_gives_the_model_back_what_it_said(
    runfold: Runfold, models: Models, provider: Provider, streamed: bool
):
    run = await begun(runfold)

    await turn(run, models, provider, streamed=streamed)
    await answer_calls(run)
    await turn(run, models, provider, streamed=streamed)

    [_, second] = models.script.requests
    assert said_by_model(provider, second) == said_in_script(provider)
    assert_is_the_conversation(await run.ledger())


def assert_is_the_conversation(messages: list[Message]) -> None:
    assert [message.role for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    _, _, asked, results, answered = [
        [part for part in message.parts if not isinstance(part, ThinkingPart)] for message in messages
    ]
    assert isinstance(asked[0], TextPart)
    assert asked[0].text == SAID
    assert [(part.name, part.input) for part in asked[1:] if isinstance(part, ToolUsePart)] == [
        ("weather", WHERE),
        ("weather", THERE),
    ]
    assert [(part.content, part.is_error) for part in results if isinstance(part, ToolResultPart)] == [
        ({"rain": True}, False),
        ({"error": "no such place"}, True),
    ]
    assert isinstance(answered[0], TextPart)
    assert answered[0].text == ANSWER


@each_provider
@whole_and_streamed
async def test_a_response_leaves_its_usage_and_its_end(
    runfold: Runfold, models: Models, provider: Provider, streamed: bool
):
    run = await begun(runfold)

    await turn(run, models, provider, streamed=streamed)

    said = [event async for event in run.events() if event.provider is not None]
    usage = [event.data for event in said if isinstance(event.data, TokenUsage)]
    end = said[-1].data
    assert {event.provider for event in said} == {provider}
    assert len({event.message_id for event in said}) == 1
    # OpenAI streams its usage to those who ask for it, and Bedrock does not say which model
    # answers.
    assert [(one.input_tokens, one.output_tokens) for one in usage] == [(20, 10)]
    assert isinstance(end, ResponseRecorded)
    assert end.finished
    assert end.faults == ()
    assert (end.model is None) == (provider == "bedrock")


@each_provider
async def test_a_stream_is_recorded_as_the_whole_response_is(
    runfold: Runfold, models: Models, provider: Provider
):
    whole, stream = await begun(runfold), await begun(runfold)

    await turn(whole, models, provider, streamed=False)
    await turn(stream, models, provider, streamed=True)

    assert await whole.ledger() == await stream.ledger()


@each_provider
async def test_a_stream_that_breaks_off_leaves_what_arrived(
    runfold: Runfold, models: Models, provider: Provider
):
    run = await begun(runfold)

    await broken_turn(run, models, provider)

    said = [event.data async for event in run.events() if event.provider is not None]
    unfinished = [data.content["arguments"] for data in said if isinstance(data, ProviderPart)]
    calls = [data.payload for data in said if isinstance(data, ToolCall)]
    [end] = [data for data in said if isinstance(data, ResponseRecorded)]
    assert not end.finished
    assert SAID in [data.message for data in said if isinstance(data, AssistantMessage)]
    match provider:
        case "gemini":
            # Its calls come whole or not at all.
            assert (calls, unfinished) == ([WHERE], [])
        case "openai-chat":
            # Its calls may come by turns: until the message ends, none of them is known to be
            # complete.
            assert (calls, unfinished[0]) == ([], WHERE_TEXT)
            assert unfinished[1] in THERE_TEXT
        case _:
            assert calls == [WHERE]
            assert 0 < len(unfinished[0]) < len(THERE_TEXT)
            assert THERE_TEXT.startswith(unfinished[0])


@each_provider
async def test_after_a_break_every_provider_takes_the_repaired_ledger(
    runfold: Runfold, models: Models, provider: Provider
):
    run = await begun(runfold)
    await broken_turn(run, models, provider)

    await run.repair()
    for other in PROVIDERS:
        check(other, (await run.ledger(other, lossy="drop")).body)
    await turn(run, models, provider, streamed=True)

    assert len(models.script.requests) == 2
    assert (await run.ledger())[-1].role == "assistant"


async def broken_turn(run: Run, models: Models, provider: Provider) -> None:
    models.script.breaks = True
    # Each client has an error of its own for a connection that was dropped.
    with pytest.raises(Exception, match=r"(?i)connection|closed|incomplete|prematurely|not completed"):
        await turn(run, models, provider, streamed=True)
    models.script.breaks = False


@each_provider
async def test_a_conversation_goes_on_with_every_other_provider(
    runfold: Runfold, models: Models, provider: Provider
):
    run = await begun(runfold)
    await turn(run, models, provider, streamed=True)
    await answer_calls(run)
    await turn(run, models, provider, streamed=True)
    begin = await run.ledger()

    for other in PROVIDERS:
        await run.publish(UserMessage(message="And tomorrow?"))
        request = await turn(run, models, other, streamed=other != "bedrock", lossy="drop")

        messages = await run.ledger()
        assert_only_thinking_is_lost(messages, request)
        assert next(part.text for part in messages[-1].parts if isinstance(part, TextPart)) == ANSWER

    assert_is_the_conversation(begin)
    assert (await run.ledger())[: len(begin)] == begin


def assert_only_thinking_is_lost(messages: list[Message], request: Encoded) -> None:
    lost = [messages[fault.message_index or 0].parts[fault.part_index or 0] for fault in request.dropped]
    # Gemini may sign an empty text, which tells others nothing.
    assert all(
        isinstance(part, ThinkingPart) or part == TextPart(text="", provider_data=part.provider_data)
        for part in lost
    )
