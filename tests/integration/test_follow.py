"""Following runs: history first, then live, for many followers on one tail."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import httpx
import pytest
from tests.processes import DEADLINE_SECONDS, until
from tests.querying import Projected, Sent, query_and_reading, sent_events

from runfold import AssistantMessage, PlannerNote, Run, ToolCall, UserMessage
from runfold.query.events import EventFilter
from runfold.query.follow import Follower
from runfold.query.reading import Reading
from runfold.settings import Settings


@pytest.fixture(scope="module")
async def service(settings: Settings, stored: Projected) -> AsyncIterator[tuple[httpx.AsyncClient, Reading]]:
    async with query_and_reading(settings) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: tuple[httpx.AsyncClient, Reading]) -> httpx.AsyncClient:
    return service[0]


@pytest.fixture(scope="module")
def reading(service: tuple[httpx.AsyncClient, Reading]) -> Reading:
    return service[1]


class Following:
    """One follower over HTTP."""

    def __init__(self, response: httpx.Response) -> None:
        self._events = sent_events(response)

    async def take(self, count: int) -> list[Sent]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return [await anext(self._events) for _ in range(count)]

    async def rest(self) -> list[Sent]:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return [event async for event in self._events]


async def following(
    stack: AsyncExitStack, client: httpx.AsyncClient, run: Run, *, last: int | None = None, **params: Any
) -> Following:
    headers = {"Last-Event-ID": str(last)} if last is not None else {}
    stream = client.stream("GET", f"/v1/runs/{run.run_id}/follow", params=params, headers=headers)
    response = await stack.enter_async_context(stream)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    return Following(response)


async def test_a_follower_gets_the_history_and_then_what_comes(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run(UserMessage(message="before"))

    async with AsyncExitStack() as stack:
        follower = await following(stack, client, run)
        history = await follower.take(2)
        await run.publish(AssistantMessage(message="after"))
        (live,) = await follower.take(1)

    assert [(event.id, event.name) for event in history] == [(0, "run_opened"), (1, "user_message")]
    assert (live.id, live.name) == (2, "assistant_message")
    assert live.data["offset"] == 2
    assert live.data["outcome"] == "accepted"
    assert live.data["event"]["data"]["message"] == "after"


async def test_a_run_can_be_followed_from_its_opening_on(client: httpx.AsyncClient, stored: Projected):
    run = await stored.runfold.open_run(agent_id="a")

    async with AsyncExitStack() as stack:
        follower = await following(stack, client, run)
        await run.publish(UserMessage(message="hi"))

        assert [event.id for event in await follower.take(2)] == [0, 1]


async def test_a_follower_who_comes_back_goes_on_after_its_last_event(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run(*(PlannerNote(note=str(number)) for number in range(5)))

    async with AsyncExitStack() as stack:
        follower = await following(stack, client, run, last=3)
        later = await following(stack, client, run, first_offset=5)

        assert [event.id for event in await follower.take(2)] == [4, 5]
        assert [event.id for event in await later.take(1)] == [5]


async def test_outcomes_are_those_of_the_log(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run()
    repeated = run.event(UserMessage(message="once"))
    await run.publish(repeated)
    await stored.holds(run, 1)

    async with AsyncExitStack() as stack:
        counting = await following(stack, client, run)
        everything = await following(stack, client, run, outcome="all")
        await counting.take(2)
        await everything.take(2)
        await run.publish(repeated)
        await run.complete()
        await run.publish(PlannerNote(note="late"), late=True)

        assert [event.data["outcome"] for event in await counting.take(2)] == ["accepted", "late"]
        assert [event.data["outcome"] for event in await everything.take(3)] == [
            "duplicate",
            "accepted",
            "late",
        ]


async def test_the_stream_ends_with_the_run_only_if_that_was_asked_for(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run()

    async with AsyncExitStack() as stack:
        ending = await following(stack, client, run, until_end=True)
        staying = await following(stack, client, run)
        await staying.take(1)
        await run.complete()
        await stored.holds(run, 1)
        after = await following(stack, client, run, until_end=True, first_offset=2)

        assert [event.name for event in await ending.rest()] == ["run_opened", "run_completed", "end"]
        assert [event.name for event in await after.rest()] == ["end"]
        await run.publish(PlannerNote(note="late"), late=True)
        assert [event.name for event in await staying.take(2)] == ["run_completed", "planner_note"]


async def test_json_over_many_lines_arrives_whole(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run(ToolCall(tool_call_id="c", tool_name="t", payload={"text": "a\nb\r\nc"}))

    async with AsyncExitStack() as stack:
        follower = await following(stack, client, run, type="tool_call")
        (event,) = await follower.take(1)

    assert event.data["event"]["data"]["payload"] == {"text": "a\nb\r\nc"}


async def test_many_followers_share_one_tail_that_lets_go_when_they_leave(
    client: httpx.AsyncClient, reading: Reading, stored: Projected
):
    runs = [await stored.run() for _ in range(3)]
    await until(lambda: nobody_follows(reading), what="the end of the followers before")

    async with AsyncExitStack() as stack:
        followers = [await following(stack, client, run, first_offset=1) for run in runs for _ in range(10)]
        await asyncio.gather(*(run.publish(UserMessage(message=run.run_id)) for run in runs))
        got = [(await follower.take(1))[0].data["event"]["run_id"] for follower in followers]
        assert reading.live.followed_runs == 3
    await until(lambda: nobody_follows(reading), what="the end of the tail's work")

    assert got == [run.run_id for run in runs for _ in range(10)]


async def nobody_follows(reading: Reading) -> bool:
    return not reading.live.followed_runs


async def test_followers_who_are_up_to_date_read_nothing_but_the_tail(
    client: httpx.AsyncClient, reading: Reading, stored: Projected, monkeypatch: pytest.MonkeyPatch
):
    run = await stored.run()

    async with AsyncExitStack() as stack:
        followers = [await following(stack, client, run) for _ in range(10)]
        for follower in followers:
            await follower.take(1)
        monkeypatch.delattr(type(reading.runs), "history")
        monkeypatch.delattr(type(reading.runs), "follow_start")
        for number in range(5):
            await run.publish(PlannerNote(note=str(number)))
        got = [[event.id for event in await follower.take(5)] for follower in followers]

    assert got == [[1, 2, 3, 4, 5]] * 10


async def test_a_slow_follower_reads_the_history_again_and_misses_nothing(
    reading: Reading, stored: Projected
):
    run = await stored.run()
    follower = Follower(run.run_id, 0, EventFilter())
    text = "x" * 50_000

    async with aclosing(follower.stream(reading.live, reading.runs)) as stream:
        received = [await anext(stream), await anext(stream)]
        # Nobody takes anything while 3 MB come in.
        offset = 0
        for _ in range(6):
            offset = await stored.publish(run, *(PlannerNote(note=text) for _ in range(10)))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while follower.next_offset <= offset:
                received.append(await anext(stream))

    ids = [line for line in b"".join(received).split(b"\n") if line.startswith(b"id: ")]
    assert b"".join(received).count(b"retry: ") > 1
    assert ids == [b"id: %d" % number for number in range(offset + 1)]


async def test_a_quiet_stream_is_kept_alive(reading: Reading, stored: Projected):
    run = await stored.run()
    follower = Follower(run.run_id, 1, EventFilter(), keep_alive_seconds=0.01)

    async with (
        aclosing(follower.stream(reading.live, reading.runs)) as stream,
        asyncio.timeout(DEADLINE_SECONDS),
    ):
        assert [await anext(stream) for _ in range(3)][1:] == [b": keep-alive\n\n"] * 2
