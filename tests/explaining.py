"""A failure beside real projectors says what they were doing: the ends of their logs, how far the
group has read the catalog, and the runs that are not folded to their ends.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiokafka.admin import AIOKafkaAdminClient
from tests.processes import Projections, projections

from runfold.local import Service
from runfold.log.catalog import partition_of
from runfold.log.ends import LogEnds
from runfold.log.partition_counts import counted
from runfold.log.shared import partitions_of
from runfold.settings import Settings

LINES, LINE_MAX, RUNS_MAX = 40, 400, 30
LOOK_SECONDS = 20
"""How long a failure waits for servers to say more. They may be the reason of the failure."""


@asynccontextmanager
async def explained(settings: Settings, *workers: Service) -> AsyncIterator[None]:
    """An error of the block gets a note."""
    try:
        yield
    except Exception as error:
        error.add_note("\n".join([*map(_last_lines, workers), await _waiting(settings)]))
        raise


def _last_lines(worker: Service) -> str:
    logged = worker.log.read_text(errors="replace") if worker.log.exists() else ""
    lines = [line[:LINE_MAX] for line in logged.splitlines()[-LINES:]]
    state = "runs" if worker.running else "does not run"
    return "\n".join([f"{worker.name} {state}; the end of its log:", *lines])


async def _waiting(settings: Settings) -> str:
    try:
        async with asyncio.timeout(LOOK_SECONDS), projections(settings) as stored:
            return "\n".join([await _catalog(settings, stored.edition), await _behind(settings, stored)])
    except Exception as error:  # noqa: BLE001  # the first error is the one to report
        return f"what waits is unknown: {error!r}"


async def _catalog(settings: Settings, edition: str) -> str:
    log = await counted(settings.log())
    admin = AIOKafkaAdminClient(**log.client_options())
    await admin.start()
    try:
        group = f"{log.prefix}.projector.{edition}"
        committed = {
            at.partition: position.offset
            for at, position in (await admin.list_consumer_group_offsets(group)).items()
        }
    finally:
        await admin.close()
    async with LogEnds.connect(log) as ends:
        found = await ends.ends_of(partitions_of(log.topics, log.topics.catalog))
    parts = (f"{at.partition}: {committed.get(at.partition)} of {end}" for at, end in sorted(found.items()))
    return f"committed offsets of the catalog, by partition: {', '.join(parts)}"


async def _behind(settings: Settings, stored: Projections) -> str:
    log = await counted(settings.log())
    async with LogEnds.connect(log) as ends:
        topics = await ends.run_topics()
        found = await ends.ends(topics)
    states = await stored.runs.get_many({run.run_id for run in topics.values()})
    lines = []
    for name, run in topics.items():
        state = states.get(run.run_id)
        position = state.record.next_offset if state is not None and state.log_id == run.log_id else None
        pages = await stored.end(run.log_id)
        if found[name] != position or pages != position:
            at = f"{name} of partition {partition_of(log.topics, run.run_id)}"
            is_active = state is not None and state.active
            lines.append(f"{at}: end {found[name]}, state {position}, pages {pages}, {is_active=}")
    return "\n".join([f"{len(lines)} runs are not folded to the end:", *_first(lines)])


def _first(lines: Iterable[str]) -> list[str]:
    return sorted(lines)[:RUNS_MAX]
