"""A projector that is killed for its memory by a record: after the second death the record is set
aside, and everything else goes on.
"""

from functools import partial
from pathlib import Path

import pytest
from tests.commands import command
from tests.faults import (
    DEATHS,
    LARGE,
    deaths_until,
    faulty_projector,
    goes_on,
    is_set_aside,
    mended,
    quarantined,
)
from tests.partitions import partition_of
from tests.processes import Projections, reaches, until

from runfold import Runfold, UserMessage
from runfold.log.catalog import life_record
from runfold.settings import Settings
from runfold.store.runs import RunState
from runfold_projections.run import RunRecord
from runfold_schemas.catalog import Life


@pytest.fixture
def settings(settings_of_one_test: Settings) -> Settings:
    return settings_of_one_test


async def test_a_run_that_kills_is_set_aside(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "runs=kill")
    await projector.start()
    bad, good = [await runfold.open_run(agent_id="a") for _ in range(2)]
    await bad.publish(UserMessage(message="before"))
    offset = (await bad.publish(UserMessage(message=LARGE))).offset
    last = (await bad.publish(UserMessage(message="after"))).offset

    deaths = await deaths_until(projector, partial(is_set_aside, stored))
    await goes_on(stored, good)
    entries = await quarantined(stored)
    before = await stored.runs.get(bad.run_id)
    code, refusal = await command(settings, "rebuild")
    await projector.stop()
    differences = await mended(settings, stored, tmp_path, partial(reaches, stored, bad, last))

    assert deaths == DEATHS
    assert [(entry.id, entry.offset, entry.next_offset) for entry in entries] == [
        (f"run:{bad.run_id}", offset, offset + 1)
    ]
    assert "memory" in entries[0].reason
    assert (code, f"run:{bad.run_id}, offset {offset}" in refusal) == (1, True)
    assert "runfold quarantine skip ID" in refusal
    assert before is not None
    assert before.record.next_offset == offset
    assert differences == []


async def test_a_stored_page_that_kills_when_it_is_loaded_is_set_aside(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    whole = faulty_projector(settings, tmp_path)
    await whole.start()
    bad, good = [await runfold.open_run(agent_id="a") for _ in range(2)]
    offset = (await bad.publish(UserMessage(message=LARGE))).offset
    await until(partial(reaches, stored, bad, offset), what="the run")
    await whole.stop()
    # A death between the last page and the last state leaves this.
    await stored.database[f"runs.{stored.edition}"].delete_one({"_id": bad.run_id})
    unfolded = RunRecord(run_id=bad.run_id, agent_id="a")
    lost = RunState(bad.life.log_id, partition_of(bad.run_id), active=True, record=unfolded)
    await stored.runs.add([lost])

    projector = faulty_projector(settings, tmp_path, "runs=kill")
    deaths = await deaths_until(projector, partial(is_set_aside, stored)) - 1
    await goes_on(stored, good)
    entries = await quarantined(stored)
    await projector.stop()
    differences = await mended(settings, stored, tmp_path, partial(reaches, stored, bad, offset))

    assert deaths == DEATHS
    assert [(entry.id, entry.offset) for entry in entries] == [(f"run:{bad.run_id}", offset)]
    assert differences == []


async def test_a_key_that_kills_is_set_aside(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "sessions=kill")
    await projector.start()
    run = await runfold.open_run(agent_id="a")
    last = (await run.publish(UserMessage(message="?"), state_delta={"app:x": LARGE})).offset

    deaths = await deaths_until(projector, partial(is_set_aside, stored))
    await goes_on(stored, run)
    entries = await quarantined(stored)
    await projector.stop()
    differences = await mended(settings, stored, tmp_path, partial(reaches, stored, run, last))
    values = await stored.stores.values.read(["app:a"])

    assert deaths == DEATHS
    assert [(entry.id, entry.topic) for entry in entries] == [
        ("key:app:a", runfold.connection.topics.sessions)
    ]
    assert values["app:a"]["app:x"].value == LARGE
    assert differences == []


async def test_a_catalog_record_that_kills_is_set_aside(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "entries=kill")
    await projector.start()
    good = await runfold.open_run(agent_id="a")
    life = Life.model_validate({"run_id": "bad", "log_id": "0" * 32, "agent_id": "a", "note": LARGE})
    connection = runfold.connection
    ack = await connection.publisher.send(
        connection.topics.catalog, life_record(life), partition=partition_of("bad")
    )
    await connection.publisher.wait(ack)

    deaths = await deaths_until(projector, partial(is_set_aside, stored))
    await goes_on(stored, good)
    entries = await quarantined(stored)
    await projector.stop()

    assert deaths == DEATHS
    assert [(entry.kind, entry.topic, entry.partition) for entry in entries] == [
        ("record", connection.topics.catalog, partition_of("bad"))
    ]
