"""Stalls: the projector names each of them, and resolves it or sets it aside. A healthy run goes on
beside them.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from tests.attacks import Stack
from tests.killing import ROUNDS
from tests.partitions import partition_of
from tests.processes import append_raw, projections, projector, reaches, until
from tests.servers import OwnSettings
from tests.stalls import Measured, Scene, measure, print_table

from runfold import Run, UserMessage
from runfold.client.records import outgoing
from runfold.ids import new_log_id
from runfold.log.catalog import bell_record
from runfold.log.publisher import Outgoing
from runfold.settings import Settings
from runfold.store.quarantine import no_topic
from runfold_schemas.catalog import Life
from runfold_schemas.codec import new_data
from runfold_schemas.runs import RunOpened
from runfold_schemas.sessions import session_run_id

PARKED = 100 * ROUNDS
"""How many parked runs ring at once."""

GHOSTS = 260
"""More lives without topics than runs may catch up at once."""


@pytest.fixture(scope="module")
def settings(module_settings: OwnSettings) -> Settings:
    """Runs are parked soon, and sweeps are frequent."""
    return module_settings(
        park_seconds=3,
        publisher_park_seconds=3,
        sweep_seconds=3,
    )


@pytest.fixture(scope="module")
async def scene(under_attack: Stack) -> AsyncIterator[Scene]:
    admin = AIOKafkaAdminClient(bootstrap_servers=under_attack.settings.kafka)
    await admin.start()
    try:
        async with projections(under_attack.settings) as stored:
            yield Scene(under_attack, stored, admin)
    finally:
        await admin.close()


async def a_life_without_a_topic(scene: Scene) -> Measured:
    life = scene.life("ghost")
    await scene.stack.runfold.connection.announce(life)

    async def is_set_aside() -> bool:
        return await scene.reason("ghost") == no_topic(scene.topic(life))

    return await measure(
        "a life without a topic",
        named=lambda: scene.says("stuck: ", scene.topic(life)),
        ended=is_set_aside,
        how="set aside",
    )


async def a_topic_that_comes_late(scene: Scene) -> Measured:
    connection, life = scene.stack.runfold.connection, scene.life("late")
    began = time.monotonic()
    await connection.announce(life)
    await until(lambda: scene.says("stuck: ", scene.topic(life)), what="the name of the late topic")
    run = connection.run_of(life, is_new=True)
    opening = new_data(RunOpened, agent_id="a", log_id=life.log_id)
    await connection.open_topic(scene.topic(life), run.event(opening))
    return await measure(
        "a topic that comes after its life",
        named=lambda: scene.says("no longer stuck: ", scene.topic(life)),
        ended=lambda: reaches(scene.stored, run, 0),
        how="tailed",
        began=began,
    )


async def a_topic_that_comes_after_the_quarantine(scene: Scene) -> Measured:
    connection, life = scene.stack.runfold.connection, scene.life("back")
    await connection.announce(life)

    async def is_set_aside() -> bool:
        return await scene.reason("back") is not None

    await until(is_set_aside, what="the quarantine")
    assert not await scene.says("no longer stuck: ", scene.topic(life))
    run = connection.run_of(life, is_new=True)
    opening = new_data(RunOpened, agent_id="a", log_id=life.log_id)
    began = time.monotonic()
    await connection.open_topic(scene.topic(life), run.event(opening))
    return await measure(
        "a run in quarantine whose topic comes",
        ended=lambda: reaches(scene.stored, run, 0),
        how="taken back",
        began=began,
    )


async def a_topic_that_is_deleted(scene: Scene) -> Measured:
    run = await scene.stack.runfold.open_run(agent_id="a")
    offset = (await run.publish(UserMessage(message="m"))).offset
    await until(lambda: reaches(scene.stored, run, offset), what="the run's state")
    began = time.monotonic()
    await scene.delete(scene.topic(run))

    async def is_set_aside() -> bool:
        return await scene.reason(run.run_id) == no_topic(scene.topic(run))

    return await measure(
        "a topic that is deleted under a tailed run",
        named=lambda: scene.says("stuck: ", scene.topic(run)),
        ended=is_set_aside,
        how="set aside",
        began=began,
    )


async def recreated(scene: Scene, name: str, *, records: int, parked: bool) -> Measured:
    run = await scene.stack.runfold.open_run(agent_id="a")
    for _ in range(5):
        position = await run.publish(UserMessage(message="m"))
    await until(lambda: reaches(scene.stored, run, position.offset), what="the run's state")
    if parked:
        await until(lambda: scene.is_parked(run), what="the run's parking")
    began = time.monotonic()
    await scene.delete(scene.topic(run))
    await scene.create(scene.topic(run))
    for _ in range(records):
        await append_raw(scene.stack.runfold, run)

    async def is_set_aside() -> bool:
        expected = f"topic {scene.topic(run)} ends at offset {records}"
        return (await scene.reason(run.run_id) or "").startswith(expected)

    return await measure(
        name,
        named=lambda: scene.says(scene.topic(run)),
        ended=is_set_aside,
        how="set aside",
        began=began,
    )


async def a_log_that_begins_later(scene: Scene) -> Measured:
    connection, life = scene.stack.runfold.connection, scene.life("truncated")
    run = connection.run_of(life, is_new=True)
    opening = new_data(RunOpened, agent_id="a", log_id=life.log_id)
    await connection.open_topic(scene.topic(life), run.event(opening))
    for _ in range(8):
        await append_raw(scene.stack.runfold, run)
    await scene.admin.delete_records({TopicPartition(scene.topic(life), 0): RecordsToDelete(5)})
    began = time.monotonic()
    await connection.announce(life)
    return await measure(
        "a log whose first records were deleted",
        ended=lambda: reaches(scene.stored, run, 8),
        how="goes on at the beginning of the log",
        began=began,
    )


async def an_open_transaction(scene: Scene) -> Measured:
    run = await scene.stack.runfold.open_run(agent_id="a")
    record = outgoing(run.event(UserMessage(message="m")), source="tests")
    producer = AIOKafkaProducer(bootstrap_servers=scene.stack.settings.kafka, transactional_id=run.run_id)
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(
            scene.topic(run), record.value, key=record.key, headers=list(record.headers), partition=0
        )
        transaction = asyncio.create_task(_committed_when_named(scene, run, producer))
        measured = await measure(
            "an open transaction at the end of a log",
            named=lambda: scene.says("stuck: ", "transaction holds logs back", scene.topic(run)),
            ended=lambda: reaches(scene.stored, run, 1),
            how="folded after the commit",
        )
        await transaction
    finally:
        await producer.stop()
    return measured


async def _committed_when_named(scene: Scene, run: Run, producer: AIOKafkaProducer) -> None:
    await until(
        lambda: scene.says("stuck: ", "transaction holds logs back", scene.topic(run)),
        what="the name of the transaction",
    )
    await producer.commit_transaction()


async def strange_records_in_the_catalog(scene: Scene) -> Measured:
    connection = scene.stack.runfold.connection
    life = Life(run_id="nobody", log_id="not a name / for a topic", agent_id="a")
    began = time.monotonic()
    await connection.announce(life)
    partition = partition_of("nobody")
    records = [bell_record("nobody"), Outgoing(b"life:nobody", b"{"), Outgoing(b"garbage", b"garbage")]
    for record in records * 50:
        await connection.publisher.wait(
            await connection.publisher.send(connection.topics.catalog, record, partition=partition)
        )
    run = await scene.stack.runfold.open_run(agent_id="a", run_id=run_id_in(partition))
    return await measure(
        "bells for unknown runs and garbage in the catalog",
        ended=lambda: reaches(scene.stored, run, 0),
        how="passed over",
        began=began,
    )


def run_id_in(partition: int) -> str:
    return next(name for n in range(1000) if partition_of(name := f"beside-{n}") == partition)


async def a_session_that_never_comes(scene: Scene) -> Measured:
    connection, log_id = scene.stack.runfold.connection, new_log_id()
    life = Life(run_id=session_run_id(log_id), log_id=log_id, agent_id="a", session_id="never")
    run = connection.run_of(life, is_new=True)
    opening = new_data(RunOpened, agent_id="a", log_id=log_id, session_id="never")
    await connection.open_topic(
        scene.topic(life), run.event(opening).model_copy(update={"state_delta": {"app:x": 1}})
    )
    began = time.monotonic()
    await connection.announce(life)
    return await measure(
        "a change of shared state whose session never comes",
        ended=lambda: reaches(scene.stored, run, 0),
        how="not forwarded, saved",
        began=began,
    )


async def many_lives_without_topics(scene: Scene) -> Measured:
    connection = scene.stack.runfold.connection
    lives = [scene.life(f"ghost-{n}") for n in range(GHOSTS)]
    began = time.monotonic()
    await asyncio.gather(*(connection.announce(life) for life in lives))
    run = await scene.stack.runfold.open_run(agent_id="a")
    await until(lambda: reaches(scene.stored, run, 0), what="a run behind the others")

    async def are_set_aside() -> bool:
        ids = {entry.name for entry in await scene.stored.stores.quarantine.all(kind="run")}
        return ids >= {life.run_id for life in lives}

    return await measure(
        f"{GHOSTS} lives without topics",
        named=lambda: scene.says("stuck: ", "do not exist", " and "),
        ended=are_set_aside,
        how="set aside",
        began=began,
    )


async def many_bells_at_once(scene: Scene) -> Measured:
    runfold = scene.stack.runfold
    runs = await asyncio.gather(*(runfold.open_run(agent_id="a") for _ in range(PARKED)))
    for run in runs:
        await until(lambda run=run: scene.is_parked(run), what="the parking of all")
    for run in runs:
        await append_raw(runfold, run)
    publisher, catalog = runfold.connection.publisher, runfold.connection.topics.catalog
    began = time.monotonic()
    for run in runs:
        await publisher.send(catalog, bell_record(run.run_id), partition=partition_of(run.run_id))

    async def are_stored() -> bool:
        return all([await reaches(scene.stored, run, 1) for run in runs])

    return await measure(
        f"{PARKED} parked runs that ring at once", ended=are_stored, how="folded", began=began
    )


async def test_stalls_of_single_runs(scene: Scene):
    async with scene.stack.attacked("stalls of single runs"):
        rows = await asyncio.gather(
            a_life_without_a_topic(scene),
            a_topic_that_comes_late(scene),
            a_topic_that_comes_after_the_quarantine(scene),
            a_topic_that_is_deleted(scene),
            recreated(scene, "a topic that is created again, empty", records=0, parked=False),
            recreated(scene, "a topic that is created again, with records", records=2, parked=False),
            recreated(scene, "a position beyond the end of a parked run's log", records=1, parked=True),
            a_log_that_begins_later(scene),
            an_open_transaction(scene),
            strange_records_in_the_catalog(scene),
            a_session_that_never_comes(scene),
        )

    print_table(rows)
    _, projector = await scene.stack.ready()
    assert projector.status_code == 200


async def test_stalls_of_many_runs(scene: Scene):
    async with scene.stack.attacked("stalls of many runs"):
        rows = await asyncio.gather(many_lives_without_topics(scene), many_bells_at_once(scene))

    print_table(rows)


async def test_a_projector_that_stops_with_partitions_in_hand(scene: Scene, tmp_path: Path):
    # Its own membership alone ends soon.
    settings = scene.stack.settings.model_copy(update={"session_timeout_seconds": 6.0})
    other = projector(settings, tmp_path / "other.log")
    async with scene.stack.attacked("a stopped projector"):
        await other.start()
        assert other.pid is not None
        opening = (scene.stack.runfold.open_run(agent_id="a") for _ in range(24))
        runs = await asyncio.gather(*opening)
        try:
            os.killpg(other.pid, signal.SIGSTOP)
            began = time.monotonic()
            offsets = [(await run.publish(UserMessage(message="m"))).offset for run in runs]

            async def are_stored() -> bool:
                pairs = zip(runs, offsets, strict=True)
                return all([await reaches(scene.stored, run, offset) for run, offset in pairs])

            row = await measure(
                "a projector that is stopped and owns partitions",
                ended=are_stored,
                how="its partitions are given to another",
                began=began,
            )
        finally:
            os.killpg(other.pid, signal.SIGCONT)
            await other.stop()

    print_table([row])
