"""Projectors that are really killed, at random instants and far behind, lose and double nothing."""

import asyncio
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from tests.processes import Projections, projections, projector, until

from runfold import AssistantMessage, Position, Run, Runfold, UserMessage
from runfold.settings import Settings

KILLS = 20
LAG = 1_000
RUNS = 24
BACKLOG = 12_000


@pytest.fixture
def settings(kafka: str, mongo: str, prefix: str, database: str) -> Settings:
    return Settings(kafka=kafka, mongo=mongo, prefix=prefix, database=database, session_timeout_seconds=6)


async def test_twenty_kills_far_behind_lose_and_double_nothing(settings: Settings, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    workers = [projector(settings, tmp_path / f"{name}.log", worker_id=name) for name in ("a", "b")]
    async with projections(settings) as stored, Runfold.of(settings.log()) as runfold:
        runs = await asyncio.gather(*(runfold.open_run(agent_id="a", session_id="s") for _ in range(RUNS)))
        acknowledged: list[Position] = []
        lags: list[int] = []
        try:
            while sum(one > LAG for one in lags) < KILLS:
                acknowledged += await publish_all(runs, BACKLOG)
                starting = [asyncio.create_task(worker.start()) for worker in workers]
                instants = sorted(chance.uniform(BACKLOG / 3, BACKLOG) for _ in workers)
                assert await lag(stored, runs, acknowledged) > LAG
                for victim in chance.sample(workers, len(workers)):
                    instant = instants.pop()
                    await until(
                        partial(reached, stored, runs, acknowledged, instant),
                        what="progress of the projectors",
                    )
                    lags.append(await lag(stored, runs, acknowledged))
                    await victim.kill()
                await asyncio.gather(*starting, return_exceptions=True)
            await asyncio.gather(*(worker.start() for worker in workers))
            await asyncio.gather(*(run.complete() for run in runs))
            for run in runs:
                await until(partial(ended, stored, run), seconds=60, what="the fold of the log's end")
            differences = await stored.differences()
            counted = [await event_ids(stored, run) for run in runs]
        finally:
            await asyncio.gather(*(worker.stop() for worker in workers))

    # A kill comes as soon as it can after its instant; one that came too late for the lag is extra.
    print(f"lags at the kills: {lags}")
    assert differences == []
    assert all(count == 1 for ids in counted for count in ids.values())
    per_run = Counter(position.run_id for position in acknowledged)
    # Beside what was acknowledged, each run has its opening and its completion.
    assert {run.run_id: len(ids) for run, ids in zip(runs, counted, strict=True)} == {
        run.run_id: per_run[run.run_id] + 2 for run in runs
    }


async def publish_all(runs: list[Run], count: int) -> list[Position]:
    """`count` events over all runs, acknowledged."""
    sent = [
        await run.send(UserMessage(message="?") if index % 7 == 0 else AssistantMessage(message="word " * 60))
        for index in range(count // len(runs))
        for run in runs
    ]
    return list(await asyncio.gather(*sent))


async def lag(stored: Projections, runs: list[Run], acknowledged: list[Position]) -> int:
    """Acknowledged records that MongoDB does not have yet."""
    ends = await asyncio.gather(*(stored.end(run.life.log_id) for run in runs))
    # The opening of each run is in its pages and not among the acknowledged.
    return len(acknowledged) + len(runs) - sum(ends)


async def reached(stored: Projections, runs: list[Run], acknowledged: list[Position], wanted: float) -> bool:
    return await lag(stored, runs, acknowledged) <= wanted


async def ended(stored: Projections, run: Run) -> bool:
    state = await stored.runs.get(run.run_id)
    return state is not None and state.record.status == "completed"


async def event_ids(stored: Projections, run: Run) -> Counter[str]:
    return Counter(
        [event_id async for page in stored.pages.read(run.life.log_id) for event_id in page.event_ids()]
    )
