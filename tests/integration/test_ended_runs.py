"""An ended run leaves the tail at once. A late event is stored all the same, at once if a bell
announces it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import pytest
from tests.processes import DEADLINE_SECONDS, Projections, append_raw, projections, soonest, until, working
from tests.servers import OwnSettings

from runfold import AssistantMessage, Run, Runfold
from runfold.projector import ended
from runfold.projector.active import Folded
from runfold.projector.worker import Worker
from runfold.projector.writer import Writer
from runfold_schemas.topics import Partition


class Stack(NamedTuple):
    runfold: Runfold
    stored: Projections
    worker: Worker

    async def ended(self) -> Run:
        """A run that has ended, and that its worker tails no more."""
        run = await self.runfold.open_run(agent_id="a")
        await self.follows(run)
        await run.complete()
        await self.follows(run, is_followed=False)
        assert self.worker.tails(run.run_id)  # it is not parked yet
        return run

    async def follows(self, run: Run, *, is_followed: bool = True) -> None:
        at = Partition(self.runfold.connection.topics.run(run.run_id, run.life.log_id), 0)

        async def does() -> bool:
            return (at in self.worker._tail) is is_followed

        await until(does, what="a run that comes or goes")

    async def holds(self, run: Run, offset: int) -> float:
        async def does() -> bool:
            return await self.stored.end(run.life.log_id) > offset

        return await until(does, what=f"offset {offset} in the pages")


@pytest.fixture
async def stack(own_settings: OwnSettings) -> AsyncIterator[Stack]:
    settings = own_settings(park_seconds=30, publisher_park_seconds=30, sweep_seconds=60)
    async with (
        projections(settings) as stored,
        Runfold.of(settings.log()) as runfold,
        working(settings, stored.edition) as worker,
    ):
        yield Stack(runfold, stored, worker)


@pytest.fixture
def rare_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late events are found because a bell announces them, and not by a look."""
    monkeypatch.setattr(ended, "_LOOK_SECONDS", 60)


@pytest.mark.usefixtures("rare_looks")
async def test_late_events_of_an_ended_run_are_stored_at_once(stack: Stack):
    async def is_stored() -> float:
        run = await stack.ended()
        offset = (await run.publish(AssistantMessage(message="one more thing"), late=True)).offset
        first = await stack.holds(run, offset)
        # Nobody rings again so soon, so the run is still followed.
        offset = (await run.publish(AssistantMessage(message="and another"), late=True)).offset
        return max(first, await stack.holds(run, offset))

    assert await soonest(is_stored, seconds=3) < 3


async def test_a_late_event_that_nobody_announces_is_stored_soon(stack: Stack):
    run = await stack.ended()
    await append_raw(stack.runfold, run)

    await stack.holds(run, 2)


async def test_an_ended_run_that_is_loaded_again_while_its_end_is_written_is_parked(
    own_settings: OwnSettings, monkeypatch: pytest.MonkeyPatch
):
    settings = own_settings(publisher_park_seconds=3)
    is_written, goes_on = asyncio.Event(), asyncio.Event()
    write = Writer.write

    async def held(writer: Writer, batch: Sequence[Folded]) -> Any:
        beaten = await write(writer, batch)
        if any(folded.ended for folded in batch):
            is_written.set()
            await goes_on.wait()
        return beaten

    monkeypatch.setattr(Writer, "write", held)
    async with (
        projections(settings) as stored,
        Runfold.of(settings.log()) as runfold,
        working(settings, stored.edition) as worker,
    ):
        run = await runfold.open_run(agent_id="a")
        await run.complete()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await is_written.wait()
        for partitions in (set(), worker.partitions):
            await worker.own(partitions)
            await until(lambda: _is(worker, run, is_loaded=bool(worker.partitions)), what="the change")
        goes_on.set()
        await until(lambda: _is(worker, run, is_loaded=False), what="the parking")


async def _is(worker: Worker, run: Run, *, is_loaded: bool) -> bool:
    return worker.tails(run.run_id) is is_loaded and not worker.backlog_runs


@pytest.mark.parametrize(("events", "pages"), [(2, 4), (10, 1)])
async def test_only_many_small_pages_of_an_ended_run_are_merged(stack: Stack, events: int, pages: int):
    run = await stack.runfold.open_run(agent_id="a")
    await stack.holds(run, 0)
    for _ in range(events):  # each is stored before the next one, so it has a page of its own
        await stack.holds(run, (await run.publish(AssistantMessage(message="one"))).offset)
    await run.complete()
    await stack.holds(run, events + 1)

    async def merged() -> bool:
        return len(await stack.stored.pages.all(run.life.log_id)) == pages

    await until(merged, what=f"{pages} pages")
    assert await stack.stored.end(run.life.log_id) == events + 2
