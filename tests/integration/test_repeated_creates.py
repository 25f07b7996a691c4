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
from tests.servers import OwnSettings
from tests.session_verbs import Projector, comparable, opened

from runfold import (
    BankConfig,
    BankConflictError,
    InvalidEventError,
    Memory,
    MemoryConflictError,
    Runfold,
    SessionConflictError,
    UnavailableError,
    UserMessage,
)
from runfold.client.memory import MemoryVerbs
from runfold.http.idempotency import RepeatableRequest
from runfold.ids import new_event_id
from runfold.log.publisher import Outgoing
from runfold.remote.memories import HttpMemories
from runfold.remote.sessions import HttpSessions
from runfold.settings import Settings

TEA = Memory(fact="Likes tea", scope={"user": "ann"})


@pytest.fixture(scope="module")
async def memories(way: str, settings: Settings, projector: Projector) -> AsyncIterator[MemoryVerbs]:
    async with memories_by(way, settings) as memories:
        yield memories


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"n-{uuid4().hex[:8]}"


async def test_a_session_that_is_created_again_is_the_same(sessions, others, name):
    event_id = new_event_id()
    created = await sessions.create(app=name, user="ann", state={"app:k": 1, "k": 2}, event_id=event_id)
    await sessions.append(created.session_id, UserMessage(message="hi"), state_delta={"app:k": 3})

    again = await others.create(app=name, user="ann", state={"app:k": 1, "k": 2}, event_id=event_id)

    assert created.session_id == event_id
    assert again.record.run_id == created.record.run_id
    assert (again.next_offset, again.state) == (2, {"app:k": 3, "k": 2})
    assert comparable(again) == comparable(await sessions.view(event_id))
    assert len((await sessions.list(app=name))[0]) == 1


async def test_a_session_of_a_chosen_id_is_created_again_by_the_same_creation_only(sessions, others, name):
    event_id = new_event_id()
    created = await sessions.create(app=name, session_id=name, event_id=event_id)

    again = await others.create(app=name, session_id=name, event_id=event_id)

    assert comparable(again) == comparable(created)
    for other in (None, new_event_id()):
        with pytest.raises(SessionConflictError):
            await others.create(app=name, session_id=name, event_id=other)


async def test_copies_of_a_creation_at_the_same_time_make_one_session(sessions, others, name):
    event_id = new_event_id()
    creating = [verbs.create(app=name, event_id=event_id) for verbs in (sessions, others) * 3]

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
    """`others` is another process' API: it does not remember the first answer."""
    async with opened("http", settings) as others, httpx.AsyncClient(timeout=60) as client:
        for path, body in (
            ("sessions", {"app": name, "session_id": name}),
            ("banks", {"bank_id": name}),
            (f"banks/{name}/memories", {"memory_id": "m-1", "fact": "f", "scope": {"user": "ann"}}),
        ):
            answers = [
                await client.post(
                    f"{base}/v1/{path}", json=body, headers={"Idempotency-Key": f"{name} {path}"}
                )
                for base in (url, others.url)
            ]

            assert [answer.status_code for answer in answers] == [201, 200]
            assert answers[0].json() == answers[1].json()
            conflict = await client.post(f"{url}/v1/{path}", json=body)
            assert conflict.status_code == 409


async def test_an_event_id_comes_before_the_key(settings, url, name):
    """The key of another copy, or no key, makes no second resource."""
    async with opened("http", settings) as others, httpx.AsyncClient(timeout=60) as client:
        await client.post(f"{url}/v1/banks", json={"bank_id": name})
        for path, body, id_name in (
            ("sessions", {"app": name}, "session_id"),
            ("banks", {}, "bank_id"),
            (f"banks/{name}/memories", {"fact": "f", "scope": {"user": "ann"}}, "memory_id"),
        ):
            event_id = new_event_id()
            answers = [
                await client.post(f"{base}/v1/{path}", json={**body, "event_id": event_id}, headers=headers)
                for base, headers in (
                    (url, {"Idempotency-Key": f"{name} 1"}),
                    (others.url, {"Idempotency-Key": f"{name} 1"}),
                    (url, {"Idempotency-Key": f"{name} 2"}),
                    (url, {}),
                )
            ]

            assert [answer.status_code for answer in answers] == [201, 200, 200, 200]
            assert {answer.json()[id_name] for answer in answers} == {event_id}


async def test_a_key_with_another_body_is_refused(url, name):
    async with httpx.AsyncClient(headers={"Idempotency-Key": name}, timeout=60) as client:
        for path, body, changed in (
            ("sessions", {"app": name}, {"user": "ann"}),
            ("banks", {}, {"config": {"display_name": "Travel"}}),
            ("banks", {"bank_id": name}, {}),
            (f"banks/{name}/memories", {"fact": "f", "scope": {"user": "ann"}}, {"fact": "g"}),
        ):
            key = {"Idempotency-Key": f"{name} {len(body)} {path}"}
            answers = [
                await client.post(f"{url}/v1/{path}", json=each, headers=key)
                for each in (body, body, {**body, **(changed or {"bank_id": f"{name}-2"})})
            ]

            assert [answer.status_code for answer in answers] == [201, 201, 422]
            assert answers[0].json() == answers[1].json()
            assert answers[2].json()["type"] == "urn:runfold:problem:IdempotencyKeyReused"


async def test_a_session_that_an_earlier_version_made_from_a_key_is_the_same(settings, url, name):
    """Earlier versions derive only the session's id from the key, not the id of the creation."""
    request = RepeatableRequest(b"", "application/json", name)
    async with opened("stored", settings) as sessions:
        created = await sessions.create(app=name, session_id=request.derived_id("session", name))
    async with httpx.AsyncClient(headers={"Idempotency-Key": name}, timeout=60) as client:
        answer = await client.post(f"{url}/v1/sessions", json={"app": name})
        chosen = await client.post(
            f"{url}/v1/sessions",
            json={"app": name, "session_id": created.session_id},
            headers={"Idempotency-Key": f"{name} 2"},
        )

    assert (answer.status_code, answer.json()["run_id"]) == (200, created.record.run_id)
    assert chosen.status_code == 409


@pytest.mark.parametrize("lost", ["catalog", "sessions"])
async def test_a_creation_that_failed_halfway_is_completed_by_its_repetition(
    own_settings: OwnSettings, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """No projector runs, which would complete it."""
    event_id, state = new_event_id(), {"user:k": 1, "app:k": 2}
    settings = own_settings().log()
    async with Runfold.of(settings) as runfold, Runfold.of(settings) as others:
        with monkeypatch.context() as failing:
            lose_state_or_life(failing, runfold, getattr(runfold.connection.topics, lost))
            with pytest.raises(UnavailableError):
                await runfold.sessions.create(app="a", user="ann", state=state, event_id=event_id)

        again = await others.sessions.create(app="a", user="ann", state=state, event_id=event_id)

        assert again.state == state
        assert await others.sessions.user_state("a", "ann") == {"user:k": 1}
        assert await others.sessions.app_state("a") == {"app:k": 2}
        assert [run.run_id async for run in others.session_runs(event_id)] == [again.record.run_id]

        await others.sessions.append(event_id, UserMessage(message="hi"), state_delta={"user:k": 3})
        await others.sessions.create(app="a", user="ann", state=state, event_id=event_id)
        assert await others.sessions.user_state("a", "ann") == {"user:k": 3}


def lose_state_or_life(patching: pytest.MonkeyPatch, runfold: Runfold, topic: str) -> None:
    """Sending to the topic fails, except for the record of the session itself."""
    publisher = runfold.connection.publisher
    send = publisher.send

    async def sending(name: str, record: Outgoing, **options: Any) -> Any:
        if name == topic and not (record.key or b"").startswith(b"session"):
            raise UnavailableError("Kafka", reason="the test lost it")
        return await send(name, record, **options)

    patching.setattr(publisher, "send", sending)


async def test_every_creation_is_projected_once(settings, projector):
    async def is_equal() -> bool:
        return await projector.differences() == []

    await until(is_equal, what="MongoDB to have what the log has")
