"""A conversation that ADK rewinds: what was undone stays in the log, and is in no ledger."""

from collections.abc import AsyncGenerator
from typing import Any

import httpx
from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService
from google.genai.types import Content, Part
from tests import adk_services
from tests.adk_services import USER

from runfold import Runfold

app, opening, service = adk_services.app, adk_services.opening, adk_services.service


class Echo(BaseAgent):
    """Repeats what the user says."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        assert ctx.user_content is not None
        parts = [Part(text=f"{part.text}!") for part in ctx.user_content.parts or []]
        yield Event(
            author=self.name, invocation_id=ctx.invocation_id, content=Content(role="model", parts=parts)
        )


async def test_a_rewound_turn_is_in_the_log_and_in_no_ledger(
    service: BaseSessionService, app: str, runfold: Runfold, api: httpx.AsyncClient
):
    runner = Runner(app_name=app, agent=Echo(name="echo"), session_service=service)
    key: dict[str, Any] = {"user_id": USER, "session_id": "s"}
    await service.create_session(app_name=app, **key)

    async def turn(text: str) -> str:
        """The id of its invocation."""
        message = Content(role="user", parts=[Part(text=text)])
        return [one.invocation_id async for one in runner.run_async(**key, new_message=message)][-1]

    await turn("one")
    second = await turn("two")
    await turn("three")
    await runner.rewind_async(**key, rewind_before_invocation_id=second)
    await turn("four")

    run = await runfold.get_run(await runfold.sessions.run_id(f"{app}/{USER}/s"))
    expected = ["one", "one!", "four", "four!"]
    assert [part.text for message in await run.ledger() for part in message.parts] == expected
    assert await texts_over_http(api, run.run_id, source="snapshot") == expected
    assert await texts_over_http(api, run.run_id, source="log") == expected
    before = await texts_over_http(api, run.run_id, as_of_offset=6)
    assert before == ["one", "one!", "two", "two!", "three", "three!"]
    kinds = [one.event.type async for one in run.history() if one.event]
    assert kinds == ["run_opened", *["framework_event"] * 9]
    assert await run.faults("gemini") == []


async def texts_over_http(api: httpx.AsyncClient, run_id: str, **parameters: Any) -> list[str]:
    """The texts of the run's ledger over HTTP."""
    answer = await api.get(f"/v1/runs/{run_id}/ledger", params=parameters)
    assert answer.status_code == 200, answer.text
    return [part["text"] for message in answer.json()["messages"] for part in message["parts"]]
