"""Requests of operators whose work kills the projector: it is not repeated for ever, and nothing of
the quarantine is lost.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.faults import (
    DEATHS,
    LARGE,
    MARKED,
    deaths_until,
    faulty_projector,
    goes_on,
    is_free,
    is_set_aside,
    mended,
    quarantined,
    skip,
)
from tests.partitions import partition_of
from tests.processes import Projections, reaches, until

from runfold import Runfold, UserMessage
from runfold.local import Service, StartError
from runfold.log.catalog import life_record
from runfold.settings import Settings
from runfold.store.quarantine import Quarantined, key_id_of
from runfold_schemas.catalog import Life

PARTITIONS = range(12)
QUIET_SECONDS = 5.0
"""A projector looks for requests each second. If it lives as long as this, it repeats none."""


@pytest.fixture
def settings(settings_of_one_test: Settings) -> Settings:
    return settings_of_one_test


async def deaths_until_quiet(projector: Service) -> int:
    """Starts the projector again whenever it ends, until it lives for a while. Gives the number of
    its ends.
    """
    deaths, since = 0, time.monotonic()
    async with asyncio.timeout(240):
        while time.monotonic() - since < QUIET_SECONDS:
            if not projector.running:
                deaths += 1
                with suppress(StartError):
                    await projector.start()
                since = time.monotonic()
            await asyncio.sleep(0.1)
    return deaths


async def retry(stored: Projections, entry: Quarantined) -> None:
    await stored.stores.quarantine.request(entry.id, "retry", owner=entry.owner)


async def publish_deadly_key(runfold: Runfold) -> None:
    run = await runfold.open_run(agent_id="a")
    await run.publish(UserMessage(message="?"), state_delta={"app:x": LARGE})


async def publish_deadly_life(runfold: Runfold) -> None:
    life = Life.model_validate({"run_id": "bad", "log_id": "0" * 32, "agent_id": "a", "note": LARGE})
    connection = runfold.connection
    ack = await connection.publisher.send(
        connection.topics.catalog, life_record(life), partition=partition_of("bad")
    )
    await connection.publisher.wait(ack)


@pytest.mark.parametrize(
    "deadly",
    [("sessions=kill", publish_deadly_key), ("entries=kill", publish_deadly_life)],
    ids=["key", "catalog record"],
)
async def test_a_retry_that_kills_is_not_repeated(
    settings: Settings,
    runfold: Runfold,
    stored: Projections,
    tmp_path: Path,
    deadly: tuple[str, Callable[[Runfold], Awaitable[None]]],
):
    fault, publish = deadly
    projector = faulty_projector(settings, tmp_path, fault)
    await projector.start()
    good = await runfold.open_run(agent_id="b")
    await publish(runfold)
    await deaths_until(projector, partial(is_set_aside, stored))
    (entry,) = await quarantined(stored)

    await retry(stored, entry)
    deaths = await deaths_until(projector, partial(has_no_requests, stored))
    deaths += await deaths_until_quiet(projector)
    await goes_on(stored, good)
    after = await stored.stores.quarantine.all()
    requests = await stored.stores.quarantine.requests(PARTITIONS)
    await projector.stop()

    assert deaths == 1
    assert [(each.id, each.offset) for each in after] == [(entry.id, entry.offset)]
    assert requests == {}


async def test_the_skip_of_the_first_of_two_deadly_records_sets_aside_the_second(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "runs=kill")
    await projector.start()
    bad, good = [await runfold.open_run(agent_id="a") for _ in range(2)]
    await bad.publish(UserMessage(message=LARGE))
    await bad.publish(UserMessage(message="between"))
    second = (await bad.publish(UserMessage(message=LARGE))).offset
    last = (await bad.publish(UserMessage(message="after"))).offset
    await deaths_until(projector, partial(is_set_aside, stored))
    (entry,) = await quarantined(stored)

    await skip(runfold, entry)
    deaths = await deaths_until(projector, partial(is_at_another, stored, entry))
    deaths += await deaths_until_quiet(projector)
    await goes_on(stored, good)
    entries = await quarantined(stored)
    requests = await stored.stores.quarantine.requests(PARTITIONS)
    state = await stored.runs.get(bad.run_id)
    await projector.stop()
    differences = await mended(settings, stored, tmp_path, partial(reaches, stored, bad, last))

    assert deaths <= DEATHS
    assert [(each.id, each.offset) for each in entries] == [(entry.id, second)]
    assert requests == {}
    assert state is not None
    assert state.record.next_offset == second, "everything before the second record is stored"
    assert differences == []


async def test_the_skip_of_a_key_whose_next_record_kills_ends(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "sessions=kill")
    await projector.start()
    run = await runfold.open_run(agent_id="a")
    await run.publish(UserMessage(message="?"), state_delta={"app:x": LARGE})
    await run.publish(UserMessage(message="?"), state_delta={"app:y": LARGE})
    await deaths_until(projector, partial(is_set_aside, stored))
    (entry,) = await quarantined(stored)

    await skip(runfold, entry)
    await until(partial(has_died, projector), what="the first death")
    deaths = await deaths_until_quiet(projector)
    await goes_on(stored, run)
    entries = await quarantined(stored)
    requests = await stored.stores.quarantine.requests(PARTITIONS)
    await projector.stop()

    assert deaths == 2
    assert [each.id for each in entries] == [entry.id]
    assert requests == {}


async def test_a_request_that_comes_before_the_quarantine_is_loaded_loses_nothing(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "session_folds=raise,loading=slow")
    await projector.start()
    run = await runfold.open_run(agent_id="a")
    await run.publish(UserMessage(message="?"), state_delta={"app:x": MARKED})
    (entry,) = await quarantined(stored)
    await projector.stop()
    await retry(stored, entry)

    await projector.start()
    await until(partial(has_tried, stored, entry), what="the retry")
    after = await stored.stores.quarantine.all()
    await projector.stop()
    differences = await mended(settings, stored, tmp_path, partial(is_free, stored))
    values = await stored.stores.values.read(["app:a"])

    assert [each.id for each in after] == [key_id_of("app:a")]
    assert after[0].attempts > entry.attempts
    assert values["app:a"]["app:x"].value == MARKED
    assert differences == []


async def test_an_error_about_data_in_a_request_ends_no_worker(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "session_folds=raise,retries=raise")
    await projector.start()
    pid = projector.pid
    run = await runfold.open_run(agent_id="a")
    await run.publish(UserMessage(message="?"), state_delta={"app:x": MARKED})
    (entry,) = await quarantined(stored)

    await retry(stored, entry)
    await until(partial(has_tried, stored, entry), what="the retry")
    await goes_on(stored, run)
    (after,) = await stored.stores.quarantine.all()
    requests = await stored.stores.quarantine.requests(PARTITIONS)

    assert (projector.running, projector.pid) == (True, pid)
    assert "trying again in" not in projector.logged()
    assert "injected by a test" in after.reason
    assert requests == {}
    await projector.stop()


async def has_died(projector: Service) -> bool:
    return not projector.running


async def has_no_requests(stored: Projections) -> bool:
    return not await stored.stores.quarantine.requests(PARTITIONS)


async def is_at_another(stored: Projections, before: Quarantined) -> bool:
    """Whether what was in quarantine waits at a later record now."""
    entry = await stored.stores.quarantine.get(before.id)
    return entry is not None and entry.offset > before.offset


async def has_tried(stored: Projections, before: Quarantined) -> bool:
    """Whether the entry is gone, or was set aside again."""
    entry = await stored.stores.quarantine.get(before.id)
    return entry is None or entry.attempts > before.attempts
