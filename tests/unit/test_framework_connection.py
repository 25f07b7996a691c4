"""Connections of framework adapters: blocks of several tasks and loops, and calls without one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.processes import DEADLINE_SECONDS

from runfold.access.connection import DirectConnection
from runfold.access.sessions import session_connection


class Verbs:
    """Verbs of a connection, which know whether it is still open."""

    def __init__(self) -> None:
        self.is_open = True
        self.loop = asyncio.get_running_loop()

    async def use(self) -> bool:
        await asyncio.sleep(0)
        return self.is_open


async def use(verbs: Verbs) -> bool:
    return await verbs.use()


@pytest.fixture
def made() -> list[Verbs]:
    return []


@pytest.fixture
def connection(made: list[Verbs]) -> DirectConnection[Verbs]:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Verbs]:
        await asyncio.sleep(0.01)
        verbs = Verbs()
        made.append(verbs)
        try:
            yield verbs
        finally:
            verbs.is_open = False

    return DirectConnection(connect)


async def test_a_block_uses_a_connection_of_its_own_loop(
    connection: DirectConnection[Verbs], made: list[Verbs]
):
    async with connection:
        assert await connection.run(use)
        assert await asyncio.to_thread(lambda: asyncio.run(connection.run(use)))
    assert await connection.run(use)
    await connection.close()

    own, background = made
    assert own.loop is asyncio.get_running_loop()
    assert background.loop is not own.loop
    assert not own.is_open
    assert not background.is_open


async def test_tasks_of_one_loop_share_the_connection_until_the_last_block_is_left(
    connection: DirectConnection[Verbs], made: list[Verbs]
):
    left = asyncio.Event()

    async def first() -> None:
        async with connection:
            assert await connection.run(use)
        left.set()

    async def second() -> None:
        async with connection:
            await left.wait()
            assert await connection.run(use)

    async with asyncio.timeout(DEADLINE_SECONDS):
        await asyncio.gather(first(), second())

    assert len(made) == 1
    assert not made[0].is_open


async def test_a_connection_closes_after_the_call_that_uses_it(
    connection: DirectConnection[Verbs], made: list[Verbs]
):
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def use_slowly(verbs: Verbs) -> bool:
        began.set()
        await goes_on.wait()
        return await verbs.use()

    async with connection:
        call = asyncio.create_task(connection.run(use_slowly))
        await began.wait()

    assert made[0].is_open
    goes_on.set()
    assert await call
    assert not made[0].is_open


async def test_a_block_keeps_its_connection_if_another_task_closes_the_service(
    connection: DirectConnection[Verbs], made: list[Verbs]
):
    async with connection:
        await connection.close()
        assert await connection.run(use)
        assert len(made) == 1
    assert not made[0].is_open


async def test_a_connection_that_fails_to_open_fails_the_block():
    @asynccontextmanager
    async def connect() -> AsyncIterator[Verbs]:
        raise ValueError("no")
        yield

    connection = DirectConnection(connect)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            async with connection:
                pass


async def test_blocks_over_http_share_one_pool_of_the_background_loop(monkeypatch: pytest.MonkeyPatch):
    clients: set[httpx.AsyncClient] = set()

    async def answer(client: httpx.AsyncClient, *_: object, **__: object) -> httpx.Response:
        clients.add(client)
        return httpx.Response(200, json={"state": {}})

    monkeypatch.setattr(httpx.AsyncClient, "request", answer)
    connection = session_connection("http://127.0.0.1:1", {})

    async def ask() -> None:
        assert await connection.run(lambda sessions: sessions.app_state("a")) == {}

    await ask()
    async with connection:
        await ask()
        await asyncio.to_thread(lambda: asyncio.run(ask()))

    assert len(clients) == 1
    assert all(client.is_closed for client in clients)
    await ask()
    await connection.close()
