"""Projectors that are really killed, at random instants and far behind, lose and double nothing."""

import asyncio
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from tests.explaining import explained
from tests.killing import FOLDED_SECONDS, PROGRESS_SECONDS, ROUNDS
from tests.processes import Projections, projections, projector, until
from tests.servers import OwnSettings
from tests.session_stores import stopping

from runfold import AssistantMessage, Run, Runfold, UserMessage
from runfold.local import Service
from runfold.settings import Settings

KILLS = 6 if ROUNDS == 1 else 20 * ROUNDS
LAG = 1_000
"""Records that are still to be folded, at the least, where a kill counts."""
RUNS = 24
BATCH = 100
BACKLOG = 20_000
"""What is kept ahead of the workers: far more than both of them fold in a life and while a publish
is on its way.
"""

LIFE = 6_000
"""Records, at the most, that are folded between a worker's start and its death."""


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(session_timeout_seconds=6)


class Log:
    """What was published to `runs`, and how much of it MongoDB does not have yet."""

    def __init__(self, runs: list[Run], stored: Projections) -> None:
        self.runs = runs
        self.acknowledged: dict[str, list[str]] = {run.run_id: [] for run in runs}
        self._stored = stored
        self._ends = {run.run_id: 0 for run in runs}
        self._growing = asyncio.Lock()

    async def lag(self) -> int:
        await asyncio.gather(*(self._look(run) for run in self.runs))
        # The opening of each run is in its pages and not among the acknowledged.
        return sum(map(len, self.acknowledged.values())) + len(self.runs) - self.folded

    @property
    def folded(self) -> int:
        """Records that were in MongoDB at the last look."""
        return sum(self._ends.values())

    async def reaches(self, folded: float) -> bool:
        await self.lag()
        return self.folded >= folded

    async def keep_ahead(self) -> None:
        async with self._growing:
            while await self.lag() < BACKLOG:
                await asyncio.gather(*(self._publish(run) for run in self.runs))

    async def _look(self, run: Run) -> None:
        self._ends[run.run_id] = await self._stored.pages.end(
            run.life.log_id, first_offset=self._ends[run.run_id]
        )

    async def _publish(self, run: Run) -> None:
        texts = [UserMessage(message="?"), *[AssistantMessage(message="word " * 60)] * (BATCH - 1)]
        events = [run.event(text) for text in texts]
        await run.publish_batch(events)
        self.acknowledged[run.run_id] += [str(event.event_id) for event in events]


async def test_kills_far_behind_lose_and_double_nothing_and_a_survivor_takes_over(
    settings: Settings, tmp_path: Path, chance: random.Random
) -> None:
    workers = [projector(settings, tmp_path / f"{name}.log", worker_id=name) for name in ("a", "b")]
    survivor = chance.choice(workers)
    async with projections(settings) as stored, Runfold.of(settings.log()) as runfold:
        runs = await asyncio.gather(*(runfold.open_run(agent_id="a", session_id="s") for _ in range(RUNS)))
        log = Log(runs, stored)
        async with stopping(workers), explained(settings, *workers):
            lags = await asyncio.gather(
                *(killed(worker, KILLS // 2, random.Random(chance.random()), log) for worker in workers)
            )
            print(f"lags after the kills: {lags}; folded between them: {log.folded}")
            await survivor.start()
            await asyncio.gather(*(run.complete() for run in runs))
            for run in runs:
                completed = partial(ended, stored, run)
                await until(completed, seconds=FOLDED_SECONDS, what="the fold of the log's end")
            differences = await stored.differences()
            quarantined = await stored.stores.quarantine.all()
            counted = {run.run_id: await counts(stored, run) for run in runs}

    assert differences == []
    assert quarantined == []
    for run_id, published in log.acknowledged.items():
        assert all(count == 1 for count in counted[run_id].values())
        assert counted[run_id].keys() >= set(published)
        # Beside what was acknowledged, each run has its opening and its completion.
        assert len(counted[run_id]) == len(published) + 2


async def killed(worker: Service, times: int, chance: random.Random, log: Log) -> list[int]:
    """Starts and kills `worker`, from its first moment on or in the middle of its work, so often
    far behind; gives what was still to be folded after each of these kills.
    """
    lags: list[int] = []
    for _ in range(2 * times):
        await log.keep_ahead()
        await worker.start()
        instant = log.folded + max(0, chance.uniform(-LIFE / 4, LIFE))
        reached = partial(log.reaches, instant)
        await until(reached, seconds=PROGRESS_SECONDS, what="progress of the projectors")
        await worker.kill()
        # Where the machine stops for a second, the other worker may fold all there is before it is
        # killed.
        if (lag := await log.lag()) > LAG:
            lags.append(lag)
        if len(lags) == times:
            return lags
    pytest.fail(f"the workers are too fast for a backlog of {BACKLOG}: {lags}")


async def ended(stored: Projections, run: Run) -> bool:
    state = await stored.runs.get(run.run_id)
    return state is not None and state.record.status == "completed"


async def counts(stored: Projections, run: Run) -> Counter[str]:
    """How often each event counts."""
    return Counter(
        [event_id async for page in stored.pages.read(run.life.log_id) for event_id in page.event_ids()]
    )
