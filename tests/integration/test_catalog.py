"""What a client holds of the catalog: the lives that it asked for, whatever else is there."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.partitions import partition_of
from tests.processes import until

from runfold import Run, Runfold, RunNotFoundError
from runfold.log import verdicts
from runfold.log.catalog import life_record
from runfold_schemas.catalog import Life, Skip

OTHERS = 400
"""Runs in the catalog that nobody asks for."""


@pytest.fixture(scope="module")
async def writer(kafka: str) -> AsyncIterator[Runfold]:
    async with Runfold(kafka, prefix=f"t{uuid4().hex[:8]}", create_topics=True) as runfold:
        await announce(runfold, (life(f"other-{number}") for number in range(OTHERS)))
        yield runfold


@pytest.fixture
async def reader(writer: Runfold) -> AsyncIterator[Runfold]:
    """A client that has read nothing yet."""
    async with Runfold.of(writer.connection.settings) as runfold:
        yield runfold


def life(run_id: str, log_id: str = "log", **fields: bool) -> Life:
    return Life(run_id=run_id, log_id=log_id, agent_id="a", **fields)


async def announce(runfold: Runfold, lives: Iterable[Life]) -> None:
    publisher, topic = runfold.connection.publisher, runfold.connection.topics.catalog
    acks = [
        await publisher.send(topic, life_record(each), partition=partition_of(each.run_id)) for each in lives
    ]
    await asyncio.gather(*map(publisher.wait, acks))


async def ids(runs: AsyncIterator[Run]) -> list[str]:
    return [run.run_id async for run in runs]


async def test_every_acknowledged_life_is_seen_while_others_are_written(writer: Runfold, reader: Runfold):
    async def open_one(number: int) -> None:
        own = life(f"new-{uuid4()}-{number}")
        assert await reader.connection.catalog.lookup(own.run_id) is None
        await announce(writer, [own])
        assert await reader.connection.catalog.lookup(own.run_id) == own
        await announce(writer, [life(f"noise-{uuid4()}"), own.model_copy(update={"ended": True})])
        assert (await reader.get_run(own.run_id)).ended

    await asyncio.gather(*map(open_one, range(60)))


async def test_a_second_run_of_a_partition_is_looked_up_without_reading_the_partition_again(
    writer: Runfold, reader: Runfold, monkeypatch: pytest.MonkeyPatch
):
    partition = partition_of("other-0")
    run_ids = [run_id for n in range(OTHERS) if partition_of(run_id := f"other-{n}") == partition]
    spans: list[int] = []
    read = verdicts.read

    def noted(*args: Any, first_offset: int, end: int, **options: Any) -> AsyncIterator[Any]:
        spans.append(end - first_offset)
        return read(*args, first_offset=first_offset, end=end, **options)

    monkeypatch.setattr(verdicts, "read", noted)

    for run_id in run_ids[:5]:
        assert await reader.connection.catalog.lookup(run_id) == life(run_id)
    assert await reader.connection.catalog.lookup(run_ids[1]) == life(run_ids[1])

    # The first is in hand while the partition is read; the fifth is still watched.
    assert len(spans) == 4
    assert max(spans) <= 128


async def test_the_first_life_counts_and_a_deletion_is_final(writer: Runfold, reader: Runfold):
    first, second = f"conflict-{uuid4()}", f"deleted-{uuid4()}"
    await announce(
        writer,
        [
            life(first, "1"),
            life(first, "2"),
            life(first, "1", ended=True),
            life(second),
            life(second, deleted=True),
            life(second, ended=True),
        ],
    )

    for _ in range(2):  # the first look-up reads the partition, and the second is told
        assert await reader.connection.catalog.lookup(first) == life(first, "1", ended=True)
        assert await reader.connection.catalog.lookup(second) == life(second, deleted=True)
    # Another run of the same partition is looked up by reading a few records.
    async with Runfold.of(writer.connection.settings) as other:
        await other.connection.catalog.follow_all()
        assert await other.connection.catalog.lookup(first) == life(first, "1", ended=True)
        assert await other.connection.catalog.lookup(second) == life(second, deleted=True)
    found = {run.run_id: run.life async for run in reader.runs()}
    assert found[first] == life(first, "1", ended=True)
    assert second not in found


async def test_a_run_that_somebody_holds_notices_its_end_and_its_deletion(writer: Runfold, reader: Runfold):
    run = await writer.open_run(agent_id="a")
    held = [
        await reader.get_run(run.run_id),
        *[each async for each in reader.runs() if each.run_id == run.run_id],
    ]
    ended = run.life.model_copy(update={"ended": True})

    await announce(writer, [ended])

    async def all_ended() -> bool:
        return all(each.ended for each in held)

    await until(all_ended, what="the end of the run")

    await announce(writer, [ended.model_copy(update={"deleted": True})])
    with pytest.raises(RunNotFoundError):
        await reader.get_run(run.run_id)
    assert run.run_id not in await ids(reader.runs())


async def test_skips_are_seen_by_clients_that_follow_the_partition(writer: Runfold, reader: Runfold):
    run = await writer.open_run(agent_id="a")
    topic = writer.connection.topics.run(run.run_id, run.life.log_id)
    catalog = reader.connection.catalog
    assert not await catalog.skips_of(run.run_id, topic)

    await writer.connection.skip(Skip(topic=topic, offset=3, next_offset=5))
    await catalog.lookup(run.run_id)

    assert await catalog.skips_of(run.run_id, topic) == {range(3, 5)}
    assert await writer.connection.catalog.skips_of(run.run_id, topic) == {range(3, 5)}


async def test_all_runs_come_once_while_runs_are_opened_and_deleted(writer: Runfold, reader: Runfold):
    stable = {f"other-{number}" for number in range(OTHERS)}
    changing = [life(f"changing-{uuid4()}") for _ in range(40)]
    await announce(writer, changing)

    async def change() -> None:
        for each in changing:
            await announce(writer, [life(f"late-{uuid4()}"), each.model_copy(update={"deleted": True})])

    writing = asyncio.create_task(change())
    seen = [await ids(reader.runs()) for _ in range(3)]
    await writing
    last = await ids(reader.runs())

    for run_ids in (*seen, last):
        assert len(run_ids) == len(set(run_ids))
        assert stable <= set(run_ids)
    assert not {each.run_id for each in changing} & set(last)


async def test_runs_come_by_partition_and_in_the_order_of_their_last_change(kafka: str):
    async with Runfold(kafka, prefix=f"t{uuid4().hex[:8]}", create_topics=True) as runfold:
        lives = [life(f"r{number}") for number in range(60)]
        await announce(runfold, lives)
        changed = lives[:20:2]
        await announce(runfold, [each.model_copy(update={"ended": True}) for each in changed])

        run_ids = await ids(runfold.runs())

    order = [each.run_id for each in lives if each not in changed] + [each.run_id for each in changed]
    assert run_ids == sorted(order, key=partition_of)


async def test_leaving_the_loop_closes_what_it_reads_with(reader: Runfold):
    await reader.connection.catalog.follow_all()
    before, opened = open_sockets(), set[str]()

    async for run in reader.runs():
        assert run.life.agent_id == "a"
        opened = open_sockets() - before
        assert opened
        break

    async def closed() -> bool:
        gc.collect()
        return not opened & open_sockets()

    await until(closed, what="the end of the reading")


def open_sockets() -> set[str]:
    """The connections of this process, with those of other tests that are not closed yet."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(entry.readlink().name)
    return {link for link in links if link.startswith("socket:")}


async def test_two_prefixes_do_not_see_each_other(writer: Runfold, kafka: str):
    async with Runfold(kafka, prefix=f"t{uuid4().hex[:8]}", create_topics=True) as other:
        own = await other.open_run(agent_id="a", run_id="other-1")

        assert await ids(other.runs()) == ["other-1"]
        assert (await other.get_run("other-1")).life == own.life
        with pytest.raises(RunNotFoundError):
            await other.get_run("other-2")
    assert await writer.connection.catalog.lookup("other-1") == life("other-1")


async def test_open_runs_of_a_prefix_are_followed_whenever_they_were_opened(writer: Runfold, reader: Runfold):
    prefix = f"open-{uuid4()}-"
    await announce(writer, [life(f"{prefix}{number}") for number in range(30)])
    await announce(writer, [life(f"{prefix}{number}", ended=True) for number in range(10)])
    catalog = reader.connection.catalog
    await catalog.lookup(f"{prefix}5")  # its partition is read before anybody asks for open runs

    async def open_ids() -> set[str]:
        return {each.run_id.removeprefix(prefix) for each in await catalog.open_lives(prefix)}

    assert await open_ids() == {str(number) for number in range(10, 30)}

    await announce(writer, [life(f"{prefix}{number}", deleted=True) for number in range(10, 20)])
    # A run that has ended does not open again under another log.
    await announce(writer, [life(f"{prefix}1", "2"), life(f"{prefix}30")])

    assert await open_ids() == {str(number) for number in range(20, 31)}
