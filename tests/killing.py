"""Projectors that are killed while others work."""

import asyncio
import random
from dataclasses import dataclass, field
from functools import partial

from tests.processes import until

from runfold.local import Service

KILLS = 2
"""Of each projector."""
LIFE = 80
"""Steps of the writers, at the most, between a projector's start and its death."""


@dataclass
class Progress:
    """How far those are who work while projectors are killed."""

    steps: int = 0
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def reaches(self, steps: int) -> bool:
        return self.steps >= steps


async def killed(worker: Service, chance: random.Random, progress: Progress) -> None:
    """Kills `worker`, from its first moment on or in the middle of its work, and starts it anew."""
    for _ in range(KILLS):
        instant = progress.steps + max(0, chance.randint(-LIFE // 4, LIFE))
        await until(partial(progress.reaches, instant), seconds=30, what="progress of the writers")
        await worker.kill()
        await worker.start()
