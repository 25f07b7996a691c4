"""The OpenAI Agents SDK's runner with a model of scripted answers, on sessions of Runfold."""

import json
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from agents import Agent, ModelResponse, RunConfig, Runner, Usage, function_tool
from agents.items import TResponseInputItem
from agents.memory.session import Session
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from runfold.openai_agents import RunfoldSession

SessionOpening = Callable[..., RunfoldSession]
"""Opens a session with connections of its own, as another process has them."""


def user(text: object) -> TResponseInputItem:
    return {"role": "user", "content": str(text)}


def texts(items: Sequence[Any]) -> list[str]:
    return [item["content"] for item in items]


class ScriptedModel(Model):
    """Says what its script has, and keeps what it was asked."""

    def __init__(self, *script: list[Any]) -> None:
        self.script = list(script)
        self.asked: list[Any] = []

    async def get_response(self, *_: Any, **given: Any) -> ModelResponse:
        self.asked.append(json.loads(json.dumps(given["input"])))
        return ModelResponse(output=self.script.pop(0), usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def answers(text: str) -> list[Any]:
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return [
        ResponseOutputMessage(
            id=f"msg_{uuid4().hex}", type="message", role="assistant", status="completed", content=[content]
        )
    ]


def calls(*places: str) -> list[Any]:
    return [
        ResponseFunctionToolCall(
            id=f"fc_{place}",
            call_id=f"call_{place}",
            type="function_call",
            name="weather",
            arguments=json.dumps({"place": place}),
        )
        for place in places
    ]


@function_tool
def weather(place: str) -> str:
    """The weather of a place."""
    return f"rain in {place}"


async def asked(model: ScriptedModel, text: str, session: Session, **options: Any) -> str:
    agent = Agent(name="desk", instructions="Be short.", model=model, tools=[weather])
    done = await Runner.run(
        agent, text, session=session, run_config=RunConfig(tracing_disabled=True, **options)
    )
    return str(done.final_output)
