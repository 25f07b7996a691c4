"""A program that uses sessions and memories from several event loops and threads, and closes
nothing.

    python -m tests.event_loops '{"url": "http://127.0.0.1:8080"}' [SCENARIO...]

Each scenario ends with assertions about what is stored. Warnings of Python and asyncio appear on
standard error until the program has ended.
"""

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any
from uuid import uuid4

from agents import Agent, ModelResponse, RunConfig, Runner, Usage
from agents.models.interface import Model
from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner as AdkRunner
from google.genai import types
from openai.types.responses import ResponseOutputMessage, ResponseOutputText

from runfold import UserMessage
from runfold.adk import RunfoldMemoryService, RunfoldSessionService
from runfold.openai_agents import RunfoldSession
from runfold.remote.memories import HttpMemories
from runfold.remote.sessions import HttpSessions

Where = dict[str, Any]

APP, USER = "shop", "ann"
THREADS = 6
TURNS = 5


def asyncio_run_again(where: Where) -> None:
    session = _session(where)

    for number in range(3):
        asyncio.run(session.add_items([_item(number)]))

    assert _texts(session) == ["0", "1", "2"]


def openai_run_sync(where: Where) -> None:
    class Echo(Model):
        async def get_response(self, *_: Any, **given: Any) -> ModelResponse:
            text = ResponseOutputText(type="output_text", text=str(len(given["input"])), annotations=[])
            message = ResponseOutputMessage(
                id=uuid4().hex, type="message", role="assistant", status="completed", content=[text]
            )
            return ModelResponse(output=[message], usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    agent, config = Agent(name="desk", model=Echo()), RunConfig(tracing_disabled=True)
    session = _session(where)

    answers = [Runner.run_sync(agent, "x", session=session, run_config=config).final_output for _ in range(3)]
    elsewhere = threading.Thread(
        target=lambda: answers.append(
            asyncio.run(Runner.run(agent, "x", session=session, run_config=config)).final_output
        )
    )
    elsewhere.start()
    elsewhere.join()

    assert answers == ["1", "3", "5", "7"]
    asyncio.get_event_loop_policy().get_event_loop().close()  # which the SDK leaves open


def adk_run(where: Where) -> None:
    class Echo(BaseLlm):
        model: str = "echo"

        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            part = types.Part(text=str(len(llm_request.contents)))
            usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=0, candidates_token_count=0)
            yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)

    service, session_id = RunfoldSessionService(**where), uuid4().hex
    agent = LlmAgent(name="desk", model=Echo())
    runner = AdkRunner(app_name=APP, agent=agent, session_service=service, auto_create_session=True)

    events = [
        event
        for _ in range(3)
        for event in runner.run(user_id=USER, session_id=session_id, new_message=types.UserContent("x"))
    ]

    assert [event.content.parts[0].text for event in events if event.content and event.content.parts] == [
        "1",
        "3",
        "5",
    ]
    stored = asyncio.run(service.get_session(app_name=APP, user_id=USER, session_id=session_id))
    assert stored is not None
    assert len(stored.events) == 6


def threads_at_once(where: Where) -> None:
    session = _session(where)
    asyncio.run(session.add_items([_item("first")]))

    async def add(thread: int) -> None:
        for number in range(TURNS):
            await session.add_items([_item(f"{thread} {number}")])

    _in_threads(lambda thread: asyncio.run(add(thread)))

    texts = _texts(session)
    assert len(texts) == 1 + THREADS * TURNS
    for thread in range(THREADS):
        own = [text for text in texts if text.startswith(f"{thread} ")]
        assert own == [f"{thread} {number}" for number in range(TURNS)]


def threads_share_a_session_object(where: Where) -> None:
    service = RunfoldSessionService(**where)
    session = asyncio.run(service.create_session(app_name=APP, user_id=USER))

    async def append(thread: int) -> None:
        await asyncio.gather(
            *(service.append_event(session, Event(author=f"{thread} {number}")) for number in range(TURNS))
        )

    _in_threads(lambda thread: asyncio.run(append(thread)))

    stored = asyncio.run(service.get_session(app_name=APP, user_id=USER, session_id=session.id))
    assert stored is not None
    assert [event.id for event in stored.events] == [event.id for event in session.events]
    assert len(stored.events) == THREADS * TURNS


def notebook(where: Where) -> None:
    """A loop that keeps running, whose thread also waits for threads with loops of their own."""
    session = _session(where)

    async def cells() -> None:
        await session.add_items([_item("a cell")])
        nested = threading.Thread(target=lambda: asyncio.run(session.add_items([_item("nested")])))
        nested.start()
        nested.join()  # which blocks this loop, as ADK's and the SDK's synchronous calls do
        await session.add_items([_item("the next cell")])

    asyncio.run(cells())

    assert _texts(session) == ["a cell", "nested", "the next cell"]


def blocks_and_others(where: Where) -> None:
    """`async with` in two loops of one service, and calls without a block meanwhile."""
    service = RunfoldSessionService(**where)
    session_ids: list[str] = []

    async def create() -> None:
        session_ids.append((await service.create_session(app_name=APP, user_id=USER)).id)

    async def main() -> None:
        async with service:
            await create()
            await asyncio.to_thread(lambda: asyncio.run(create()))
            await create()
        await create()

    asyncio.run(main())
    asyncio.run(main())
    asyncio.run(service.close())

    assert len(set(session_ids)) == 8


def memories(where: Where) -> None:
    service = RunfoldMemoryService(bank=uuid4().hex, **where)
    content = types.Content(role="user", parts=[types.Part(text="Prefers window seats")])

    asyncio.run(service.add_memory(app_name=APP, user_id=USER, memories=[MemoryEntry(content=content)]))

    found: list[int] = []

    async def search() -> None:
        answer = await service.search_memory(app_name=APP, user_id=USER, query="window or aisle?")
        found.append(len(answer.memories))

    _in_threads(lambda _: asyncio.run(search()))
    assert found == [1] * THREADS


def http_clients(where: Where) -> None:
    if "url" not in where:
        return
    sessions, banks = HttpSessions(where["url"]), HttpMemories(where["url"])
    session_id = asyncio.run(sessions.create(app=APP)).session_id

    _in_threads(lambda thread: asyncio.run(sessions.append(session_id, UserMessage(message=str(thread)))))
    _in_threads(lambda _: asyncio.run(banks.create_bank()))

    assert asyncio.run(sessions.view(session_id)).last_offset == THREADS


def many_sessions(where: Where) -> None:
    """An object for each call, as web services have them: each is collected, and closed with
    that.
    """
    session_id = uuid4().hex
    for number in range(20):
        asyncio.run(_session(where, session_id).add_items([_item(number)]))

    assert _texts(_session(where, session_id)) == [str(number) for number in range(20)]


def a_fork(where: Where) -> None:
    session = _session(where)
    asyncio.run(session.add_items([_item("parent")]))

    child = os.fork()
    if child == 0:
        asyncio.run(session.add_items([_item("child")]))
        os._exit(0)  # as `multiprocessing` ends its children
    _, status = os.waitpid(child, 0)
    asyncio.run(session.add_items([_item("parent again")]))

    assert os.waitstatus_to_exitcode(status) == 0
    assert _texts(session) == ["parent", "child", "parent again"]


def _session(where: Where, session_id: str | None = None) -> RunfoldSession:
    return RunfoldSession(session_id or uuid4().hex, **where)


def _item(text: object) -> Any:
    return {"role": "user", "content": str(text)}


def _texts(session: RunfoldSession) -> list[Any]:
    items: list[Any] = list(asyncio.run(session.get_items()))
    return [item["content"] for item in items]


def _in_threads(work: Callable[[int], object]) -> None:
    failures: list[BaseException] = []

    def guarded(thread: int) -> None:
        try:
            work(thread)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


SCENARIOS: dict[str, Callable[[Where], None]] = {
    scenario.__name__: scenario
    for scenario in (
        asyncio_run_again,
        openai_run_sync,
        adk_run,
        threads_at_once,
        threads_share_a_session_object,
        notebook,
        blocks_and_others,
        memories,
        http_clients,
        many_sessions,
        a_fork,
    )
}

if __name__ == "__main__":
    logging.getLogger("google_adk").setLevel(logging.ERROR)
    where = json.loads(sys.argv[1])
    for name in sys.argv[2:] or SCENARIOS:
        SCENARIOS[name](where)
