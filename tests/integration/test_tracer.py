"""Runs as traces, from a real Kafka to a collector of OTLP."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from tests.collectors import Collector, Span, collector
from tests.ingesting import ingest as ready_ingest
from tests.ingesting import is_ready, note, opened
from tests.processes import until
from tests.querying import projected
from tests.servers import OwnSettings
from tests.trace_backends import check_phoenix, check_tempo, in_langfuse

import runfold.tracer.service
from runfold import AssistantMessage, Run, Runfold, ToolCall, ToolResult, UserMessage
from runfold.encryption.cipher import new_key
from runfold.log.catalog import life_record, partition_of
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.pending_traces import PendingTraces
from runfold.tracer.service import Tracer
from runfold.tracer.trace_span import trace_id_of
from runfold_schemas.usage import TokenUsage

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    """A run is quiet after a time that is longer than any pause of a busy machine."""
    return own_settings(publisher_park_seconds=1, park_seconds=2, session_timeout_seconds=6)


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(runfold.tracer.service, "_FAILURE_SECONDS", 0.2)
    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        yield collected


@asynccontextmanager
async def tracing(settings: Settings, *, since: timedelta | None = None) -> AsyncIterator[None]:
    """A tracer at work, and a projector, which tells it of the ends of runs."""
    async with projected(settings), Tracer(settings, since=since) as tracer:

        async def works() -> bool:
            try:
                return await tracer.check_ready() == []
            except Exception:  # noqa: BLE001  # not yet
                return False

        await until(works, what="the tracer")
        yield


async def talk(run: Run) -> None:
    await run.publish(UserMessage(message="Where?"))
    await run.publish(ToolCall(tool_call_id="c1", tool_name="track"))
    await run.publish(ToolResult(tool_call_id="c1", result="at sea"))
    await run.publish(AssistantMessage(message="At sea."))


async def has_ended(client: Runfold, run: Run) -> bool:
    life = await client.connection.catalog.lookup(run.run_id)
    return life is not None and life.ended


async def tell_end_again(client: Runfold, run: Run) -> None:
    """As a projector does that takes over the run's partition."""
    life = await client.connection.catalog.lookup(run.run_id)
    assert life is not None
    topics, publisher = client.connection.topics, client.connection.publisher
    partition = partition_of(topics, run.run_id)
    await publisher.wait(await publisher.send(topics.catalog, life_record(life), partition=partition))


async def arrives(collected: Collector, trace_id: str, count: int) -> list[Span]:
    async def all_there() -> bool:
        return len(collected.of_trace(trace_id)) >= count

    await until(all_there, what=f"{count} spans, of which {len(collected.spans)} came,")
    return [*collected.of_trace(trace_id).values()]


async def test_a_run_that_ends_is_exported_once_and_again_with_the_same_ids(
    settings: Settings, collected: Collector
) -> None:
    async with Runfold.of(settings.log()) as client:
        async with projected(settings):
            early = await client.open_run(agent_id="desk", run_id="early")
            await talk(early)
            await early.complete()
            await until(lambda: has_ended(client, early), what="the end of the run in the catalog")
        async with tracing(settings):
            await tell_end_again(client, early)
            context = SpanContext(
                int(TRACE_ID, 16), int(SPAN_ID, 16), is_remote=True, trace_flags=TraceFlags(1)
            )
            with use_span(NonRecordingSpan(context)):
                run = await client.open_run(agent_id="desk", run_id="r")
                await talk(run)
                await run.complete()
            spans = await arrives(collected, TRACE_ID, 4)
        assert {span.name for span in spans} == {"invoke_agent desk", "chat", "execute_tool track"}
        [root] = [span for span in spans if span.name == "invoke_agent desk"]
        assert root.parent_id == SPAN_ID
        assert root.resource["service.name"] == "runfold"
        assert root.attributes["runfold.run.status"] == "completed"
        assert all(span.start <= span.end for span in spans)
        assert "Where?" not in repr(spans)
        assert collected.of_trace(trace_id_of(early.life.log_id)) == {}

        before = collected.of_trace(TRACE_ID)
        collected.spans.clear()
        async with tracing(settings, since=timedelta(days=1)):
            await arrives(collected, TRACE_ID, 4)
            await arrives(collected, trace_id_of(early.life.log_id), 4)
        assert collected.of_trace(TRACE_ID) == before


async def test_an_open_run_is_exported_when_it_is_quiet_and_what_follows_later(
    settings: Settings, collected: Collector
) -> None:
    impatient = settings.model_copy(update={"tracer_quiet_seconds": 1})
    async with Runfold.of(settings.log()) as client, tracing(impatient):
        run = await client.open_run(agent_id="desk", run_id="r")
        trace_id = trace_id_of(run.life.log_id)
        await talk(run)
        first = {span.span_id for span in await arrives(collected, trace_id, 4)}
        await run.publish(UserMessage(message="And B?"))
        await run.publish(AssistantMessage(message="Too."))
        await run.complete()

        async def ended() -> bool:
            return any("runfold.run.status" in span.attributes for span in collected.spans)

        await until(ended, what="the end")
        assert len(collected.of_trace(trace_id)) == 5
        assert first < {*collected.of_trace(trace_id)}

        async with connect(settings.mongo, settings.database) as database:

            async def is_forgotten() -> bool:
                return await database["traces"].count_documents({"_id": "r"}) == 0

            # The spans arrive before the tracer hears that they did.
            await until(is_forgotten, what="the end of the note")


async def test_a_run_that_is_noted_while_its_trace_is_read_stays_due(settings: Settings) -> None:
    async with connect(settings.mongo, settings.database) as database:
        traces = PendingTraces(database)
        await traces.note([("r", 0)], due=datetime.now(UTC))
        [read] = await traces.due([0], limit=10)
        await traces.note([("r", 0)], due=datetime.now(UTC))
        await traces.postpone(read, seconds=600)
        [again] = await traces.due([0], limit=10)
        assert again.change == read.change + 1
        await traces.postpone(again, seconds=600)
        assert await traces.due([0], limit=10) == []


async def test_nothing_is_lost_while_the_endpoint_refuses_or_the_tracer_is_away(
    settings: Settings, collected: Collector
) -> None:
    async with Runfold.of(settings.log()) as client:
        async with tracing(settings):
            collected.status = 400
            refused = await client.open_run(agent_id="desk", run_id="refused")
            await refused.complete()

            async def has_refused() -> bool:
                return collected.requests > 1

            await until(has_refused, what="a second attempt")
        away = await client.open_run(agent_id="desk", run_id="away")
        await away.complete()
        collected.status = 200
        async with tracing(settings):
            for run in (refused, away):
                [span] = await arrives(collected, trace_id_of(run.life.log_id), 1)
                assert span.attributes["runfold.run.id"] == run.run_id


async def test_the_traceparent_of_a_request_is_the_parent_of_the_run_that_it_opens(
    settings: Settings, collected: Collector
) -> None:
    traceparent = f"00-{TRACE_ID}-{SPAN_ID}-01"
    async with ready_ingest(kafka=settings.kafka, prefix=settings.prefix) as http, tracing(settings):
        await until(lambda: is_ready(http), what="the connection")
        http.headers["traceparent"] = traceparent
        run = await opened(http, run_id="r")
        await http.post(f"{run}/events", json=note("n"))
        assert (await completed(http, run)).status_code == 201
        spans = await arrives(collected, TRACE_ID, 1)
    assert [span.parent_id for span in spans] == [SPAN_ID]


async def completed(http: httpx.AsyncClient, run: str) -> httpx.Response:
    return await http.post(f"{run}/status", json={"action": "complete"})


async def test_backends_get_what_they_read(
    own_settings: OwnSettings, collected: Collector, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.json"
    rates = {"model": "claude*", "input": 3, "output": 15}
    prices.write_text(json.dumps({"date": "2026-11-01", "models": [rates]}))
    settings = own_settings(tracer_contents=True, prices=prices)
    async with Runfold.of(settings.log()) as client, tracing(settings):
        run = await client.open_run(agent_id="desk", run_id="r", session_id="s-1")
        await run.publish(UserMessage(message="Where?"))
        answer = {"message_id": "m-1", "provider": "anthropic"}
        await run.publish(ToolCall(tool_call_id="c1", tool_name="track", payload={"id": 17}), **answer)
        await run.publish(TokenUsage(model="claude-x", input_tokens=1000, output_tokens=100), **answer)
        await run.publish(ToolResult(tool_call_id="c1", error="not found"))
        await run.complete()
        spans = await arrives(collected, trace_id_of(run.life.log_id), 3)

    check_tempo(spans)
    for span in spans:
        check_phoenix(span)
    agent, chat, tool = (in_langfuse(span) for span in sorted(spans, key=lambda span: span.start))
    assert (agent.kind, chat.kind, tool.kind) == ("AGENT", "GENERATION", "TOOL")
    assert {each.session for each in (agent, chat, tool)} == {"s-1"}
    assert chat.model == "claude-x"
    assert chat.usage == {"input": 1000, "output": 100}
    assert chat.cost == pytest.approx(0.0045)
    assert agent.usage == {}  # it would be counted twice
    assert "Where?" in agent.input
    assert "track" in chat.output
    assert (tool.input, tool.output, tool.level) == ('{"id":17}', '"not found"', "ERROR")


async def test_what_is_sealed_stays_sealed_unless_the_tracer_has_the_key(
    own_settings: OwnSettings, collected: Collector, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(b64encode(new_key()).decode())
    settings = own_settings(tracer_contents=True, encryption_key=f"file:{key}")
    without_key = settings.model_copy(update={"encryption_key": None})
    async with Runfold.of(settings.log()) as client:
        run = await client.open_run(agent_id="desk", run_id="r")
        await run.publish(UserMessage(message="hush"))
        await run.publish(AssistantMessage(message="hush, too"))
        await run.complete()
    for each, is_shown in ((without_key, False), (settings, True)):
        collected.spans.clear()
        async with tracing(each, since=timedelta(days=1)):
            spans = await arrives(collected, trace_id_of(run.life.log_id), 2)
        assert {span.name for span in spans} == {"invoke_agent desk", "chat"}
        assert ("hush" in repr(spans)) is is_shown
