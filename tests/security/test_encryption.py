"""What agents say is stored sealed, on real servers: every kind of field has a marker, no topic and
no collection holds one, and every reader shows it until the subject's key is destroyed.
"""

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import zstandard
from aiokafka import AIOKafkaProducer
from pymongo import AsyncMongoClient
from tests.erasing import every_record
from tests.key_servers import VAULT_TOKEN, broken, vault
from tests.processes import DEADLINE_SECONDS, until
from tests.sealed_services import sealed_api, sealed_settings

from runfold import Memory, Run, Runfold
from runfold.encryption.cipher import new_key
from runfold.log.admin import LogAdmin
from runfold.log.reader import read
from runfold.log.restored_topics import configs_of
from runfold.settings import Settings
from runfold_schemas.codec import encode, new_event
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.events import (
    AssistantMessage,
    EventAmended,
    PlannerNote,
    ProviderPart,
    ResponseRecorded,
    StandIn,
    SystemMessage,
    Thinking,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import Citation, TextPart
from runfold_schemas.runs import RunLabeled
from runfold_schemas.sessions import FrameworkEvent
from runfold_schemas.summaries import Summary

MARK = "zebra"
"""Every secret text contains it."""

ZSTD = b"\x28\xb5\x2f\xfd"


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return sealed_settings(kafka, mongo, tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with sealed_api(settings) as client:
        yield client


@pytest.fixture(scope="module")
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


def secret(name: str) -> str:
    return f"{MARK}-{name}"


def events() -> list[Any]:
    """An event of each kind that a run publishes, with a marker in each field that can hold one."""
    data = {"anthropic": {"x": secret("provider-data")}}
    return [
        SystemMessage(message=secret("system"), provider_data=data),
        UserMessage(
            message=secret("user"),
            structured={"a": secret("structured")},
            parts=(TextPart(text=secret("part")),),
        ),
        Thinking(text=secret("thinking"), signature=secret("signature"), final=True, provider_data=data),
        AssistantMessage(
            message=secret("assistant"),
            structured=secret("s"),
            citations=(Citation(url="https://" + secret("cited"), cited_text=secret("cited")),),
            provider_data=data,
        ),
        ToolCall(tool_call_id="c1", tool_name="find", payload={"q": secret("payload")}, provider_data=data),
        ToolResult(tool_call_id="c1", tool_name="find", result=[secret("result")]),
        ToolCall(tool_call_id="c2", tool_name="find", payload={"q": secret("payload")}),
        ToolResult(tool_call_id="c2", tool_name="find", error={"why": secret("error")}),
        PlannerNote(note=secret("note")),
        TokenUsage(model="m-1", input_tokens=7, output_tokens=3),
        ProviderPart(content={"x": secret("provider-part")}),
        ResponseRecorded(
            model="m-1",
            stop_reason="stop",
            faults=(secret("fault"),),
            provider_data={"x": secret("beside")},
            next_request={"x": secret("next")},
        ),
        Summary(text=secret("summary"), end_offset=2),
        FrameworkEvent(
            framework="adk",
            body={"author": "user", "content": {"role": "user", "parts": [{"text": secret("adk")}]}},
        ),
        EventAmended(
            offset=1,
            stand_ins=(StandIn(type="system_message", data={"message": secret("stand-in")}),),
            reason=secret("reason"),
        ),
        RunLabeled(labels={"plan": secret("label"), "team": "red"}, metadata={"x": secret("metadata")}),
    ]


async def kafka_bytes(settings: Settings) -> list[tuple[str, bytes]]:
    """Every record of the installation: key, headers and value."""
    return [
        (
            topic,
            b"".join(
                [record.key or b"", *(value or b"" for _, value in record.headers), record.value or b""]
            ),
        )
        async for topic, record in every_record(settings)
    ]


async def mongo_bytes(settings: Settings) -> list[tuple[str, bytes]]:
    """Every document of the database, with the bodies of pages unpacked."""
    async with AsyncMongoClient[dict[str, Any]](settings.mongo.get_secret_value()) as mongo:
        database = mongo[settings.database]
        return [
            (name, b"".join([repr(document).encode(), *map(unpacked, document.values())]))
            for name in await database.list_collection_names()
            async for document in database[name].find()
        ]


def unpacked(value: Any) -> bytes:
    """What zstd has compressed, if anything."""
    is_packed = isinstance(value, bytes) and value.startswith(ZSTD)
    return zstandard.ZstdDecompressor().decompressobj().decompress(value) if is_packed else b""


async def leaks(settings: Settings, marker: str = MARK) -> list[tuple[str, bytes]]:
    """What Kafka and MongoDB hold of the markers, in clear."""
    return [
        (name, text[max(0, text.index(marker.encode()) - 200) : text.index(marker.encode()) + 50])
        for name, text in [*await kafka_bytes(settings), *await mongo_bytes(settings)]
        if marker.encode() in text
    ]


async def ledger(client: httpx.AsyncClient, run_id: str, offset: int) -> str:
    answer = await client.get(f"/v1/runs/{run_id}/ledger", params={"min_offset": offset})
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_a_run_is_sealed_and_reads_as_erased_without_its_key(
    settings: Settings, client: httpx.AsyncClient, runfold: Runfold
) -> None:
    run = await runfold.open_run(agent_id="desk", labels={"plan": secret("first-label"), "team": "red"})
    published = events()
    positions = await run.publish_batch(published)
    await run.publish(UserMessage(message=secret("state")), state_delta={"order": secret("state-value")})
    await run.fail(secret("run-error"))
    end = positions[-1].offset + 2

    clear = await ledger(client, run.run_id, end)
    assert all(
        secret(name) in clear for name in ("stand-in", "part", "assistant", "payload", "result", "adk")
    )
    assert [event.data for event in [e async for e in run.events()][1 : len(published) + 1]] == published
    shown = (await client.get(f"/v1/runs/{run.run_id}/events", params={"limit": 100})).text
    assert shown.count(MARK) > 30
    assert "sealed:v1" not in shown
    record = (await client.get(f"/v1/runs/{run.run_id}")).json()
    assert record["labels"] == {"plan": secret("label"), "team": "red"}
    assert record["error"] == secret("run-error")
    assert record["usage"]["input_tokens"] == 7
    followed = await client.get(f"/v1/runs/{run.run_id}/follow", params={"until_end": True})
    assert secret("assistant") in followed.text
    assert await leaks(settings) == []

    sealing = runfold.connection.sealing
    assert sealing is not None
    assert await sealing.keys.destroy(f"run:{run.run_id}") == 1

    async def is_erased() -> bool:
        return MARK not in await ledger(client, run.run_id, end)

    await until(is_erased, what="the query service's look at the keys")
    erased = json.loads(await ledger(client, run.run_id, end))
    assert "[erased]" in json.dumps(erased)
    assert MARK not in (await client.get(f"/v1/runs/{run.run_id}/events", params={"limit": 100})).text
    assert MARK not in (await client.get(f"/v1/runs/{run.run_id}")).text
    assert all(MARK not in event.model_dump_json() for event in [e async for e in run.events()])
    for format_ in ("anthropic", "openai-chat", "gemini", "bedrock", "openai-responses"):
        answer = await client.get(f"/v1/runs/{run.run_id}/ledger/{format_}")
        assert answer.status_code in (200, 404), answer.text


async def test_sessions_and_their_state_are_sealed_for_their_user(
    settings: Settings, client: httpx.AsyncClient, runfold: Runfold
) -> None:
    sessions = runfold.sessions
    session = await sessions.create(
        app="desk",
        user="ann",
        state={
            "user:language": secret("user-state"),
            "own": {"deep": secret("own-state")},
            "app:open": "ten",
        },
        labels={"plan": secret("session-label"), "team": "red"},
        display_name=secret("name"),
    )
    id_ = session.session_id
    await sessions.append(
        id_,
        UserMessage(message=secret("said")),
        state_delta={"order": secret("order"), "user:city": secret("city")},
    )
    await sessions.update(id_, labels={"more": secret("more-label")})
    expected = {
        "user:language": secret("user-state"),
        "own": {"deep": secret("own-state")},
        "app:open": "ten",
        "order": secret("order"),
        "user:city": secret("city"),
    }

    for view in (await sessions.view(id_), (await sessions.list(app="desk", user="ann"))[0][0]):
        assert view.state == expected
        assert view.record.display_name == secret("name")
        assert view.record.labels["plan"] == secret("session-label")
    shown = (await client.get(f"/v1/sessions/{id_}")).json()
    assert shown["state"] == expected
    assert shown["labels"] == {"plan": secret("session-label"), "team": "red", "more": secret("more-label")}
    listed = (await client.get("/v1/sessions", params={"user": "ann"})).json()["sessions"]
    assert listed[0]["state"] == expected
    for path in ("/v1/sessions", "/v1/runs"):
        refused = await client.get(path, params={"label": "plan:x"})
        assert refused.status_code == 422, refused.text
        assert "RUNFOLD_ENCRYPTION_CLEAR_LABELS" in refused.text
    by_label = (await client.get("/v1/sessions", params={"label": "team:red", "user": "ann"})).json()
    assert [session["session_id"] for session in by_label["sessions"]] == [id_]
    events_ = (await client.get(f"/v1/sessions/{id_}/events")).text
    assert secret("said") in events_
    assert await leaks(settings) == []


async def test_memories_are_sealed_for_the_user_of_their_scope(
    settings: Settings, client: httpx.AsyncClient, runfold: Runfold
) -> None:
    memories, bank = runfold.memories, f"bank-{uuid4().hex[:8]}"
    await memories.create_bank(bank)
    fact = Memory(
        fact=secret("fact"),
        scope={"user": "ben"},
        metadata={"k": secret("metadata")},
        display_name=secret("memory-name"),
        description=secret("description"),
    )
    memory = await memories.create(bank, fact)
    await memories.update(bank, memory.memory_id, {"fact": secret("new fact")})
    revisions, _ = await memories.revisions(bank, memory.memory_id)
    assert [revision.fact for revision in revisions] == [secret("new fact"), secret("fact")]
    shown = (await client.get(f"/v1/banks/{bank}/memories/{memory.memory_id}")).json()
    assert shown["fact"] == secret("new fact")
    assert shown["metadata"] == {"k": secret("metadata")}
    near = await client.post(
        f"/v1/banks/{bank}/memories/retrieve",
        json={"scope": {"user": "ben"}, "query": secret("new fact")},
    )
    assert near.status_code == 200, near.text
    assert secret("new fact") in near.text
    assert await leaks(settings) == []

    sealing = runfold.connection.sealing
    assert sealing is not None
    assert await sealing.keys.destroy("user:ben") == 1
    path = f"/v1/banks/{bank}/memories/{memory.memory_id}"

    async def is_erased() -> bool:
        return MARK not in (await client.get(path)).text

    await until(is_erased, what="the query service's look at the keys")
    assert (await client.get(path)).json()["fact"] == "[erased]"


async def produced(settings: Settings, run: Run, data: Any, **envelope: Any) -> int:
    """The offset of an event that a producer without the key appends to a run."""
    event = new_event(data, event_id=str(uuid4()), run_id=run.run_id, timestamp=datetime.now(UTC), **envelope)
    topic = settings.log().topics.run(run.run_id, run.life.log_id)
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka) as producer:
        return (await producer.send_and_wait(topic, encode(event), key=run.run_id.encode())).offset


async def test_the_search_finds_what_is_not_sealed(
    settings: Settings, client: httpx.AsyncClient, runfold: Runfold
) -> None:
    clear = settings.log().model_copy(update={"encryption_key": None})
    async with Runfold.of(clear) as other:
        with pytest.raises(ConfigurationError, match="RUNFOLD_ENCRYPTION_KEY"):
            await other.open_run(agent_id="desk")
        with pytest.raises(ConfigurationError, match="RUNFOLD_ENCRYPTION_KEY"):
            await other.sessions.create(app="desk", user="ann")
    # A producer of its own needs no key.
    run = await runfold.open_run(agent_id="desk")
    with pytest.raises(ConfigurationError, match="RUNFOLD_ENCRYPTION_KEY"):
        async with Runfold.of(clear) as other:
            await (await other.get_run(run.run_id)).publish(UserMessage(message="giraffe"))
    offset = await produced(settings, run, UserMessage(message="giraffe"))
    assert "giraffe" in await ledger(client, run.run_id, offset)

    async def places() -> set[str]:
        return {name.partition(".")[0] for name, _ in await leaks(settings, "giraffe")}

    async def is_stored() -> bool:
        return {settings.prefix, "pages"} <= await places()

    await until(is_stored, what="the page of the run")


@contextmanager
def cached(away: float, *, cache_seconds: float) -> Iterator[None]:
    """For a block that needs cached keys, since the operator's key is away. They were unwrapped at
    most half the time of the cache before. Where the machine stands still for the rest of that
    time, the block may fail.
    """
    try:
        yield
    except UnavailableError:
        if time.monotonic() - away < cache_seconds / 2:
            raise


async def test_while_the_operators_key_is_away_cached_keys_serve_for_the_stated_time(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_text(b64encode(new_key()).decode())
    log = settings.log().model_copy(
        update={
            "prefix": f"t{uuid4().hex[:8]}",
            "encryption_key": f"file:{key}",
            "encryption_cache_seconds": 4.0,
        }
    )
    async with Runfold.of(log) as runfold:
        run = await runfold.open_run(agent_id="desk")
        await run.publish(UserMessage(message="before"))
        monkeypatch.setattr("runfold.encryption.keys._READY_SECONDS", 1)
        content = key.read_text()
        key.unlink()
        with cached(time.monotonic(), cache_seconds=4):
            await run.publish(UserMessage(message="cached"))

        async def fails() -> bool:
            try:
                await run.publish(UserMessage(message="cached"))
            except UnavailableError:
                return True
            return False

        await until(fails, what="the end of the cache")
        with pytest.raises(UnavailableError):
            await run.ledger()
        key.write_text(content)

        async def works() -> bool:
            return not await fails()

        await until(works, what="the key's return")
        assert "before" in " ".join(message.model_dump_json() for message in await run.ledger())


async def test_while_vault_is_away_cached_keys_serve_and_then_writes_wait_and_fail(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_TOKEN", VAULT_TOKEN)
    with vault() as server:
        log = settings.log().model_copy(
            update={
                "prefix": f"t{uuid4().hex[:8]}",
                "encryption_key": f"vault+http://{server.url}/v1/transit/keys/runfold",
                "encryption_cache_seconds": 6.0,
            }
        )
        async with Runfold.of(log) as runfold:
            run = await runfold.open_run(agent_id="desk")
            await run.publish(UserMessage(message="before"))
            monkeypatch.setattr("runfold.encryption.keys._READY_SECONDS", 2)
            server.fault = broken(503)
            away = time.monotonic()
            stored = ["before"]
            while time.monotonic() < away + 2:
                with cached(away, cache_seconds=6):
                    await run.publish(UserMessage(message="cached"))
                    stored.append("cached")
                    assert "before" in " ".join(message.model_dump_json() for message in await run.ledger())
                await asyncio.sleep(0.2)

            async def fails_after_a_wait() -> bool:
                began = time.monotonic()
                try:
                    await run.publish(UserMessage(message="cached"))
                except UnavailableError as error:
                    return error.retriable and time.monotonic() - began > 1
                stored.append("cached")
                return False

            await until(fails_after_a_wait, what="the end of the cache")
            monkeypatch.setattr("runfold.encryption.keys._READY_SECONDS", DEADLINE_SECONDS)
            waiting = asyncio.create_task(run.publish(UserMessage(message="waited")))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            server.fault = None
            await waiting
            assert await _messages(run) == [*stored, "waited"]
        topics = await kafka_bytes(settings.model_copy(update={"prefix": log.prefix}))
        assert [name for name, value in topics if b"cached" in value or b"waited" in value] == []


async def _messages(run: Run) -> list[str]:
    """The messages of the user in a run."""
    events = [event.data async for event in run.events()]
    return [event.message or "" for event in events if isinstance(event, UserMessage)]


@pytest.mark.usefixtures("client")
async def test_a_dead_letter_names_its_record_for_a_time(settings: Settings, runfold: Runfold) -> None:
    run = await runfold.open_run(agent_id="desk")
    await run.publish(UserMessage(message=secret("buried")))
    topics = runfold.connection.topics
    topic = topics.run(run.run_id, run.life.log_id)
    [*_, sealed] = [record async for records in read(settings.log(), topic) for record in records]
    assert sealed.value is not None
    value = sealed.value.replace(b'"user_message"', b'"no_such_kind"')
    assert value != sealed.value
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka) as producer:
        await producer.send_and_wait(topic, value, key=run.run_id.encode())

    async def letters() -> dict[bytes | None, bytes | None]:
        read_ = read(settings.log(), topics.dead_letters)
        return {record.key: record.value async for records in read_ for record in records}

    async def is_there() -> bool:
        return f"{topic}:{sealed.offset + 1}".encode() in await letters()

    await until(is_there, what="the dead letter")
    assert set((await letters()).values()) == {b""}
    async with LogAdmin.connect(settings.log()) as admin:
        config = (await configs_of(admin, [topics.dead_letters]))[topics.dead_letters]
    assert config["retention.ms"] == str(30 * 24 * 3600 * 1000)


async def test_after_a_key_is_destroyed_its_subject_gets_another(
    settings: Settings, runfold: Runfold
) -> None:
    run = await runfold.open_run(agent_id="desk")
    await run.publish(UserMessage(message="before"))
    sealing = runfold.connection.sealing
    assert sealing is not None
    assert await sealing.keys.destroy(f"run:{run.run_id}") == 1

    await run.publish(UserMessage(message="after"))

    assert await _messages(run) == ["[erased]", "after"]
