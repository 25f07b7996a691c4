"""When a run of an agent completes that a bank names, memories are generated of it: once, whoever
is there to see it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from tests.consumer_groups import has_members
from tests.memory_verbs import check_memories_rebuild
from tests.processes import until
from tests.remembering import ScriptedModel
from tests.session_verbs import Projector

from runfold import AssistantMessage, Runfold, UserMessage
from runfold.client.memories import Memories
from runfold.client.run import Run
from runfold.client.sessions import Sessions
from runfold.generation import completed_runs
from runfold.generation.answering import log_run_id
from runfold.generation.model import Found
from runfold.generation.options import Contents
from runfold.generation.service import Generation
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold_schemas.catalog import Life
from runfold_schemas.errors import UnavailableError
from runfold_schemas.memories import BankConfig, MemoriesGenerated

TEA = Found(fact="Likes tea", topics=["USER_PREFERENCES"])


@pytest.fixture(scope="module")
async def reading(settings: Settings, projector: Projector) -> AsyncIterator[Reading]:
    async with Reading(settings) as reading:
        yield reading


@pytest.fixture(scope="module")
def memories(runfold: Runfold, reading: Reading) -> Memories:
    return Memories(runfold.connection, reading.stored_memories, similarity=reading.similarity)


@pytest.fixture(scope="module")
def sessions(runfold: Runfold, reading: Reading) -> Sessions:
    return Sessions(runfold.connection, reading.stored_sessions)


class World:
    """One agent and the bank that names it."""

    def __init__(self, settings: Settings, runfold: Runfold, memories: Memories, sessions: Sessions) -> None:
        self.settings = settings
        self.runfold = runfold
        self.memories = memories
        self.sessions = sessions
        self.model = ScriptedModel(found=[TEA])
        self.agent = f"agent-{uuid4().hex[:8]}"
        self.bank = f"bank-{uuid4().hex[:8]}"

    @asynccontextmanager
    async def process(self) -> AsyncIterator[Generation]:
        """An API's, in this process."""
        generation = Generation(
            self.settings,
            runfold=lambda: self.runfold,
            memories=lambda: self.memories,
            sessions=lambda: self.sessions,
            model=self.model,
        )
        async with generation:
            yield generation

    async def run(self, **options: Any) -> Run:
        run = await self.runfold.open_run(agent_id=self.agent, **options)
        await run.publish_batch([UserMessage(message="I like tea."), AssistantMessage(message="Noted.")])
        return run

    async def log_id(self, run: Run) -> str:
        """The run whose log the run's generation is."""
        bank = await self.memories.bank(self.bank)
        return log_run_id("run_completed", bank.created_by, run.life.log_id)

    async def answers(self, run: Run) -> list[MemoriesGenerated]:
        """Of the generation that the run's completion has asked for."""
        run_id = await self.log_id(run)
        if await self.runfold.connection.catalog.lookup(run_id) is None:
            return []
        log = await self.runfold.get_run(run_id)
        return [event.data async for event in log.events() if isinstance(event.data, MemoriesGenerated)]

    async def remembered(self, run: Run) -> dict[str, str]:
        """The scope of what was generated of the run."""

        async def is_answered() -> bool:
            return bool(await self.answers(run))

        await until(is_answered, what="the generation of a completed run", seconds=60)
        [answer] = await self.answers(run)
        return next(answer.changes()).memory.scope


@pytest.fixture
async def world(settings: Settings, runfold: Runfold, memories: Memories, sessions: Sessions) -> World:
    world = World(settings, runfold, memories, sessions)
    await memories.create_bank(world.bank, BankConfig(agents=(world.agent,)))
    return world


async def test_a_completed_run_is_remembered_in_the_agents_own_scope(world):
    async with world.process():
        run = await world.run()
        await run.complete()

        assert await world.remembered(run) == {"agent_id": world.agent}

    [(read, _)] = world.model.read
    assert read == '{"role": "user", "text": "I like tea."}\n{"role": "assistant", "text": "Noted."}'


async def test_a_run_of_a_session_is_remembered_of_its_user(world):
    session = await world.sessions.create(app="shop", user="ann")
    async with world.process():
        run = await world.run(session_id=session.session_id)
        await run.complete()

        assert await world.remembered(run) == {"app_name": world.agent, "user_id": "ann"}


async def test_only_runs_that_completed_of_agents_that_are_named_are_remembered(world):
    async with world.process():
        failed = await world.run()
        await failed.fail("a mistake")
        others = await world.runfold.open_run(agent_id="nobody's")
        await others.complete()
        completed = await world.run()
        await completed.complete()
        await world.remembered(completed)

    assert await world.answers(failed) == []
    assert await world.answers(others) == []
    assert len(world.model.read) == 1


async def test_a_run_that_completes_while_nobody_is_there_is_remembered_later(world):
    async with world.process():
        first = await world.run()
        await first.complete()
        await world.remembered(first)

    run = await world.run()
    await run.complete()

    async with world.process():
        await world.remembered(run)
    assert len(world.model.read) == 2


async def test_of_two_processes_one_asks_the_model(world):
    async with world.process(), world.process():
        # Until both have their part of the catalog, a run may be given to one after the other.
        group = f"{world.settings.prefix}.generation"
        await until(partial(has_members, world.settings, group, 2), what="both members of the group")
        run = await world.run()
        await run.complete()
        await world.remembered(run)

    assert len(world.model.read) == 1


async def test_a_generation_by_request_is_no_run_that_is_remembered(world):
    await world.memories.update_bank(world.bank, {"agents": (world.agent, world.bank)})
    async with world.process() as generation:
        said = Contents([{"role": "user", "parts": [{"text": "I like tea."}]}])
        await generation.generator().generate(world.bank, {"user": "ann"}, said)
        run = await world.run()
        await run.complete()
        await world.remembered(run)

    assert len(world.model.read) == 2


async def test_a_model_that_is_away_is_asked_later(world, monkeypatch):
    monkeypatch.setattr("runfold.generation.trigger_runner._RETRY_SECONDS", 0.1)
    world.model.failure = UnavailableError("The model", reason="away")
    async with world.process():
        run = await world.run()
        await run.complete()

        async def is_asked_again() -> bool:
            return len(world.model.read) > 1

        await until(is_asked_again, what="the second attempt")
        assert await world.answers(run) == []

        world.model.failure = None
        await world.remembered(run)


@pytest.mark.parametrize("mistake", [None, RuntimeError("a mistake of ours")])
async def test_a_run_that_cannot_be_remembered_holds_up_no_other_one(world, monkeypatch, mistake):
    wrong, right = await world.run(), await world.run()
    if mistake is None:
        await world.runfold.open_run(agent_id="somebody else", run_id=await world.log_id(wrong))
    else:
        own_part = completed_runs._own_part

        async def fail(runfold: Runfold, life: Life) -> range | None:
            if life.run_id == wrong.run_id:
                raise mistake
            return await own_part(runfold, life)

        monkeypatch.setattr(completed_runs, "_own_part", fail)
    async with world.process():
        await wrong.complete()
        await right.complete()

        await world.remembered(right)

    assert len(world.model.read) == 1


async def test_a_mistake_does_not_end_the_watch(world, monkeypatch):
    groups, mistakes = completed_runs.catalog_group, [RuntimeError("a mistake of ours")]

    def group(*arguments: Any, **options: Any) -> Any:
        if mistakes:
            raise mistakes.pop()
        return groups(*arguments, **options)

    monkeypatch.setattr(completed_runs, "_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(completed_runs, "catalog_group", group)
    run = await world.run()
    await run.complete()

    async with world.process():
        await world.remembered(run)

    assert mistakes == []


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings, projector):
    await check_memories_rebuild(settings)
