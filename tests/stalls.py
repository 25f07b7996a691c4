"""Scripted stalls: how long a projector takes to name each of them, and to end it."""

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient
from tests.attacks import Stack
from tests.processes import Projections, until

from runfold import Run
from runfold.ids import new_log_id
from runfold.store.quarantine import run_id_of
from runfold_schemas.catalog import Life

NAMED_SECONDS, ENDED_SECONDS = 10.0, 30.0
"""How long a stall may go unnamed, and how long it may last."""

BUSY = 4.0
"""A machine that is busy with other tests may take so many times as long."""


@dataclass(frozen=True)
class Measured:
    """The seconds from the beginning of a stall until it is named, and until it has ended."""

    name: str
    named: float | None
    """None for a stall that ended before it had to be named."""
    ended: float
    how: str

    def __str__(self) -> str:
        named = "-" if self.named is None else f"{self.named:.1f}"
        return f"| {self.name} | {named} | {self.ended:.1f} | {self.how} |"


def print_table(rows: Iterable[Measured]) -> None:
    """For `benchmarks/hostile`."""
    print("\n| stall | named after s | ended after s | how |\n| --- | --- | --- | --- |")
    print(*rows, sep="\n")


@dataclass
class Scene:
    """A stack, and what can be read of it."""

    stack: Stack
    stored: Projections
    admin: AIOKafkaAdminClient

    def life(self, run_id: str) -> Life:
        return Life(run_id=run_id, log_id=new_log_id(), agent_id="a")

    def topic(self, run: Life | Run) -> str:
        life = run.life if isinstance(run, Run) else run
        return self.stack.runfold.connection.topics.run(life.run_id, life.log_id)

    async def says(self, *words: str) -> bool:
        """Whether a line of the projector's log has all of these words."""
        lines = self.stack.projector.logged().splitlines()
        return any(all(word in line for word in words) for line in lines)

    async def reason(self, run_id: str) -> str | None:
        """The reason of a run in quarantine."""
        entry = await self.stored.stores.quarantine.get(run_id_of(run_id))
        return entry.reason if entry else None

    async def is_parked(self, run: Run) -> bool:
        state = await self.stored.runs.get(run.run_id)
        return state is not None and not state.active

    async def is_gone(self, topic: str) -> bool:
        return topic not in await self.admin.list_topics()

    async def delete(self, topic: str) -> None:
        """Deletes a topic behind Runfold's back."""
        await self.admin.delete_topics([topic])
        await until(lambda: self.is_gone(topic), what="the deletion of a topic")

    async def create(self, topic: str) -> None:
        await self.stack.runfold.connection.admin.create_run_topic(topic)


async def measure(
    name: str,
    *,
    ended: Callable[[], Awaitable[bool]],
    named: Callable[[], Awaitable[bool]] | None = None,
    how: str,
    began: float | None = None,
) -> Measured:
    """Waits until a stall that begins now, or began before, is named and ends."""
    start = time.monotonic() if began is None else began
    named_after = None
    if named is not None:
        await until(named, seconds=BUSY * NAMED_SECONDS, what=f"{name}: its name in the log")
        named_after = time.monotonic() - start
    await until(ended, seconds=BUSY * ENDED_SECONDS, what=f"{name}: its end")
    return Measured(name, named_after, time.monotonic() - start, how)
