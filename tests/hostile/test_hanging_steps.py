"""Steps of a projector that hang, and shared topics that are lost: each is named, and no other
waits.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from tests.faults import MARKED, faulty_projector, quarantined
from tests.processes import Projections, projections, reaches, until
from tests.servers import OwnSettings
from tests.stalls import BUSY, ENDED_SECONDS, NAMED_SECONDS, Measured, print_table

from runfold import Run, Runfold, UnavailableError, UserMessage
from runfold.projector.forwarding import Forwarder
from runfold.projector.service import Projector
from runfold.settings import Settings
from runfold.store.pages import PageStore
from runfold.store.runs import RunStore
from runfold.store.shared_positions import SharedPositionStore

STEPS = {
    "write": (PageStore, "insert", "events of runs are not stored"),
    "state": (RunStore, "save", "states of runs are not saved"),
    "merge": (PageStore, "merge", "pages are not merged"),
    "catalog": (RunStore, "add", "entries of the catalog are not taken"),
    "deletion": (PageStore, "delete_logs", "data of deleted runs is not deleted"),
    "shared_write": (SharedPositionStore, "save_position", "events of shared topics are not stored"),
    "forward": (Forwarder, "forward", "changes of shared state are not forwarded"),
}


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(session_timeout_seconds=6, sweep_seconds=3)


@asynccontextmanager
async def projecting(settings: Settings) -> AsyncIterator[Projector]:
    """The projector's process, in this one."""
    projector = Projector(settings)
    tasks = [asyncio.create_task(projector.project()), asyncio.create_task(projector.detector.work())]

    async def is_ready() -> bool:
        try:
            return await projector.check_ready() == []
        except UnavailableError:
            return False

    try:
        await until(is_ready, what="a projector that is ready")
        yield projector
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Gates:
    """Calls that hang, each as long as its gate is closed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._open = {name: asyncio.Event() for name in STEPS}
        for name, (owner, method, _) in STEPS.items():
            self._open[name].set()
            patch.setattr(owner, method, self._gated(name, getattr(owner, method)))

    def _gated(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def gated(*args: Any, **options: Any) -> Any:
            await self._open[name].wait()
            return await method(*args, **options)

        return gated

    def close(self, *names: str) -> None:
        for name in names:
            self._open[name].clear()

    def open(self) -> None:
        for gate in self._open.values():
            gate.set()


async def hang_everywhere(gates: Gates, runfold: Runfold, stored: Projections) -> None:
    """Makes each step hang, in an order in which one does not keep the next from beginning."""
    written, merged, deleted = [await runfold.open_run(agent_id="a") for _ in range(3)]
    for run in (written, merged, deleted):
        await until(lambda run=run: reaches(stored, run, 0), what="a run")
    for _ in range(8):  # so many pages that they are merged when the run ends
        offset = (await merged.publish(UserMessage(message="m"))).offset
        await until(lambda offset=offset: stores_pages(stored, merged, offset), what="a page")
    gates.close("merge", "state", "forward", "shared_write", "deletion")
    change = merged.event(UserMessage(message="m")).model_copy(update={"state_delta": {"app:x": 1}})
    offset = (await merged.publish(change)).offset
    await until(lambda: stores_pages(stored, merged, offset), what="the pages of an event")
    position = await merged.complete()
    await until(lambda: stores_pages(stored, merged, position.offset), what="the pages of the end")
    await runfold.connection.announce(deleted.life.model_copy(update={"deleted": True}))
    await until(lambda: is_deleted(stored, deleted), what="the deletion of a run")
    gates.close("write")
    await written.publish(UserMessage(message="m"))
    gates.close("catalog")
    await runfold.open_run(agent_id="a")


async def stores_pages(stored: Projections, run: Run, offset: int) -> bool:
    return await stored.end(run.life.log_id) > offset


async def is_deleted(stored: Projections, run: Run) -> bool:
    return await stored.runs.get(run.run_id) is None


async def test_each_step_that_hangs_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    gates = Gates(monkeypatch)
    async with (
        projecting(settings) as projector,
        Runfold.of(settings.log()) as runfold,
        projections(settings) as stored,
    ):
        await hang_everywhere(gates, runfold, stored)

        began = time.monotonic()
        seconds = await asyncio.gather(*(named_after(projector, name) for name in STEPS))
        waited = time.monotonic() - began
        gates.open()
        ended = waited + await until(lambda: is_quiet(projector), what="the end of all stalls")

    print_table(
        Measured(f"a step that hangs: {name}", named, ended, "goes on when the server answers")
        for name, named in zip(STEPS, seconds, strict=True)
    )


async def named_after(projector: Projector, name: str) -> float:
    reason = STEPS[name][2]
    return await until(lambda: names(projector, reason), seconds=BUSY * NAMED_SECONDS, what=reason)


async def is_quiet(projector: Projector) -> bool:
    return await projector.check_ready() == []


async def test_a_shared_topic_that_is_lost_is_named(settings: Settings):
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        async with (
            projecting(settings) as projector,
            Runfold.of(settings.log()) as runfold,
            projections(settings) as stored,
        ):
            run = await runfold.open_run(agent_id="a")
            change = run.event(UserMessage(message="m")).model_copy(update={"state_delta": {"app:x": 1}})
            await run.publish(change)
            await until(lambda: has_positions(stored), what="the fold of the shared topic")

            topic = runfold.connection.topics.sessions
            await admin.delete_topics([topic])
            await until(
                lambda: names(projector, topic, "do not exist"),
                seconds=BUSY * NAMED_SECONDS,
                what="the name of the topic",
            )
            beside = await runfold.open_run(agent_id="a")
            await until(lambda: reaches(stored, beside, 0), what="a run beside")
            await runfold.connection.admin.create_shared_topics()
            await until(
                lambda: names(projector, f"{topic}-", "were created again"),
                seconds=BUSY * ENDED_SECONDS,
                what="the name of the new topic",
            )

            assert not await names(projector, "do not exist")
    finally:
        await admin.close()


async def test_a_fold_that_never_ends_is_set_aside(settings: Settings, tmp_path: Path):
    projector = faulty_projector(settings, tmp_path, "runs=hang")
    await projector.start()
    pid = projector.pid
    try:
        async with Runfold.of(settings.log()) as runfold, projections(settings) as stored:
            bad, good = [await runfold.open_run(agent_id="a") for _ in range(2)]
            began = time.monotonic()
            offset = (await bad.label(mark=MARKED)).offset

            async def is_named() -> bool:
                return "stuck: the event loop is blocked" in projector.logged()

            named = await until(is_named, seconds=BUSY * NAMED_SECONDS, what="the name of the stall")
            (entry,) = await quarantined(stored)
            ended = time.monotonic() - began
            after = (await good.publish(UserMessage(message="m"))).offset
            await until(lambda: reaches(stored, good, after), what="the other run")
    finally:
        await projector.stop()

    print_table([Measured("a fold that never ends", named, ended, "interrupted, set aside")])
    assert (entry.name, entry.offset) == (bad.run_id, offset)
    assert entry.reason.startswith("BlockedError: it blocked the event loop")
    assert projector.pid == pid


async def has_positions(stored: Projections) -> bool:
    return any((await stored.stores.shared_positions.positions()).values())


async def names(projector: Projector, *words: str) -> bool:
    return any(all(word in reason for word in words) for reason in await projector.check_ready())
