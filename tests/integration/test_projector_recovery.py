"""What a projector takes up that another one, or its own last life, left half done."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from tests.integration.test_projector import working
from tests.partitions import partition_of
from tests.processes import DEADLINE_SECONDS, Projections, append_raw, projections, reaches, until
from tests.servers import OwnSettings

from runfold import Run, Runfold, UserMessage
from runfold.projector import rebuild as rebuilding
from runfold.projector.active import load
from runfold.projector.worker import Worker
from runfold.projector.writer import Writer
from runfold.settings import Settings
from runfold.store.pages import PageStore
from runfold.store.runs import RunState
from runfold_projections.run import RunRecord
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition

SWEEP_SECONDS = 1.0


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(sweep_seconds=SWEEP_SECONDS, session_timeout_seconds=6, retire_seconds=0.5)


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


async def test_a_state_that_was_not_saved_before_a_crash_is_saved_after_it(
    settings: Settings, runfold: Runfold
):
    async with projections(settings) as stored:
        async with working(settings, stored.edition):
            run = await runfold.open_run(agent_id="a")
            await run.publish(UserMessage(message="hi"))
            await run.complete()
            await until(lambda: completed(stored, run), what="the run's end")
        # A kill between its last page and its last state leaves this, and nothing more will ever
        # come.
        await stored.database[f"runs.{stored.edition}"].delete_one({"_id": run.run_id})
        unfolded = RunRecord(run_id=run.run_id, agent_id="a")
        lost = RunState(run.life.log_id, partition_of(run.run_id), active=True, record=unfolded)
        await stored.runs.add([lost])

        async with working(settings, stored.edition):
            await until(lambda: completed(stored, run), what="the state that was lost")
            differences = await stored.differences()

    assert differences == []


async def test_a_rebuild_tells_what_no_projector_has_told_and_nothing_twice(
    settings: Settings, runfold: Runfold
):
    told, untold = [await runfold.open_run(agent_id="a") for _ in range(2)]
    async with projections(settings) as stored, working(settings, stored.edition):
        await append_raw(runfold, told)
        await told.complete()
        await until(lambda: completed(stored, told), what="the first run's end")
    # No projector is there any more.
    await append_raw(runfold, untold)
    await untold.complete()

    for _ in range(2):
        await rebuilding.rebuild(settings, report=lambda _: None, switched=lambda: None)

    letters = Partition(runfold.connection.topics.dead_letters, 0)
    async with AIOKafkaConsumer(bootstrap_servers=settings.kafka) as consumer:
        consumer.assign([letters])
        buried = (await consumer.end_offsets([letters]))[letters]
    lives = [await runfold.connection.catalog.lookup(run.run_id) for run in (told, untold)]
    assert buried == 2
    assert [life is not None and life.ended for life in lives] == [True, True]


async def test_a_topic_whose_opener_wrote_nothing_disturbs_no_other_run(settings: Settings, runfold: Runfold):
    async with projections(settings) as stored, working(settings, stored.edition) as worker:
        await runfold.connection.admin.create_run_topic(
            runfold.connection.topics.run("never-opened", "0" * 32)
        )
        await asyncio.sleep(3 * SWEEP_SECONDS)

        run = await runfold.open_run(agent_id="a")
        await run.complete()
        await until(lambda: completed(stored, run), what="another run's end")
        known = await stored.runs.get("never-opened")

    assert known is None
    assert worker.events == 2


async def test_a_partition_that_is_ours_again_brings_the_runs_that_another_projector_took_up_meanwhile(
    settings: Settings, runfold: Runfold
):
    settings = settings.model_copy(update={"sweep_seconds": 600.0})
    async with projections(settings) as stored, working(settings, stored.edition) as worker:
        run_id, log_id = "taken-up", "0" * 32
        await runfold.connection.admin.create_run_topic(runfold.connection.topics.run(run_id, log_id))
        # Its announcement is committed: this worker was stopped, and lost its membership, when the
        # other one took it.
        unfolded = RunRecord(run_id=run_id, agent_id="a")
        taken = RunState(log_id, partition_of(run_id), active=True, record=unfolded)
        await stored.runs.add([taken])
        async with AIOKafkaProducer(bootstrap_servers=settings.kafka) as producer:
            await producer.send_and_wait(runfold.connection.topics.run(run_id, log_id), b"garbage")

        await worker.own(set(worker.partitions))

        async def is_folded() -> bool:
            state = await stored.runs.get(run_id)
            return state is not None and state.record.next_offset == 1

        await until(is_folded, what="the run that nobody tails")


async def test_a_partition_that_is_ours_again_leaves_the_runs_whose_deletion_another_projector_heard_of(
    settings: Settings, runfold: Runfold
):
    async with projections(settings) as stored, working(settings, stored.edition) as worker:
        deleted, standing = [(await runfold.open_run(agent_id="a")).life for _ in range(2)]
        for life in (deleted, standing):
            await until(partial(tails, worker, life.run_id), what="the run")
        await stored.runs.delete([(deleted, partition_of(deleted.run_id))])

        await worker.own(set(worker.partitions))

        async def is_left() -> bool:
            return not worker.tails(deleted.run_id)

        await until(is_left, what="the end of the deleted run")
        assert worker.tails(standing.run_id)


async def test_what_is_being_written_of_a_run_while_it_is_cleared_away_leaves_nothing(
    settings: Settings, runfold: Runfold, monkeypatch: pytest.MonkeyPatch
):
    settings = settings.model_copy(update={"sweep_seconds": 600.0})
    async with projections(settings) as stored, working(settings, stored.edition):
        run = await runfold.open_run(agent_id="a")
        await until(lambda: reaches(stored, run, 0), what="the run's opening")
        state = await stored.runs.get(run.run_id)
        assert state is not None
        active = await load(stored.pages, state, runfold.connection.topics.run(run.run_id, state.log_id))
        forget, delete, written = Writer.forget, PageStore.delete_logs, asyncio.Event()
        forgetting: list[Writer] = []

        async def forget_noted(writer: Writer, log_ids: Sequence[str]) -> None:
            forgetting.append(writer)
            await forget(writer, log_ids)

        async def delete_while_writing(pages: PageStore, log_ids: Sequence[str]) -> None:
            await delete(pages, log_ids)
            late = Record(active.next_offset, 0, None, [], b"garbage")
            await forgetting[0].write([active.take([late], next_offset=late.offset + 1)])
            written.set()

        monkeypatch.setattr(Writer, "forget", forget_noted)
        monkeypatch.setattr(PageStore, "delete_logs", delete_while_writing)
        await runfold.connection.announce(run.life.model_copy(update={"deleted": True}))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await written.wait()
        monkeypatch.undo()

        async def has_nothing() -> bool:
            return await stored.pages.all(run.life.log_id) == []

        await until(has_nothing, what="the end of the run's pages")


async def tails(worker: Worker, run_id: str) -> bool:
    return worker.tails(run_id)


async def completed(stored: Projections, run: Run) -> bool:
    state = await stored.runs.get(run.run_id)
    return state is not None and state.record.status == "completed"
