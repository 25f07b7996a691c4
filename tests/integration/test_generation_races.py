"""Two who answer one trigger at the same time: memories are as the one answer has them that stands
in the log.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from tests.memory_verbs import check_memories_rebuild
from tests.processes import until
from tests.remembering import ScriptedModel, fact
from tests.session_verbs import Projector

from runfold import Run, Runfold
from runfold.client.memories import Memories
from runfold.generation.answering import Trigger, log_run_id
from runfold.generation.generator import Generator, publish_trigger
from runfold.generation.model import Action, Found
from runfold.generation.options import Contents, DirectFacts, GenerationOptions
from runfold.generation.trigger_runner import TriggerRunner
from runfold.log.shared import partitions_of, read_counting
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold_schemas.memories import MemoryChange, MemoryCreated

BANK = "bank"

HELLO = Contents([{"role": "user", "parts": [{"text": "I prefer window seats."}]}])

SEATS = Found(fact="Prefers window seats", topics=["USER_PREFERENCES"])


class SlowModel(ScriptedModel):
    """Answers when it is let go."""

    def __init__(self, said: str) -> None:
        super().__init__(found=[Found(fact=said, topics=["USER_PREFERENCES"])])
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def extract(self, conversation: str, *, instructions: str) -> Any:
        self.is_asked.set()
        await self.may_answer.wait()
        return await super().extract(conversation, instructions=instructions)


@dataclass
class World:
    settings: Settings
    runfold: Runfold
    memories: Memories
    scope: dict[str, str] = field(default_factory=lambda: {"user": uuid4().hex})

    def generator(self, model: ScriptedModel | None) -> Generator:
        return Generator(self.memories, self.runfold, model)

    async def facts(self) -> list[str]:
        near = await self.memories.nearest(BANK, self.scope, "x", limit=100)
        return sorted(one.record.memory.fact for one in near)

    async def told(self) -> list[MemoryChange]:
        """What `{prefix}.memories` has of the scope, without what comes again."""
        log = self.runfold.connection.settings
        found = [
            one.event.data
            for at in partitions_of(log.topics, log.topics.memories)
            async for one in read_counting(log, at, ())
        ]
        created = {
            one.memory_id
            for one in found
            if isinstance(one, MemoryCreated) and one.memory.scope == self.scope
        }
        return [one for one in found if one.memory_id in created]

    def forwarding(self, run: Run) -> Any:
        """The log of a generation, appended to by a client that forwards what it publishes. Nothing
        is sealed here, whoever the subject is.
        """

        async def publish(data: Any, *, subject: str | None = None, **envelope: Any) -> Any:
            return await run.publish(data, **envelope)

        async def publish_batch(batch: Any, *, subject: str | None = None) -> Any:
            return await run.publish_batch(batch)

        return SimpleNamespace(
            append=publish,
            append_batch=publish_batch,
            event=run.event,
            run_id=run.run_id,
            life=run.life,
            log=self.runfold.connection.log_of(run.life),
        )


@pytest.fixture(scope="module")
async def memories(settings: Settings, runfold: Runfold, projector: Projector) -> AsyncIterator[Memories]:
    async with Reading(settings) as reading:
        memories = Memories(runfold.connection, reading.stored_memories, similarity=reading.similarity)
        await memories.create_bank(BANK)
        yield memories


@pytest.fixture
def world(settings: Settings, runfold: Runfold, memories: Memories) -> World:
    return World(settings, runfold, memories)


async def test_a_request_that_was_overtaken_adds_nothing_to_what_stands(world):
    slow, quick = SlowModel("Prefers aisle seats"), SlowModel("Prefers window seats")
    quick.may_answer.set()
    asking = asyncio.create_task(world.generator(slow).generate(BANK, world.scope, HELLO))
    await slow.is_asked.wait()

    async def is_answered() -> bool:
        return await world.facts() == ["Prefers window seats"]

    async with TriggerRunner(lambda: world.generator(quick), sweep_seconds=0.1, take_up_seconds=0):
        await until(is_answered, what="the answer of who took it up")
    slow.may_answer.set()
    [made] = await asking

    assert await world.facts() == ["Prefers window seats"]
    assert [one.memory_id for one in await world.told()] == [made.memory_id]


@pytest.mark.parametrize("last", [0, 1])
async def test_answers_that_are_published_to_an_open_log_change_memories_once(world, last):
    run_id = log_run_id(world.scope["user"])
    run = await world.runfold.open_run(agent_id=BANK, run_id=run_id)
    bank = await world.memories.bank(BANK)
    trigger = await publish_trigger(world.forwarding(run), bank, world.scope, HELLO, GenerationOptions())
    models = [SlowModel("Prefers aisle seats"), SlowModel("Prefers window seats")]
    others = Trigger(world.forwarding(await world.runfold.get_run(run_id)), trigger.event, trigger.offset)
    answering = [
        asyncio.create_task(world.generator(model).answer(one))
        for model, one in zip(models, [trigger, others], strict=True)
    ]
    for model in models:
        await model.is_asked.wait()

    models[1 - last].may_answer.set()
    [stands] = await answering[1 - last]
    models[last].may_answer.set()

    assert await answering[last] == [stands]
    assert await world.facts() == [models[1 - last].found[0].fact]
    assert [one.memory_id for one in await world.told()] == [stands.memory_id]


async def test_who_comes_second_goes_on_with_what_was_tried_again(world):
    [tea] = await world.generator(None).generate(BANK, world.scope, DirectFacts([fact("Likes tea")]))
    run_id = log_run_id(world.scope["user"])
    run = await world.runfold.open_run(agent_id=BANK, run_id=run_id)
    bank = await world.memories.bank(BANK)
    trigger = await publish_trigger(world.forwarding(run), bank, world.scope, HELLO, GenerationOptions())
    slow, quick = SlowModel("Prefers aisle seats"), ScriptedModel(found=[SEATS])
    others = Trigger(world.runfold.connection.appender_of(run.life), trigger.event, trigger.offset)
    waiting = asyncio.create_task(world.generator(slow).answer(others))
    await slow.is_asked.wait()

    async def consolidate(facts: Any, known: Any) -> Any:
        if known == ["Likes tea"]:
            await world.memories.update(BANK, tea.memory_id, {"fact": "Likes green tea"})
        return [Action(kind="update", facts=[0], memory=0, text=f"{known[0]}; prefers window seats")]

    quick.consolidate = consolidate
    stands = await world.generator(quick).answer(trigger)
    slow.may_answer.set()

    assert await waiting == stands
    assert await world.facts() == ["Likes green tea; prefers window seats"]


async def test_what_is_late_is_not_forwarded_by_who_can_know_it(world):
    run: Run = await world.runfold.open_run(agent_id="agent")
    other = await world.runfold.get_run(run.run_id)
    await other.complete()
    [made] = await world.generator(None).generate(BANK, world.scope, DirectFacts([fact("Likes tea")]))
    [created] = await world.told()
    again = created.model_copy(update={"memory_id": uuid4().hex})

    async def is_known() -> bool:
        return run.ended

    await until(is_known, what="the end of the run in the catalog")
    await run.publish(again, late=True)

    assert [one.memory_id for one in await world.told()] == [made.memory_id]


async def test_a_rebuild_reads_the_same(settings, projector):
    await check_memories_rebuild(settings)
