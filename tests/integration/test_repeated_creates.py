"""Sessions, memories and banks that are created again after a lost answer: once, in all ways."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.dropping import Dropping, dropping
from tests.memory_verbs import memories_by
from tests.processes import until
from tests.session_verbs import WAYS, Projector, comparable, opened

from runfold import (
    BankConfig,
    BankConflictError,
    InvalidEventError,
    Memory,
    MemoryConflictError,
    SessionConflictError,
    UnavailableError,
    UserMessage,
)
from runfold.client.memory import MemoryVerbs
from runfold.client.session import SessionVerbs
from runfold.ids import new_event_id
from runfold.remote.memories import HttpMemories
from runfold.remote.sessions import HttpSessions
from runfold.settings import Settings

TEA = Memory(fact="Likes tea", scope={"user": "ann"})


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
async def sessions(way: str, settings: Settings, projector: Projector) -> AsyncIterator[SessionVerbs]:
    async with opened(way, settings) as sessions:
        yield sessions


@pytest.fixture(scope="module")
async def elsewhere(way: str, settings: Settings, projector: Projector) -> AsyncIterator[SessionVerbs]:
    """The sessions of another process."""
    async with opened(way, settings) as sessions:
        yield sessions


@pytest.fixture(scope="module")
async def memories(way: str, settings: Settings, projector: Projector) -> AsyncIterator[MemoryVerbs]:
    async with memories_by(way, settings) as memories:
        yield memories


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"n-{uuid4().hex[:8]}"


async def test_a_session_that_is_created_again_is_the_same(sessions, elsewhere, name):
    event_id = new_event_id()
    created = await sessions.create(app=name, user="ann", state={"app:k": 1, "k": 2}, event_id=event_id)
    await sessions.append(created.session_id, UserMessage(message="hi"), state_delta={"app:k": 3})

    again = await elsewhere.create(app=name, user="ann", state={"app:k": 1, "k": 2}, event_id=event_id)

    assert created.session_id == event_id
    assert again.record.run_id == created.record.run_id
    assert (again.next_offset, again.state) == (2, {"app:k": 3, "k": 2})
    assert comparable(again) == comparable(await sessions.view(event_id))
    assert len((await sessions.list(app=name))[0]) == 1


async def test_a_session_of_a_chosen_id_is_created_again_by_the_same_creation_only(sessions, elsewhere, name):
    event_id = new_event_id()
    created = await sessions.create(app=name, session_id=name, event_id=event_id)

    again = await elsewhere.create(app=name, session_id=name, event_id=event_id)

    assert comparable(again) == comparable(created)
    for other in (None, new_event_id()):
        with pytest.raises(SessionConflictError):
            await elsewhere.create(app=name, session_id=name, event_id=other)


async def test_copies_of_a_creation_at_the_same_time_make_one_session(sessions, elsewhere, name):
    event_id = new_event_id()
    creating = [verbs.create(app=name, event_id=event_id) for verbs in (sessions, elsewhere) * 3]

    created = await asyncio.gather(*creating)

    assert len({session.record.run_id for session in created}) == 1
    await sessions.append(event_id, UserMessage(message="hi"))


async def test_a_session_whose_creation_has_no_proper_id_is_refused(sessions, name):
    with pytest.raises(InvalidEventError) as refused:
        await sessions.create(app=name, event_id="once")

    assert refused.value.field == "event_id"


async def test_a_bank_and_a_memory_that_are_created_again_are_the_same(memories, name):
    bank_once, memory_once = new_event_id(), new_event_id()
    config = BankConfig(display_name="Travel")

    bank = await memories.create_bank(name, config, event_id=bank_once)
    assert await memories.create_bank(name, config, event_id=bank_once) == bank
    memory = await memories.create(name, TEA, event_id=memory_once)
    assert await memories.create(name, TEA, event_id=memory_once) == memory

    assert memory.memory_id == memory_once
    assert list((await memories.list(name))[0]) == [memory]
    for other in (None, new_event_id()):
        with pytest.raises(BankConflictError):
            await memories.create_bank(name, event_id=other)
        with pytest.raises(MemoryConflictError):
            await memories.create(name, TEA, memory_id=memory_once, event_id=other)


async def test_a_bank_without_a_name_has_the_id_of_its_creation(memories):
    event_id = new_event_id()

    assert (await memories.create_bank(event_id=event_id)).bank_id == event_id
    assert (await memories.create_bank(event_id=event_id)).bank_id == event_id


@pytest.fixture(scope="module")
async def connection(url: str) -> AsyncIterator[Dropping]:
    """To the API, over which answers can be lost."""
    async with dropping(httpx.URL(url).port) as between:
        yield between


async def after_a_lost_answer(connection: Dropping, create: Callable[[], Awaitable[Any]]) -> Any:
    connection.is_armed = True
    with pytest.raises(UnavailableError):
        await create()
    assert not connection.is_armed
    return await create()


async def test_a_lost_answer_leaves_one_session(connection, name):
    async with HttpSessions(f"http://127.0.0.1:{connection.port}") as sessions:
        event_id = new_event_id()

        created = await after_a_lost_answer(
            connection, lambda: sessions.create(app=name, session_id=name, state={"k": 1}, event_id=event_id)
        )

        assert created.state == {"k": 1}
        assert [one.session_id for one in (await sessions.list(app=name))[0]] == [name]


async def test_a_lost_answer_leaves_one_bank_and_one_memory(connection, name):
    async with HttpMemories(f"http://127.0.0.1:{connection.port}") as memories:
        bank_once, memory_once = new_event_id(), new_event_id()

        bank = await after_a_lost_answer(connection, lambda: memories.create_bank(name, event_id=bank_once))
        memory = await after_a_lost_answer(
            connection, lambda: memories.create(name, TEA, memory_id="m-1", event_id=memory_once)
        )

        assert bank.bank_id == name
        assert [one.memory_id for one in (await memories.list(name))[0]] == [memory.memory_id] == ["m-1"]


async def test_an_idempotency_key_repeats_creations_of_chosen_ids_in_every_process(settings, url, name):
    """`elsewhere` is another process' API: it does not remember the first answer."""
    async with opened("http", settings) as elsewhere, httpx.AsyncClient() as client:
        for path, body in (
            ("sessions", {"app": name, "session_id": name}),
            ("banks", {"bank_id": name}),
            (f"banks/{name}/memories", {"memory_id": "m-1", "fact": "f", "scope": {"user": "ann"}}),
        ):
            answers = [
                await client.post(
                    f"{base}/v1/{path}", json=body, headers={"Idempotency-Key": f"{name} {path}"}
                )
                for base in (url, elsewhere.url)
            ]

            assert [answer.status_code for answer in answers] in ([201, 200], [201, 201])
            assert answers[0].json() == answers[1].json()
            conflict = await client.post(f"{url}/v1/{path}", json=body)
            assert conflict.status_code == 409


async def test_every_creation_is_projected_once(settings, projector):
    async def is_equal() -> bool:
        return await projector.differences() == []

    await until(is_equal, what="MongoDB to have what the log has")
