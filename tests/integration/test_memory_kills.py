"""Memories while projectors are killed: every change that was acknowledged is a revision, once, and
a rebuild reads the same.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.explaining import explained
from tests.killing import FOLDED_SECONDS, Progress, kill_all
from tests.memory_verbs import check_memories_rebuild, opened_memories
from tests.processes import projector, until
from tests.servers import OwnSettings
from tests.session_stores import at_work, stored

from runfold import Runfold, RunfoldError
from runfold.client.memories import Memories
from runfold.local import Service
from runfold.settings import Settings
from runfold.verify.memories import verify_memories
from runfold_projections.memory import Revision
from runfold_schemas.errors import (
    MemoryChangedError,
    MemoryConflictError,
    MemoryNotFoundError,
    RevisionNotFoundError,
    UnavailableError,
    UndecidedError,
)
from runfold_schemas.memories import Memory, MemoryUpdated

BANK = "b"
SCOPE = {"user": "ann"}
SHARED = tuple(f"shared-{number}" for number in range(4))
VERB_WRITERS = 4
RAW_WRITERS = 2
LOST = (MemoryConflictError, MemoryNotFoundError, MemoryChangedError, RevisionNotFoundError)
"""What a writer may be told who changes what others change."""
AWAY = (UnavailableError, UndecidedError)
"""What a writer may be told while both projectors start, which takes a busy machine minutes."""


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(session_timeout_seconds=6, sweep_seconds=1, wait_timeout_seconds=FOLDED_SECONDS)


async def test_kills_lose_and_double_no_change_of_a_memory(
    settings: Settings, tmp_path: Path, chance: random.Random
) -> None:
    workers = [projector(settings, tmp_path / f"{name}.log", worker_id=name) for name in ("a", "b")]
    async with (
        at_work(workers),
        explained(settings, *workers),
        opened_memories(settings) as memories,
        Runfold.of(settings.log()) as producer,
    ):
        await memories.create_bank(BANK)
        for name in SHARED:
            await memories.create(BANK, Memory(fact="first", scope=SCOPE), memory_id=name)
        said, raw = await changed_through_kills(memories, producer, workers, chance)

        histories = {
            name: await history(memories, name)
            for name in [*SHARED, *(f"raw-{n}" for n in range(RAW_WRITERS))]
        }
        async with stored(settings) as held:
            _, differences = await verify_memories(settings.log(), held.stores, wait_seconds=FOLDED_SECONDS)
            quarantined = await held.stores.quarantine.all()

    assert differences == []
    assert quarantined == []
    check_each_is_there_once(said, raw, histories)
    await check_memories_rebuild(settings)


async def changed_through_kills(
    memories: Memories, producer: Runfold, workers: Sequence[Service], chance: random.Random
) -> tuple[list[tuple[str, str]], dict[int, int]]:
    """What the writers were acknowledged, by memory and fact, and how often each raw one has
    published.
    """
    progress, raw = Progress(), dict[int, int]()
    writing = [
        *(
            write(number, memories, random.Random(chance.random()), progress)
            for number in range(VERB_WRITERS)
        ),
        *(publish(number, producer, progress, raw) for number in range(RAW_WRITERS)),
    ]
    tasks = [asyncio.create_task(one) for one in writing]
    try:
        await kill_all(workers, chance, progress)
    finally:
        progress.enough.set()
        written = await asyncio.gather(*tasks)
    for number, count in raw.items():
        await until_there(memories, f"raw-{number}", f"{count - 1}")
    return [one for found in written for one in found], raw


async def write(
    number: int, memories: Memories, chance: random.Random, progress: Progress
) -> list[tuple[str, str]]:
    """Changes memories that all writers change; a deleted one is rolled back by who finds it
    gone.
    """
    said: list[tuple[str, str]] = []
    while not progress.enough.is_set():
        name, fact = chance.choice(SHARED), f"{number}-{progress.steps}-{len(said)}"
        try:
            if chance.random() < 0.1:
                await memories.delete(BANK, name)
            else:
                await memories.update(BANK, name, {"fact": fact})
                said.append((name, fact))
        except MemoryNotFoundError:
            await roll_back(memories, name)
        except (*LOST, *AWAY):
            pass
        progress.steps += 1
    return said


async def roll_back(memories: Memories, name: str) -> None:
    with suppress(*LOST, *AWAY):  # somebody else may have done it
        found, _ = await memories.revisions(BANK, name, limit=5)
        target = next((one for one in found if one.memory is not None), None)
        if target is not None:
            await memories.rollback(BANK, name, target.revision_id)


async def publish(
    number: int, producer: Runfold, progress: Progress, raw: dict[int, int]
) -> list[tuple[str, str]]:
    """Changes a memory of its own on a run's log, of which the projector alone tells those who
    decide it.
    """
    run = await producer.open_run(agent_id="a", run_id=f"raw-{number}")
    quiet = producer.connection.appender_of(run.life)
    await producer.memories.create(BANK, Memory(fact="first", scope=SCOPE), memory_id=f"raw-{number}")
    while not progress.enough.is_set():
        raw[number] = raw.get(number, 0) + 1
        memory = Memory(fact=f"{raw[number] - 1}", scope=SCOPE)
        await quiet.append(MemoryUpdated(bank_id=BANK, memory_id=f"raw-{number}", memory=memory))
        progress.steps += 1
        await asyncio.sleep(0.02)
    return []


async def until_there(memories: Memories, name: str, fact: str) -> None:
    async def is_there() -> bool:
        try:
            return (await memories.get(BANK, name)).memory.fact == fact
        except RunfoldError as error:
            if not error.retriable:
                raise
            return False

    await until(is_there, seconds=FOLDED_SECONDS, what=f"the fact {fact!r} of {name}")


async def history(memories: Memories, name: str) -> list[Revision]:
    """From the oldest on."""
    found: list[Revision] = []
    cursor = None
    while True:
        page, cursor = await memories.revisions(BANK, name, limit=500, cursor=cursor)
        found += page
        if cursor is None:
            return found[::-1]


def check_each_is_there_once(
    said: Sequence[tuple[str, str]], raw: dict[int, int], histories: dict[str, list[Revision]]
) -> None:
    facts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, revisions in histories.items():
        facts[name].update(one.fact for one in revisions if one.action == "updated")
        assert len({one.revision_id for one in revisions}) == len(revisions)
    for name, fact in said:
        assert facts[name][fact] == 1, f"{fact} of {name}"
    for number, count in raw.items():
        published = [one.fact for one in histories[f"raw-{number}"] if one.action == "updated"]
        assert published == [str(turn) for turn in range(count)]
