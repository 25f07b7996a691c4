"""Projectors that are killed while others work."""

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.processes import until

from runfold.local import Service

ROUNDS = int(os.environ.get("RUNFOLD_TEST_ROUNDS", "1"))
"""How many times as many kills a test makes as in `make test`; `make soak` asks for more."""

KILLS = 2 * ROUNDS
"""Of each projector."""
LIFE = 80
"""Steps of the writers, at the most, between a projector's start and its death."""

PROGRESS_SECONDS = 90
"""How long the steps to the next kill may take. Some of them wait for a projector that starts."""

FOLDED_SECONDS = 80
"""How long the fold of a log may take after the last kill. The steps may follow each other: a new
leader is elected (3 s), the worker begins anew (1 s), the group gives up its member of before (6 s)
and waits for others (6 s), and a sweep finds records whose bell got lost (10 s). A busy machine
takes three times as long.
"""


@dataclass
class Progress:
    """How many steps the writers have made, and whether they may stop."""

    steps: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def reaches(self, steps: int) -> bool:
        return self.steps >= steps


async def kill_all(workers: Sequence[Service], chance: random.Random, progress: Progress) -> None:
    """Kills each of `workers` again and again, at instants of its own, and starts it anew."""
    await asyncio.gather(*(_kill(worker, random.Random(chance.random()), progress) for worker in workers))


async def _kill(worker: Service, chance: random.Random, progress: Progress) -> None:
    """Each kill comes at the start of the projector or in the middle of its work."""
    for _ in range(KILLS):
        instant = progress.steps + max(0, chance.randint(-LIFE // 4, LIFE))
        await until(
            partial(progress.reaches, instant), seconds=PROGRESS_SECONDS, what="progress of the writers"
        )
        await worker.kill()
        await worker.start()
