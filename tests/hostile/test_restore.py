"""Torn backups: MongoDB and Kafka of different times. Runfold names what is missing, keeps or drops
what the operator says, and merges no two histories.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from tests.attacks import Stack, stack
from tests.commands import command, differences_of, run_command
from tests.partitions import partition_of
from tests.processes import Projections, projections, reaches, until
from tests.servers import OwnSettings

from runfold import QuarantinedError, Run, RunEndedError, Runfold, UserMessage
from runfold.client.connection import LogConnection
from runfold.local import Service
from runfold.log.ends import LogEnds
from runfold.log.publisher import Outgoing, Publisher
from runfold.projector.active import load
from runfold.projector.forwarding import Forwarder
from runfold.projector.safeguards import Safeguards
from runfold.projector.writer import Writer
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.quarantine import run_id_of
from runfold.store.runs import RunState
from runfold_projections.run import RunRecord
from runfold_schemas.catalog import Life
from runfold_schemas.topics import Partition

SOON_SECONDS = 120.0
"""What a command needs at the most on a machine with other work."""

PUBLISH_SECONDS = 600.0
"""The timeout of a publish, where nothing may wait as long as that."""


FORGED = 30
"""The number of lives that carry the log id of another run."""

UNKNOWN = 7
"""The number of runs that only MongoDB knows."""

IDLE_SECONDS = 5.0
"""How long nothing is to be done after all runs were set aside."""

IDLE_SHARE_MAX = 0.15
"""The share of a core that a projector without work may use, also while it looks for topics."""


class Restored(NamedTuple):
    """A stack after a restore: two runs as before, and two whose logs Kafka has not."""

    stack: Stack
    whole: list[Run]
    lost: list[Run]
    ledgers: dict[str, Any]

    async def ledger(self, run: Run) -> Any:
        answer = await self.stack.client.get(f"/v1/runs/{run.run_id}/ledger")
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def restored(own_settings: OwnSettings, tmp_path: Path) -> AsyncIterator[Restored]:
    settings = own_settings(retire_seconds=2.0, session_timeout_seconds=6)
    async with after_a_restore(settings, tmp_path) as restored:
        yield restored


@pytest.fixture(scope="module")
async def untouched(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Restored]:
    """For tests that leave everything as it is."""
    patient = settings.model_copy(update={"publish_timeout_seconds": PUBLISH_SECONDS})
    async with after_a_restore(patient, tmp_path_factory.mktemp("stack")) as restored:
        yield restored


@asynccontextmanager
async def after_a_restore(settings: Settings, folder: Path) -> AsyncIterator[Restored]:
    async with stack(settings, folder) as started, projections(settings) as stored:
        runs = await asyncio.gather(*(opened(started, stored) for _ in range(4)))
        restored = Restored(started, runs[:2], runs[2:], {})
        restored.ledgers.update({run.run_id: await restored.ledger(run) for run in runs})
        await started.projector.stop()
        connection = started.runfold.connection
        topics = [connection.topics.run(run.run_id, run.life.log_id) for run in restored.lost]
        await asyncio.gather(*(connection.delete_topic(topic) for topic in topics))
        await started.projector.start()
        yield restored


async def opened(stack: Stack, stored: Projections) -> Run:
    """A run with five messages."""
    run = await stack.runfold.open_run(agent_id="a")
    end = (await run.publish_batch([UserMessage(message=f"{n}") for n in range(5)]))[-1].offset
    await until(lambda: reaches(stored, run, end), what="the state of the run")
    return run


async def test_a_rebuild_without_logs_says_so_and_changes_nothing(untouched: Restored) -> None:
    settings = untouched.stack.settings
    async with projections(settings) as before, untouched.stack.attacked("a refused rebuild"):
        output = await refused(settings, "rebuild")
        after = await before.editions.pointer()

    assert after is not None
    assert (after.current, after.building) == (before.edition, None)
    assert "2 runs have no log" in output
    assert all(run.run_id in output for run in untouched.lost)
    assert "--missing keep" in output
    assert "--missing drop" in output


async def test_runs_without_logs_are_kept_and_can_be_read(restored: Restored) -> None:
    settings = restored.stack.settings
    async with restored.stack.attacked("a rebuild that keeps", steps=5):
        # The rebuild lasts long enough to set the runs aside.
        lasting = settings.model_copy(update={"retire_seconds": 14.0})
        code, output = await command(lasting, "rebuild", "--missing", "keep")
        assert code == 0
        assert "kept 2 runs read-only, dropped 0 runs" in output
        assert not [run for run in restored.lost if run.run_id in output]
        for run in [*restored.whole, *restored.lost]:
            assert await restored.ledger(run) == restored.ledgers[run.run_id]
        run = await restored.stack.runfold.get_run(restored.lost[0].run_id)
        with pytest.raises(RunEndedError):
            await run.publish(UserMessage(message="Is anybody there?"))
        assert await run_command(settings, "verify") == 0
        # The next rebuild keeps them without being told to.
        assert await run_command(settings, "rebuild") == 0
        for run in restored.lost:
            assert await restored.ledger(run) == restored.ledgers[run.run_id]


async def test_lives_of_the_catalog_alone_are_named_and_dropped(restored: Restored) -> None:
    """MongoDB is empty, and the catalog knows runs that have no topics."""
    settings = restored.stack.settings
    await restored.stack.projector.stop()
    async with connect(settings.mongo, settings.database) as database:
        await database.client.drop_database(settings.database)

    output = await refused(settings, "rebuild")

    assert "2 runs have no log" in output
    assert await run_command(settings, "rebuild", "--missing", "drop") == 0
    for run in restored.whole:
        assert not await differences_of(settings, run.run_id)
    await restored.stack.projector.start()


async def test_runs_without_logs_are_dropped_and_the_data_of_another_run_stays(restored: Restored) -> None:
    """Lives of the catalog carry the log id of a healthy run. Some are deleted at once, and the
    others by a rebuild, as the runs are whose logs are gone.
    """
    settings, (run, other) = restored.stack.settings, restored.whole
    forged = [run.life.model_copy(update={"run_id": f"forged-{n}"}) for n in range(FORGED)]
    deleted = [run.life.model_copy(update={"run_id": f"deleted-{n}", "deleted": True}) for n in range(FORGED)]
    announce = restored.stack.runfold.connection.announce
    async with restored.stack.attacked("lives with the log id of another run", steps=5):
        await asyncio.gather(*(announce(life) for life in [*forged, *deleted]))
        await until(lambda: are_stored(settings, [*forged, *deleted]), what="the forged lives")
        # Data of deleted runs is deleted in the order of the deletions.
        await announce(other.life.model_copy(update={"deleted": True}))
        await until(lambda: has_no_pages(settings, other), what="the deletion of the pages")
        await assert_whole(restored, run)

        code, output = await command(settings, "rebuild", "--missing", "drop")
        assert code == 0
        assert f"kept 0 runs read-only, dropped {FORGED + 2} runs" in output
        assert not [lost for lost in restored.lost if lost.run_id in output]
        await assert_whole(restored, run)
        for lost in restored.lost:
            answer = await restored.stack.client.get(f"/v1/runs/{lost.run_id}")
            assert answer.status_code == 404
        async with projections(settings) as stored:
            run_ids = {life.run_id for life in forged}
            assert (await stored.stores.runs.deleted(run_ids)).keys() == run_ids
        assert await run_command(settings, "verify") == 0


async def assert_whole(restored: Restored, run: Run) -> None:
    """MongoDB has all of the run."""
    assert not await has_no_pages(restored.stack.settings, run)
    assert not await differences_of(restored.stack.settings, run.run_id)
    assert await restored.ledger(run) == restored.ledgers[run.run_id]


async def test_a_late_save_of_a_deleted_life_leaves_the_data_of_another_run(untouched: Restored) -> None:
    """A worker has loaded a forged life, whose pages are those of the healthy run, and saves it
    after its deletion.
    """
    settings, run = untouched.stack.settings, untouched.whole[0]
    connection, life = untouched.stack.runfold.connection, run.life.model_copy(update={"run_id": "forged"})
    partition = partition_of(life.run_id)
    record = RunRecord(run_id=life.run_id, agent_id=life.agent_id)
    state = RunState(log_id=life.log_id, partition=partition, active=True, record=record)
    async with projections(settings) as stored, LogEnds.connect(settings.log()) as ends:
        forwarder = Forwarder(connection.settings, connection.publisher, ends, stored.stores)
        has_keys = connection.admin.look_for_keys
        dead_seconds = settings.session_timeout_seconds
        safeguards = Safeguards.of(stored.stores, dead_seconds=dead_seconds, has_keys=has_keys)
        writer = Writer(
            connection.topics,
            connection.publisher,
            stored.stores,
            forwarder=forwarder,
            safeguards=safeguards,
            has_keys=has_keys,
        )
        loaded = await load(stored.pages, state, connection.topics.run(life.run_id, life.log_id))
        await stored.runs.delete([(life, partition)])

        await writer.save(loaded.folded())

    assert loaded.next_offset > 0
    await assert_whole(untouched, run)


async def test_a_forged_life_does_not_keep_the_data_of_a_deleted_run(untouched: Restored) -> None:
    stack, settings = untouched.stack, untouched.stack.settings
    async with projections(settings) as stored:
        run = await opened(stack, stored)
    forged = run.life.model_copy(update={"run_id": "forged-1"})
    await stack.runfold.connection.announce(forged)
    await until(lambda: are_stored(settings, [forged]), what="the forged life")

    deleted = run.life.model_copy(update={"deleted": True})
    await stack.runfold.connection.announce(deleted)

    await until(lambda: has_no_pages(settings, run), what="the deletion of the pages")
    await stack.runfold.connection.announce(forged.model_copy(update={"deleted": True}))


async def are_stored(settings: Settings, lives: list[Life]) -> bool:
    run_ids = {life.run_id for life in lives}
    async with projections(settings) as stored:
        runs = stored.stores.runs
        return run_ids == {*await runs.get_many(sorted(run_ids)), *await runs.deleted(run_ids)}


async def has_no_pages(settings: Settings, run: Run) -> bool:
    async with projections(settings) as stored:
        return await stored.stores.pages.all(run.life.log_id) == []


async def test_a_log_that_lost_its_end_is_set_aside_until_it_is_rebuilt(
    restored: Restored,
) -> None:
    """Kafka is older than MongoDB: the log of a run has fewer events."""
    settings, run = restored.stack.settings, restored.whole[0]
    await restored.stack.projector.stop()
    await shorten(restored.stack, run, keep=3)
    await restored.stack.projector.start()

    async with restored.stack.attacked("a log that lost its end"):
        await until(lambda: is_quarantined(settings, run), what="the quarantine of the run")
        output = await refused(settings, "rebuild")
        assert f"{run.run_id} ends at 3 of 6" in output
        assert await run_command(settings, "rebuild", run.run_id) == 0
        assert not await differences_of(settings, run.run_id)
        await until(lambda: is_free(settings, run), what="the end of the quarantine")
        async with Runfold.of(settings.log()) as elsewhere:
            again = await (await elsewhere.get_run(run.run_id)).publish(UserMessage(message="again"))
        answer = await restored.stack.client.get(
            f"/v1/runs/{run.run_id}", params={"min_offset": again.offset}
        )
    assert answer.json()["next_offset"] == again.offset + 1


async def test_runs_that_kafka_does_not_know_cost_nothing(settings: Settings, tmp_path: Path) -> None:
    """MongoDB is newer than Kafka, and knows runs that have no topics."""
    # What other tests of the module set aside is not among what is set aside here.
    name = f"t{uuid4().hex[:8]}"
    settings = settings.model_copy(update={"prefix": name, "database": name})
    async with stack(settings, tmp_path) as restored, projections(settings) as stored:
        runs = await asyncio.gather(*(opened(restored, stored) for _ in range(UNKNOWN)))
        await restored.projector.stop()
        connection, begin = restored.runfold.connection, len(restored.projector.logged())
        topics = [connection.topics.run(run.run_id, run.life.log_id) for run in runs]
        await asyncio.gather(*(connection.delete_topic(topic) for topic in topics))
        await restored.projector.start()

        async def are_set_aside() -> bool:
            return len(await stored.stores.quarantine.all()) >= UNKNOWN

        began, before = time.monotonic(), processor_seconds(restored.projector)
        await until(are_set_aside, what="the quarantine of all")
        await asyncio.sleep(IDLE_SECONDS)
        share = (processor_seconds(restored.projector) - before) / (time.monotonic() - began)

        print(f"{UNKNOWN} runs that Kafka does not know: {share:.1%} of a core")
        assert share < IDLE_SHARE_MAX
        entries = await stored.stores.quarantine.all()
        assert {entry.name for entry in entries} == {run.run_id for run in runs}
        assert {topic for topic in topics for entry in entries if topic in entry.reason} == set(topics)
        # The log names the first few of a second, and counts the others.
        log = restored.projector.logged()[begin:]
        assert any(f"Kafka has no topic {topic}" in log for topic in topics)

        async def has_no_backlog() -> bool:
            metrics = await restored.client.get(f"{restored.projector_url}/metrics")
            return "\nrunfold_backlog_runs 0.0\n" in metrics.text

        await until(has_no_backlog, what="the end of the backlog")
        async with restored.attacked("runs that Kafka does not know"):
            pass


def processor_seconds(service: Service) -> float:
    # The fields behind the name, which may contain spaces. The 12th and the 13th of them are user
    # and system time.
    fields = Path(f"/proc/{service.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


async def test_what_an_operator_sees_of_a_run_without_a_log(untouched: Restored) -> None:
    settings, run = untouched.stack.settings, untouched.lost[0]
    entry_id = run_id_of(run.run_id)
    await until(lambda: is_quarantined(settings, run), what="the quarantine of the run")

    again = await refused(settings, "quarantine", "retry", run.run_id)
    shown, skipped, verified = await asyncio.gather(
        command(settings, "quarantine", "show", run.run_id),
        command(settings, "quarantine", "skip", run.run_id),
        command(settings, "verify"),
    )

    async with projections(settings) as stored:
        entry = await stored.stores.quarantine.get(entry_id)
    assert f"{entry_id}: in quarantine again: Kafka has no topic" in again
    assert entry is not None
    assert entry.attempts == 2
    assert "from offset 6 on of" in shown[1]
    assert skipped[0] == 1
    assert verified[0] in (1, 3)
    for _, output in (shown, skipped, verified):
        assert "rebuild --missing keep" in " ".join(output.split())


@pytest.mark.parametrize("name", ["follow", "replay"])
async def test_commands_name_a_missing_log_at_once(untouched: Restored, name: str) -> None:
    run = untouched.lost[0]

    async with asyncio.timeout(SOON_SECONDS):
        output = await refused(untouched.stack.settings, name, run.run_id)

    assert "its log does not exist" in output
    assert f"runfold quarantine show run:{run.run_id}" in output.replace("\n", " ")


async def test_publishing_to_a_run_without_a_log_is_refused_soon(untouched: Restored) -> None:
    held, other = untouched.lost
    published = {"type": "user_message", "data": {"message": "hello?"}}
    async with Runfold.of(untouched.stack.settings.log()) as elsewhere:
        run = await elsewhere.get_run(other.run_id)
        async with asyncio.timeout(SOON_SECONDS):
            for refusing in (held, run):
                with pytest.raises(QuarantinedError, match="its log does not exist"):
                    await refusing.publish(UserMessage(message="hello?"))
            answer = await untouched.stack.client.post(f"/v1/runs/{other.run_id}/events", json=published)
            await untouched.whole[0].publish(UserMessage(message="still here"))

    assert answer.status_code == 409, answer.text
    assert answer.json()["type"].endswith("Quarantined")


async def shorten(stack: Stack, run: Run, *, keep: int) -> None:
    """Makes the run's topic anew with its first records."""
    connection = stack.runfold.connection
    topic = connection.topics.run(run.run_id, run.life.log_id)
    history = [admitted.record async for admitted in run.history()][:keep]
    await connection.delete_topic(topic)
    await until(lambda: is_created(connection, topic), what="the topic")
    # Another producer, because the client's counts the records that it has sent to the topic.
    async with Publisher.connect(connection.settings) as publisher:
        for record in history:
            outgoing = Outgoing(record.key, record.value, list(record.headers))
            await publisher.wait(await publisher.send(topic, outgoing))


async def is_created(connection: LogConnection, topic: str) -> bool:
    async with LogEnds.connect(connection.settings) as ends:
        if await ends.ends_of([Partition(topic, 0)]):
            return False
    await connection.admin.create_run_topic(topic)
    return True


async def is_quarantined(settings: Settings, run: Run) -> bool:
    async with projections(settings) as stored:
        return await stored.stores.quarantine.get(run_id_of(run.run_id)) is not None


async def is_free(settings: Settings, run: Run) -> bool:
    return not await is_quarantined(settings, run)


async def refused(settings: Settings, *arguments: str) -> str:
    """What a command prints that fails."""
    code, output = await command(settings, *arguments)
    assert code == 1, output
    return output
