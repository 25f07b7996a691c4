"""Generation of memories, sessions of ADK and requests to providers with encryption, on real
servers.
"""

from collections.abc import AsyncIterator
from hashlib import blake2b
from uuid import UUID, uuid4

import httpx
import pytest
from google.adk.events.event import Event
from google.genai.types import Content, Part
from pydantic_core import to_json
from tests.ingesting import is_ready
from tests.processes import until
from tests.provider_types import check
from tests.querying import served
from tests.remembering import ScriptedModel
from tests.sealed_services import sealed_api, sealed_settings
from tests.security.test_encryption import MARK, events, leaks, ledger, secret

from runfold import AssistantMessage, Runfold, Thinking, ToolCall, ToolResult, UserMessage
from runfold.adk import RunfoldSessionService
from runfold.api.app import build_app
from runfold.cli.replay import replay
from runfold.client.memories import Memories
from runfold.client.session import EventSelection
from runfold.client.sessions import Sessions
from runfold.generation.model import Found
from runfold.generation.options import Contents, DirectFacts, NewFact, SessionSource, StreamContent
from runfold.generation.service import Generation
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold_schemas.codec import decode
from runfold_schemas.data import Data
from runfold_schemas.events import EventAmended, ProviderPart, StandIn
from runfold_schemas.memories import BankConfig
from runfold_schemas.messages import PROVIDERS, Provider
from runfold_schemas.sessions import FrameworkEvent

SOURCES = ("in-session", "direct-contents", "stream-contents", "in-run")
"""The conversations that memories are generated from."""


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


async def test_what_a_generation_copies_is_sealed_for_the_user_of_its_scope(
    settings: Settings, client: httpx.AsyncClient, runfold: Runfold
) -> None:
    bank, user = f"bank-{uuid4().hex[:8]}", uuid4().hex
    scope = {"user_id": user}
    session = await runfold.sessions.create(app="desk", user=user)
    await runfold.sessions.append(session.session_id, UserMessage(message=secret("in-session")))
    model = ScriptedModel(found=[Found(fact=secret("extracted"), topics=["USER_PREFERENCES"])])
    direct = Contents([{"role": "user", "parts": [{"text": secret("direct-contents")}]}])
    streamed = StreamContent({"role": "user", "parts": [{"text": secret("stream-contents")}]})
    async with Reading(settings) as reading:
        memories = Memories(runfold.connection, reading.stored_memories, similarity=reading.similarity)
        sessions = Sessions(runfold.connection, reading.stored_sessions)
        await memories.create_bank(bank, BankConfig(agents=("desk-of-runs",)))
        async with Generation(
            settings,
            runfold=lambda: runfold,
            memories=lambda: memories,
            sessions=lambda: sessions,
            model=model,
        ) as generation:
            generator = generation.generator()
            await generator.generate(bank, scope, DirectFacts([NewFact(text=secret("direct-fact"))]))
            await generator.generate(bank, None, SessionSource(session.session_id))
            await generator.generate(bank, scope, direct)
            await generation.streams.ingest(bank, scope, "chat", [streamed])
            run = await runfold.open_run(agent_id="desk-of-runs", session_id=session.session_id)
            await run.publish(UserMessage(message=secret("in-run")))
            await run.complete()

            async def has_read_all() -> bool:
                asked = " ".join(conversation for conversation, _ in model.read)
                return all(secret(name) in asked for name in SOURCES)

            await until(has_read_all, what="the generation from the run")
        near = await memories.nearest(bank, scope, secret("extracted"), limit=10)
    assert secret("extracted") in {found.record.memory.fact for found in near}
    assert await leaks(settings) == []

    logs = [life.run_id async for life in runfold.connection.catalog.lives() if life.agent_id == bank]
    assert len(logs) >= 5
    sealing = runfold.connection.sealing
    assert sealing is not None
    assert await sealing.keys.destroy(f"user:{user}") == 1
    shown = [
        event.model_dump_json() for run_id in logs async for event in (await runfold.get_run(run_id)).events()
    ]
    assert any('"framework_event"' in text for text in shown)
    assert [text for text in shown if MARK in text] == []


async def test_the_id_of_an_adk_event_is_keyed_and_the_same_in_every_process(
    settings: Settings, client: httpx.AsyncClient, runfold: Runfold
) -> None:
    user = uuid4().hex
    names = ("kafka", "mongo", "prefix", "database", "encryption_key")
    options = {name: getattr(settings, name) for name in names}
    event = Event(author="user", content=Content(role="user", parts=[Part(text=secret("adk"))]))
    async with RunfoldSessionService(**options) as one, RunfoldSessionService(**options) as other:
        session = await one.create_session(app_name="desk", user_id=user)
        same = session.model_copy(deep=True)
        await one.append_event(session, event.model_copy(deep=True))
        await other.append_event(same, event.model_copy(deep=True))
    [listed], _ = await runfold.sessions.list(app="desk", user=user)
    view = await runfold.sessions.view(listed.record.session_id, EventSelection())
    [logged] = [decode(each.value) for each in view.events if b"framework_event" in each.value]
    assert isinstance(logged.data, FrameworkEvent)
    assert secret("adk") in str(logged.data.body)
    content = view.record.run_id.encode() + to_json(logged.data.body)
    assert logged.event_id != str(UUID(bytes=blake2b(content, digest_size=16).digest()))
    assert await leaks(settings) == []


def conversation() -> list[Data]:
    """A run in which each kind of event that a ledger shows has something to seal."""
    return [
        UserMessage(message=secret("asked")),
        Thinking(text=secret("thought"), signature="s", final=True),
        AssistantMessage(message=secret("said")),
        ToolCall(tool_call_id="c 1", tool_name="the trains", payload={"to": secret("place")}),
        ToolCall(tool_call_id="c 2", tool_name="the trains", payload={"to": secret("place")}),
        ToolResult(tool_call_id="c 2", tool_name="the trains", error=secret("error")),
        ToolResult(tool_call_id="c 1", tool_name="the trains", result=[secret("result")]),
        ProviderPart(content={"type": "mystery", "x": secret("part")}, finished=True),
        AssistantMessage(message=secret("wrong")),
        UserMessage(message=secret("again")),
        FrameworkEvent(
            framework="adk",
            body={
                "author": "model",
                "content": {
                    "role": "model",
                    "parts": [{"functionCall": {"id": "c3", "name": "find", "args": {"q": secret("q")}}}],
                },
            },
        ),
        FrameworkEvent(
            framework="adk",
            body={
                "author": "model",
                "content": {
                    "role": "user",
                    "parts": [{"functionResponse": {"id": "c3", "name": "find", "response": {"r": 1}}}],
                },
            },
        ),
        AssistantMessage(message=secret("last")),
        EventAmended(
            offset=9,
            stand_ins=(StandIn(type="assistant_message", data={"message": secret("right")}),),
            reason=secret("reason"),
        ),
        UserMessage(message=secret("thanks")),
    ]


async def test_a_ledger_is_a_request_to_each_provider_before_and_after_its_key_is_destroyed(
    settings: Settings, client: httpx.AsyncClient, runfold: Runfold
) -> None:
    run = await runfold.open_run(agent_id="desk")
    positions = await run.publish_batch(conversation())
    end = positions[-1].offset

    async def request(provider: Provider, source: str) -> str:
        """The answer with the run as a request to a provider."""
        query = {"format": provider, "source": source, "validate": provider, "lossy": "drop"}
        answer = await client.get(f"/v1/runs/{run.run_id}/ledger", params={**query, "min_offset": end})
        assert answer.status_code == 200, answer.text
        # Another provider's thinking is dropped.
        assert {fault["rule"] for fault in answer.json()["faults"]} <= {"inexpressible"}, (provider, source)
        check(provider, answer.json()["request"])
        return answer.text

    for provider in PROVIDERS:
        shown = await request(provider, "log")
        assert all(secret(name) in shown for name in ("asked", "said", "right", "place", "result", "q"))
    sealing = runfold.connection.sealing
    assert sealing is not None
    assert await sealing.keys.destroy(f"run:{run.run_id}") == 1

    async def is_erased() -> bool:
        return MARK not in (await client.get(f"/v1/runs/{run.run_id}/ledger")).text

    await until(is_erased, what="the query service's look at the keys")
    for provider in PROVIDERS:
        for source in ("snapshot", "log"):
            erased = await request(provider, source)
            assert MARK not in erased
            assert "[erased]" in erased
            assert "the trains" in erased


@pytest.mark.usefixtures("client")
async def test_without_the_key_a_run_shows_that_it_is_sealed(
    settings: Settings, runfold: Runfold, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await runfold.open_run(agent_id="desk", labels={"plan": secret("label")})
    await run.publish_batch(events())
    await run.fail(secret("error"))
    await runfold.sessions.create(
        app="desk",
        user="kay",
        session_id="of-kay",
        display_name=secret("Kay"),
        state={"k": secret("own"), "user:k": secret("shared")},
        labels={"plan": secret("label")},
    )
    keyless = settings.model_copy(update={"encryption_key": None})
    async with Runfold.of(keyless.log()) as other:
        elsewhere = await other.get_run(run.run_id)
        messages = await elsewhere.ledger()
        session = await other.sessions.view("of-kay")
        of_clients = [
            await elsewhere.view(),
            session,
            await other.sessions.list(user="kay"),
            await other.sessions.user_state("desk", "kay"),
            await (await other.get_run(session.record.run_id)).state_changes("k"),
        ]
    await replay(run.run_id, keyless, as_json=True)
    async with served(build_app(keyless)) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        paths = (f"/v1/runs/{run.run_id}", "/v1/sessions/of-kay", "/v1/sessions?user=kay")
        answers = [(await client.get(path)).text for path in paths]
    read = [" ".join(message.model_dump_json() for message in messages), *map(repr, of_clients)]
    shown = [*read, capsys.readouterr().out, *answers]
    assert [text for text in shown if MARK in text or "sealed:v1:" in text] == []
    assert all("[sealed]" in text for text in shown)


async def test_a_fork_is_sealed_for_the_user_of_its_source(
    settings: Settings, client: httpx.AsyncClient, runfold: Runfold
) -> None:
    user = uuid4().hex
    session = await runfold.sessions.create(app="desk", user=user, state={"own": secret("fork-state")})
    source = await runfold.get_run(session.record.run_id)
    position = [await runfold.sessions.append(session.session_id, data) for data in events()][-1]
    await source.label(plan=secret("fork-label"))

    fork = await source.fork()

    copied = "".join([event.model_dump_json() async for event in fork.events()])
    for name in ("fork-state", "fork-label", "stand-in", "part", "assistant", "payload", "summary", "adk"):
        assert secret(name) in copied
    assert await fork.ledger() == await source.ledger()
    clear = await ledger(client, fork.run_id, position.offset - 1)
    assert secret("assistant") in clear
    record = (await client.get(f"/v1/runs/{fork.run_id}")).json()
    assert record["labels"]["plan"] == secret("fork-label")
    assert await leaks(settings) == []

    sealing = runfold.connection.sealing
    assert sealing is not None
    assert await sealing.keys.destroy(f"user:{user}") == 1
    assert MARK not in "".join([event.model_dump_json() async for event in fork.events()])
