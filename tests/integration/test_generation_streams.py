"""Streams on real servers: what is ingested is in a log, and each trigger is answered once, by
whichever process.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from tests.builders import EPOCH
from tests.memory_verbs import check_memories_rebuild
from tests.processes import DEADLINE_SECONDS, until
from tests.remembering import ScriptedModel
from tests.session_verbs import Projector

from runfold import Run, Runfold
from runfold.client.memories import Memories
from runfold.generation.generator import Generator
from runfold.generation.model import Found
from runfold.generation.options import GenerationOptions, StreamContent
from runfold.generation.streams import IngestStreams, stream_run_id
from runfold.generation.trigger_log import TriggerLog
from runfold.generation.trigger_runner import TriggerRunner
from runfold.generation.triggers import StreamSettings, StreamState, TriggerRule
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold_schemas.errors import (
    BankNotFoundError,
    GenerationFailedError,
    InvalidEventError,
    NoModelError,
    UnavailableError,
)
from runfold_schemas.memories import GenerationRequested, MemoriesGenerated

BANK = "bank"


class EchoModel(ScriptedModel):
    """Finds a fact in each line that is said, and consolidates nothing."""

    async def extract(self, conversation: str, *, instructions: str) -> list[Found]:
        await super().extract(conversation, instructions=instructions)
        return [
            Found(fact=f"Heard {line}", topics=["USER_PREFERENCES"]) for line in conversation.splitlines()
        ]


@dataclass
class World:
    memories: Memories
    runfold: Runfold
    model: EchoModel
    scope: dict[str, str]
    bank: str = BANK

    @asynccontextmanager
    async def process(self, *, without_model: bool = False, **options: Any) -> AsyncIterator[IngestStreams]:
        """As another process would have it."""
        generator = Generator(self.memories, self.runfold, None if without_model else self.model)
        async with TriggerRunner(lambda: generator, **{"sweep_seconds": 0.2, **options}) as runner:
            yield IngestStreams(runner)

    def ingesting(self) -> IngestStreams:
        """Of a process that ends before anything is due."""
        generator = Generator(self.memories, self.runfold, self.model)
        return IngestStreams(TriggerRunner(lambda: generator))

    async def run(self) -> Run:
        """The stream's."""
        bank = await self.memories.bank(self.bank)
        return await self.runfold.get_run(stream_run_id(bank.created_by, self.scope, "s"))

    async def settings(self) -> StreamSettings:
        """What counts of the stream, by its log."""
        generator = Generator(self.memories, self.runfold, self.model)
        appender = self.runfold.connection.appender_of((await self.run()).life)
        return (await TriggerLog(generator, appender).catch_up()).settings

    async def log(self) -> list[Any]:
        """What the stream's log says of generations."""
        run = await self.run()
        told = GenerationRequested | MemoriesGenerated
        return [event.data async for event in run.events() if isinstance(event.data, told)]

    async def facts(self) -> list[str]:
        near = await self.memories.nearest(self.bank, self.scope, "x", limit=100)
        return sorted(one.record.memory.fact for one in near)

    async def remembers(self, *texts: str) -> bool:
        """Whether the scope has what was heard in these texts; a log has the answer a moment
        before.
        """
        return await self.facts() == self.heard(*texts)

    def heard(self, *texts: str) -> list[str]:
        return sorted(f'Heard {{"role": "user", "text": "{text}"}}' for text in texts)


@pytest.fixture(scope="module")
async def memories(settings: Settings, runfold: Runfold, projector: Projector) -> AsyncIterator[Memories]:
    async with Reading(settings) as reading:
        memories = Memories(runfold.connection, reading.stored_memories, similarity=reading.similarity)
        await memories.create_bank(BANK)
        yield memories


@pytest.fixture
def world(memories: Memories, runfold: Runfold) -> World:
    return World(memories, runfold, EchoModel(), scope={"user": uuid4().hex})


def said(*texts: str, **named: Any) -> list[StreamContent]:
    return [StreamContent({"role": "user", "parts": [{"text": text}]}, **named) for text in texts]


async def test_without_a_rule_memories_are_there_when_the_call_returns(world):
    async with world.process() as streams:
        await streams.ingest(BANK, world.scope, "s", said("one", "two"))

    assert await world.facts() == world.heard("one", "two")
    [asked, answer] = await world.log()
    assert (asked.reason, answer.error, len(answer.created)) == ("flush", None, 2)


async def test_a_count_of_contents_triggers_and_they_are_read_once(world):
    rule = TriggerRule(event_count=2)
    async with world.process() as streams:
        for text in ("one", "two"):
            await streams.ingest(BANK, world.scope, "s", said(text), rule=rule)
        # A third content that comes before the trigger would be read with the first two.
        await until(lambda: world.remembers("one", "two"), what="the first generation")
        for text in ("three", "four"):
            await streams.ingest(BANK, world.scope, "s", said(text))
        await until(lambda: world.remembers("one", "two", "three", "four"), what="the second generation")

    assert [one.reason for one in await world.log() if isinstance(one, GenerationRequested)] == [
        "event_count",
        "event_count",
    ]
    assert len(world.model.read) == 2


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (TriggerRule(idle_seconds=0.3), "idle_duration"),
        (TriggerRule(interval_seconds=0.3), "fixed_interval"),
    ],
)
async def test_time_triggers(world, rule, reason):
    async with world.process() as streams:
        await streams.ingest(BANK, world.scope, "s", said("one"), rule=rule)
        await until(lambda: world.remembers("one"), what="the generation")

    events = [event async for event in (await world.run()).events()]
    [content] = [event for event in events if event.type == "framework_event"]
    [request] = [event for event in events if isinstance(event.data, GenerationRequested)]
    assert request.data.reason == reason
    assert request.timestamp - content.timestamp >= timedelta(seconds=0.29)  # Kafka's times are in ms


async def test_a_flush_does_not_wait_for_the_rule(world):
    rule = TriggerRule(event_count=100)
    async with world.process() as streams:
        await streams.ingest(BANK, world.scope, "s", said("one"), rule=rule)
        assert await world.facts() == []

        await streams.ingest(BANK, world.scope, "s", [], force_flush=True)

        assert await world.facts() == world.heard("one")
        await streams.ingest(BANK, world.scope, "s", [], force_flush=True)

    assert len(world.model.read) == 1


async def test_an_event_id_counts_once_in_a_stream(world):
    async with world.process() as streams:
        for text in ("one", "one again"):
            await streams.ingest(BANK, world.scope, "s", said(text, event_id="e-1", event_time=EPOCH))
        await streams.ingest(BANK, world.scope, "s", said("two", event_id="e-2"))

    assert await world.facts() == world.heard("one", "two")
    run = await world.run()
    contents = [event async for event in run.events() if event.type == "framework_event"]
    assert len(contents) == 2
    assert contents[0].timestamp - EPOCH == timedelta()


async def test_a_generation_reads_the_overlap_once_more(world):
    rule = TriggerRule(overlap_event_count=1)
    async with world.process() as streams:
        await streams.ingest(BANK, world.scope, "s", said("one", "two"), rule=rule)
        await streams.ingest(BANK, world.scope, "s", said("three"))

    read = [conversation.splitlines() for conversation, _ in world.model.read]
    assert [len(lines) for lines in read] == [2, 2]
    assert "two" in read[1][0]


async def test_of_several_processes_one_asks(world):
    rule, texts = TriggerRule(event_count=10), [f"text {number}" for number in range(10)]
    async with world.process() as one, world.process() as other:
        told = [
            streams.ingest(BANK, world.scope, "s", said(text), rule=rule)
            for text, streams in zip(texts, [one, other] * 5, strict=True)
        ]
        await asyncio.gather(*told)
        await until(lambda: world.remembers(*texts), what="the generation")

    assert len(world.model.read) == 1
    assert [type(entry) for entry in await world.log()] == [GenerationRequested, MemoriesGenerated]


async def test_what_a_process_has_left_another_one_takes_up(world):
    rule = TriggerRule(idle_seconds=0.5)
    await world.ingesting().ingest(BANK, world.scope, "s", said("one"), rule=rule)

    async with world.process():
        await until(lambda: world.remembers("one"), what="the generation by the second process")

    assert len(world.model.read) == 1


async def test_what_is_due_does_not_wait_until_all_logs_are_read(world, monkeypatch):
    streams = world.ingesting()
    await streams.ingest(BANK, world.scope, "s", said("one"), rule=TriggerRule(idle_seconds=4))
    await streams.ingest(BANK, {"user": "x"}, world.scope["user"], said("two"))
    due, catch_up, hanging = (await world.run()).run_id, TriggerLog.catch_up, asyncio.Event()
    may_go_on = asyncio.Event()

    async def read(log: TriggerLog) -> StreamState:
        if log.appender.run_id != due and not log.used_at > 0:
            hanging.set()
            await may_go_on.wait()
        return await catch_up(log)

    monkeypatch.setattr("runfold.generation.trigger_runner._AT_ONCE_MAX", 1_000)
    monkeypatch.setattr(TriggerLog, "catch_up", read)
    async with world.process():
        await until(lambda: world.remembers("one"), what="the generation")
        async with asyncio.timeout(DEADLINE_SECONDS):
            await hanging.wait()
        may_go_on.set()


async def test_a_log_in_which_nothing_is_pending_is_not_kept_once_it_was_read(world, monkeypatch):
    async with world.process() as streams:
        await streams.ingest(BANK, world.scope, "s", said("one"))
    run_id, catch_up = (await world.run()).run_id, TriggerLog.catch_up
    read = []

    async def reading(log: TriggerLog) -> StreamState:
        if log.appender.run_id == run_id:
            read.append(run_id)
        return await catch_up(log)

    async def is_forgotten() -> bool:
        return bool(read) and run_id not in streams._runner._logs

    monkeypatch.setattr(TriggerLog, "catch_up", reading)
    async with world.process() as streams:
        await until(is_forgotten, what="the end of the log's time at hand")

    assert len(read) == 1


async def test_what_was_due_at_once_and_has_no_trigger_is_taken_up(world, monkeypatch):
    async def die(_: TriggerLog) -> None:
        raise asyncio.CancelledError

    async with world.process() as streams:
        monkeypatch.setattr(TriggerLog, "flush", die)
        with pytest.raises(asyncio.CancelledError):
            await streams.ingest(BANK, world.scope, "s", said("one"))
    assert await world.log() == []

    async with world.process(take_up_seconds=0):
        await until(lambda: world.remembers("one"), what="the generation")


async def test_a_trigger_that_is_left_unanswered_is_answered_later(world):
    world.model.failure = UnavailableError("The model", reason="away")
    async with world.process() as streams:
        assert await streams.ingest(BANK, world.scope, "s", said("one")) is not None
        with pytest.raises(UnavailableError):
            await streams.ingest(BANK, world.scope, "s", [], force_flush=True)
    assert await world.facts() == []
    world.model.failure = None

    async with world.process(take_up_seconds=0):
        await until(lambda: world.remembers("one"), what="the generation")

    assert [type(one) for one in await world.log()] == [GenerationRequested, MemoriesGenerated]


async def test_what_the_model_has_no_answer_to_is_told_and_not_asked_again(world):
    world.model.failure = GenerationFailedError("it refuses")
    async with world.process() as streams:
        with pytest.raises(GenerationFailedError):
            await streams.ingest(BANK, world.scope, "s", said("one"))
        world.model.failure = None
        await streams.ingest(BANK, world.scope, "s", said("two"))

    assert await world.facts() == world.heard("two")
    assert [one.error for one in await world.log() if isinstance(one, MemoriesGenerated)] == [
        "no memories were generated: it refuses",
        None,
    ]


async def test_options_count_for_what_is_generated_later(world):
    rule, options = TriggerRule(event_count=2), GenerationOptions(metadata={"trip": "oslo"})
    async with world.process() as streams:
        await streams.ingest(BANK, world.scope, "s", said("one"), rule=rule, options=options)
        await streams.ingest(BANK, world.scope, "s", said("two"))
        await until(lambda: world.remembers("one", "two"), what="the generation")

    near = await world.memories.nearest(BANK, world.scope, "x", limit=9)
    assert [one.record.memory.metadata for one in near] == [{"trip": "oslo"}] * 2


async def test_what_is_not_given_stays_as_somebody_else_has_set_it(world):
    first, second = TriggerRule(event_count=100), TriggerRule(event_count=50)
    options = GenerationOptions(metadata={"trip": "oslo"})
    async with world.process() as one, world.process() as other:
        await one.ingest(BANK, world.scope, "s", said("one"), rule=first)
        await other.ingest(BANK, world.scope, "s", said("two"), rule=second)

        await one.ingest(BANK, world.scope, "s", said("three"), options=options)

    settings = await world.settings()
    assert (settings.rule, settings.options) == (second, options)


async def test_a_rule_and_options_that_are_given_at_the_same_time_both_count(world):
    options = [GenerationOptions(metadata={"number": float(number)}) for number in range(5)]
    rules = [TriggerRule(event_count=100 + number) for number in range(5)]
    async with world.process() as one, world.process() as other:
        await one.ingest(BANK, world.scope, "s", [], rule=TriggerRule(event_count=99))
        for rule, some in zip(rules, options, strict=True):
            await asyncio.gather(
                one.ingest(BANK, world.scope, "s", [], rule=rule),
                other.ingest(BANK, world.scope, "s", [], options=some),
            )

            settings = await world.settings()
            assert (settings.rule, settings.options) == (rule, some)


async def test_a_bank_that_is_created_anew_knows_nothing_of_the_streams_before(world):
    world.bank = (await world.memories.create_bank()).bank_id
    async with world.process() as streams:
        await streams.ingest(world.bank, world.scope, "s", said("one", event_id="e-1"))
        await world.memories.delete_bank(world.bank, force=True)
        await world.memories.create_bank(world.bank)
        assert await world.facts() == []

        await streams.ingest(world.bank, world.scope, "s", said("one", event_id="e-1"))

    assert await world.facts() == world.heard("one")
    await world.memories.delete_bank(world.bank, force=True)


@pytest.mark.parametrize("is_created_anew", [False, True])
async def test_what_is_pending_when_its_bank_goes_is_never_remembered(world, is_created_anew):
    world.bank = (await world.memories.create_bank()).bank_id
    rule = TriggerRule(idle_seconds=0.5)
    await world.ingesting().ingest(world.bank, world.scope, "s", said("one"), rule=rule)
    run = await world.run()
    await world.memories.delete_bank(world.bank)
    if is_created_anew:
        await world.memories.create_bank(world.bank)

    async def is_over() -> bool:
        return [event.type async for event in run.events()][-1] == "run_completed"

    async with world.process():
        await until(is_over, what="the end of the stream")

    assert world.model.read == []
    answers = [event.data async for event in run.events() if isinstance(event.data, MemoriesGenerated)]
    assert ["does not exist" in answer.error for answer in answers] == [True]
    if is_created_anew:
        assert await world.facts() == []
    else:
        with pytest.raises(BankNotFoundError):
            await world.facts()


async def test_what_cannot_be_ingested_is_told(world):
    async with world.process() as streams, world.process(without_model=True) as mute:
        with pytest.raises(BankNotFoundError):
            await streams.ingest("nobody's", world.scope, "s", said("one"))
        with pytest.raises(InvalidEventError, match="scope"):
            await streams.ingest(BANK, {"user": "*"}, "s", said("one"))
        with pytest.raises(InvalidEventError, match="parts"):
            await streams.ingest(BANK, world.scope, "s", [StreamContent({"role": "user"})])
        with pytest.raises(NoModelError):
            await mute.ingest(BANK, world.scope, "s", said("one"))


async def test_a_rebuild_reads_the_same_and_asks_no_model(settings, world):
    async with world.process():
        await check_memories_rebuild(settings)

    assert world.model.read == []
