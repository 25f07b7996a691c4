"""What a projector promises while nothing breaks: parked runs wake, duplicates count once, workers
share, bad records are kept aside.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from tests.partitions import partition_of
from tests.processes import DEADLINE_SECONDS, Projections, projections, reaches, soonest, until, working
from tests.servers import OwnSettings

from runfold import AssistantMessage, PlannerNote, Run, RunCompleted, Runfold, UserMessage
from runfold.client.records import outgoing
from runfold.projector.worker import Worker
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.editions import Editions, new_edition
from runfold_schemas.errors import RejectedError
from runfold_schemas.topics import Partition

PARK_SECONDS = 0.6
SWEEP_SECONDS = 1.0


class Stack(NamedTuple):
    settings: Settings
    runfold: Runfold
    stored: Projections
    worker: Worker

    async def holds(self, run: Run, offset: int, *, seconds: float = DEADLINE_SECONDS) -> float:
        """Waits until the pages of `run` hold `offset`; gives the seconds."""

        async def stored() -> bool:
            return await self.stored.end(run.life.log_id) > offset

        return await until(stored, seconds=seconds, what=f"offset {offset} in the pages")

    async def parked(self, run: Run) -> None:
        async def is_parked() -> bool:
            state = await self.stored.runs.get(run.run_id)
            return state is not None and not state.active and self.worker.active_runs == 0

        await until(is_parked, what="the parking of the run")


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(
        park_seconds=PARK_SECONDS,
        publisher_park_seconds=PARK_SECONDS,
        sweep_seconds=SWEEP_SECONDS,
    )


@pytest.fixture
async def stack(settings: Settings) -> AsyncIterator[Stack]:
    async with (
        projections(settings) as stored,
        Runfold.of(settings.log()) as runfold,
        working(settings, stored.edition) as worker,
    ):
        yield Stack(settings, runfold, stored, worker)


async def test_an_event_to_a_parked_run_is_visible_within_300_ms(stack: Stack) -> None:
    run = await stack.runfold.open_run(agent_id="a")

    async def is_woken() -> float:
        await stack.parked(run)
        offset = (await run.publish(UserMessage(message="wake up"))).offset
        return await stack.holds(run, offset)

    assert await soonest(is_woken, seconds=0.3) < 0.3


async def test_an_event_that_nobody_announced_is_visible_within_one_sweep(stack: Stack) -> None:
    run = await stack.runfold.open_run(agent_id="a")
    topic = stack.runfold.connection.topics.run(run.run_id, run.life.log_id)

    async def is_swept() -> float:
        await stack.parked(run)
        async with AIOKafkaProducer(bootstrap_servers=stack.settings.kafka) as producer:
            record = outgoing(run.event(UserMessage(message="psst")), source="elsewhere")
            headers = list(record.headers)
            sent = await producer.send_and_wait(topic, record.value, key=record.key, headers=headers)
        return await stack.holds(run, sent.offset)

    assert await soonest(is_swept, seconds=SWEEP_SECONDS + 1.0) < SWEEP_SECONDS + 1.0


async def test_a_run_whose_opener_announced_nothing_is_found_by_the_sweep(stack: Stack) -> None:
    run = await stack.runfold.open_run(agent_id="a")
    other_log = "0" * 32
    opened = next(iter([one async for one in run.events()]))
    hidden = opened.model_copy(
        update={"run_id": "hidden", "data": opened.data.model_copy(update={"log_id": other_log})}
    )
    topic = stack.runfold.connection.topics.run("hidden", other_log)

    await stack.runfold.connection.admin.create_run_topic(topic)
    async with AIOKafkaProducer(bootstrap_servers=stack.settings.kafka) as producer:
        record = outgoing(hidden, source="elsewhere")
        await producer.send_and_wait(topic, record.value, key=record.key)

    async def found() -> bool:
        state = await stack.stored.runs.get("hidden")
        return state is not None and state.record.agent_id == "a" and state.record.next_offset == 1

    await until(found, what="the hidden run")


async def test_a_repeated_event_counts_once_after_many_others_a_merge_a_restart_and_a_rebuild(
    stack: Stack, settings: Settings
) -> None:
    run = await stack.runfold.open_run(agent_id="a")
    repeated = run.event(UserMessage(message="once"))
    await run.publish(repeated)
    for number in range(100):  # one page each, so that they are merged
        await stack.holds(run, (await run.publish(PlannerNote(note=str(number)))).offset)
    for number in range(2_000):
        await run.send(AssistantMessage(message=str(number)))
    await run.flush()

    last = (await run.publish(repeated)).offset
    await stack.holds(run, last)
    async with working(settings, stack.stored.edition):
        again = (await run.publish(repeated)).offset
        await stack.holds(run, again)
    rebuilt = new_edition()
    async with projections(settings) as anew, working(settings, rebuilt):
        fresh = Projections(settings, anew.editions, rebuilt, anew.database)
        await until(lambda: reaches(fresh, run, again), what="the rebuilt run")
        final = (await run.publish(repeated)).offset
        await until(lambda: reaches(fresh, run, final), what="the rebuilt run")
        states = [await stack.stored.runs.get(run.run_id), await fresh.runs.get(run.run_id)]

    await stack.holds(run, final)
    for state in states:
        assert state is not None
        assert state.record.counts["user_message"] == 1

    async def are_merged() -> bool:
        return len(await stack.stored.pages.all(run.life.log_id)) < 60

    # The last small pages are merged when the run is parked.
    await until(are_merged, what="the merge of the pages")
    pages = [page async for page in stack.stored.pages.read(run.life.log_id)]
    assert [offset for page in pages for offset, outcome, _ in page.exceptions if outcome == "duplicate"] == [
        last,
        again,
        final,
    ]
    assert await stack.stored.differences() == []


async def test_two_workers_share_the_runs_and_give_them_up_in_order(stack: Stack, settings: Settings) -> None:
    runs = await asyncio.gather(*(stack.runfold.open_run(agent_id="a", run_id=f"run-{n}") for n in range(24)))

    async with working(settings, stack.stored.edition) as second:

        async def shared() -> bool:
            return len(stack.worker.partitions) == len(second.partitions) == 6

        await until(shared, what="a fair share")
        ends = [(await run.publish(UserMessage(message="hi"))).offset for run in runs]
        for run, end in zip(runs, ends, strict=True):
            await stack.holds(run, end)
        assert stack.worker.partitions.isdisjoint(second.partitions)
        assert {partition_of(run.run_id) for run in runs} & second.partitions
    ends = [(await run.publish(UserMessage(message="still there"))).offset for run in runs]
    for run, end in zip(runs, ends, strict=True):
        await stack.holds(run, end)

    assert await stack.stored.differences() == []


async def test_what_cannot_be_decoded_goes_to_the_dead_letters_and_the_run_goes_on(stack: Stack) -> None:
    run = await stack.runfold.open_run(agent_id="a")
    topic = stack.runfold.connection.topics.run(run.run_id, run.life.log_id)
    async with AIOKafkaProducer(bootstrap_servers=stack.settings.kafka) as producer:
        bad = await producer.send_and_wait(topic, b'{"type": "no such kind"}', headers=[("x", b"1")])
    after = (await run.publish(UserMessage(message="hi"))).offset
    await stack.holds(run, after)

    letters = Partition(stack.runfold.connection.topics.dead_letters, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=stack.settings.kafka, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([letters])
        letter = await asyncio.wait_for(consumer.getone(), DEADLINE_SECONDS)

    assert letter.value == b'{"type": "no such kind"}'
    assert letter.key == f"{topic}:{bad.offset}".encode()
    headers = dict(letter.headers)
    assert headers["x"] == b"1"
    assert headers["runfold-origin-topic"] == topic.encode()
    assert headers["runfold-origin-offset"] == str(bad.offset).encode()
    assert b"no such kind" in headers["runfold-reason"]


async def test_a_late_event_is_kept_and_flagged_and_the_end_stands(stack: Stack) -> None:
    run = await stack.runfold.open_run(agent_id="a")
    await run.complete()

    late = (await run.publish(AssistantMessage(message="sorry, late"), late=True)).offset
    with pytest.raises(RejectedError) as refusal:
        await run.publish(RunCompleted(), late=True)
    second_end = refusal.value.offset
    await stack.holds(run, second_end)

    pages = [page async for page in stack.stored.pages.read(run.life.log_id)]
    assert [(offset, outcome) for page in pages for offset, outcome, _ in page.exceptions] == [
        (late, "late"),
        (second_end, "rejected"),
    ]
    assert [one.parts[0].text async for one in _messages(run)] == ["sorry, late"]


async def test_the_catalog_says_that_a_run_has_ended(stack: Stack) -> None:
    run = await stack.runfold.open_run(agent_id="a", session_id="s")
    await run.fail("out of money")

    async def told() -> bool:
        life = await stack.runfold.connection.catalog.lookup(run.run_id)
        return life is not None and life.ended and life.session_id == "s"

    await until(told, what="the end in the catalog")


async def test_a_dropped_database_is_filled_again_from_the_log(stack: Stack, settings: Settings) -> None:
    run = await stack.runfold.open_run(agent_id="a")
    end = (await run.publish(UserMessage(message="hi"))).offset
    await stack.holds(run, end)

    async with connect(settings.mongo, settings.database) as database:
        await Editions(database).drop_all()
        edition = await Editions(database).current_or_first()
        fresh = Projections(settings, Editions(database), edition, database)
        async with working(settings, edition):
            await until(lambda: reaches(fresh, run, end), what="the run in the new edition")
            assert await fresh.differences() == []


async def _messages(run: Run) -> AsyncIterator:
    for message in await run.ledger():
        yield message
