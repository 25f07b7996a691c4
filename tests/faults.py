"""Projectors that fail at marked data, and what they set aside."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.faulty_projector import MARK
from tests.forking import ForkedService
from tests.processes import START_SECONDS, Projections, environment, reaches, until

from runfold import Run, Runfold, UserMessage
from runfold.local import Service, StartError, free_port, ready_url
from runfold.log.catalog import skip_partition, skip_record
from runfold.settings import Settings
from runfold.store.quarantine import Quarantined
from runfold_schemas.catalog import Skip

MARKED = MARK.decode()
LARGE = MARKED + 300_000 * "x"
"""Marked, and large enough that a projector notes durably that it holds the record."""

DEATHS = 2
"""Of the process, before the record is set aside."""

SCRIPT = Path(__file__).with_name("faulty_projector.py")


def faulty_projector(settings: Settings, folder: Path, faults: str = "", *, worker_id: str = "q") -> Service:
    """`runfold serve projector` with faults; ready when it owns partitions of the catalog."""
    port = free_port()
    return ForkedService(
        "projector",
        [sys.executable, str(SCRIPT), "serve", "projector", "--port", str(port)],
        ready=ready_url(health_url(port)),
        log=folder / "projector.log",
        env=environment(settings) | {"RUNFOLD_TEST_FAULTS": faults, "RUNFOLD_WORKER_ID": worker_id},
        start_seconds=START_SECONDS,
        grace_seconds=5,
    )


def health_url(port: int) -> str:
    return f"http://127.0.0.1:{port + 1}/health/ready"


def health_of(service: Service) -> str:
    """The URL of the projector's readiness."""
    return health_url(int(service.argv[-1]))


async def quarantined(stored: Projections, *, count: int = 1) -> list[Quarantined]:
    """All entries of the quarantine, when there are as many as expected."""

    async def are_there() -> bool:
        return len(await stored.stores.quarantine.all()) >= count

    await until(are_there, what="the quarantine")
    return await stored.stores.quarantine.all()


async def is_free(stored: Projections) -> bool:
    """Whether nothing is in quarantine."""
    return not await stored.stores.quarantine.count()


async def is_set_aside(stored: Projections) -> bool:
    return not await is_free(stored)


async def goes_on(stored: Projections, run: Run) -> None:
    """Fails if the run is not projected."""
    offset = (await run.publish(UserMessage(message="still here"))).offset
    await until(partial(reaches, stored, run, offset), what="the healthy run")


async def deaths_until(projector: Service, holds: Callable[[], Awaitable[bool]]) -> int:
    """Starts the projector again whenever it ends, until a condition holds. Gives the number of its
    ends.
    """
    deaths = 0
    async with asyncio.timeout(240):
        while not await holds():
            if not projector.running:
                deaths += 1
                with suppress(StartError):
                    await projector.start()
            await asyncio.sleep(0.1)
    return deaths


async def mended(
    settings: Settings, stored: Projections, folder: Path, holds: Callable[[], Awaitable[bool]]
) -> list[object]:
    """Tries everything in quarantine again without the fault. Gives the differences between MongoDB
    and the log afterwards.
    """
    projector = faulty_projector(settings, folder)
    await projector.start()
    try:
        for entry in await stored.stores.quarantine.all():
            await stored.stores.quarantine.request(entry.id, "retry", owner=entry.owner)
        await until(partial(is_free, stored), what="the end of the quarantine")
        await until(holds, what="the run")
        return [*await stored.differences()]
    finally:
        await projector.stop()


async def skip(runfold: Runfold, entry: Quarantined) -> None:
    """Publishes the skip of an entry's records."""
    connection = runfold.connection
    skipped = Skip(
        topic=entry.topic, partition=entry.partition, offset=entry.offset, next_offset=entry.next_offset
    )
    ack = await connection.publisher.send(
        connection.topics.catalog,
        skip_record(skipped),
        partition=skip_partition(connection.topics, skipped),
    )
    await connection.publisher.wait(ack)
