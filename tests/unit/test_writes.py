"""Writes on their way: several at once, at most one of each run, and in the order of its log."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
from tests.records import records

from runfold.projector.active import ActiveRun, Folded
from runfold.projector.writes import Writes
from runfold.store.runs import RunState
from runfold_projections.run import RunRecord
from runfold_schemas.events import UserMessage


class Database:
    """Answers a write when the test lets it."""

    def __init__(self) -> None:
        self.begun: list[list[str]] = []
        self.answers: dict[str, asyncio.Future[None]] = {}

    async def write(self, batch: Sequence[Folded]) -> None:
        names = [f"{folded.run.run_id}@{folded.state.record.next_offset}" for folded in batch]
        self.begun.append(names)
        answer = asyncio.get_running_loop().create_future()
        self.answers |= dict.fromkeys(names, answer)
        await answer

    async def answer(self, name: str, error: Exception | None = None) -> None:
        if error is None:
            self.answers[name].set_result(None)
        else:
            self.answers[name].set_exception(error)
        await turns()


class Worker:
    """Begins writes in tasks of its own, as a worker does."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.database = Database()
        self.writes = Writes(self.database.write)
        self.done: list[str] = []
        self.tasks = tasks

    async def begin(self, name: str, *batch: Folded) -> None:
        await self.writes.begin(self.tasks, batch, done=lambda: self.done.append(name))
        await turns()


@asynccontextmanager
async def working() -> AsyncIterator[Worker]:
    async with asyncio.TaskGroup() as tasks:
        worker = Worker(tasks)
        yield worker
        for answer in worker.database.answers.values():
            answer.cancel()


def run(run_id: str) -> ActiveRun:
    record = RunRecord(run_id=run_id)
    return ActiveRun(RunState(log_id=f"log-{run_id}", partition=0, active=True, record=record), "topic")


def fold(run: ActiveRun, *, size: int = 10) -> Folded:
    log = records(UserMessage(message="x" * size), first_offset=run.next_offset)
    return run.take(log, next_offset=run.next_offset + 1)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_write_of_one_run_does_not_wait_for_that_of_another():
    async with working() as worker:
        await worker.begin("first", fold(run("a")))
        await worker.begin("second", fold(run("b")))

        assert worker.database.begun == [["a@1"], ["b@1"]]


async def test_a_run_has_one_write_on_its_way_and_the_others_of_its_batch_go_on():
    a = run("a")
    async with working() as worker:
        await worker.begin("first", fold(a))
        await worker.begin("second", fold(a), fold(run("b")))
        before = list(worker.database.begun)
        await worker.database.answer("a@1")

        assert before == [["a@1"], ["b@1"]]
        assert worker.database.begun[2:] == [["a@2"]]


async def test_a_batch_is_done_when_all_of_it_is_written():
    a = run("a")
    async with working() as worker:
        await worker.begin("first", fold(a))
        await worker.begin("second", fold(a), fold(run("b")))
        await worker.database.answer("b@1")
        await worker.database.answer("a@1")
        before = list(worker.done)
        await worker.database.answer("a@2")

        assert before == ["first"]
        assert worker.done == ["first", "second"]


async def test_an_empty_batch_is_done_at_once():
    async with working() as worker:
        await worker.begin("nothing")

        assert worker.done == ["nothing"]


async def test_nothing_is_written_behind_a_write_that_failed():
    a = run("a")
    workers: list[Worker] = []

    async def fail() -> None:
        async with working() as worker:
            workers.append(worker)
            await worker.begin("first", fold(a))
            await worker.begin("second", fold(a))
            await worker.database.answer("a@1", OSError("away"))

    with pytest.raises(ExceptionGroup):
        await fail()

    assert workers[0].database.begun == [["a@1"]]


@pytest.mark.parametrize(("count", "size"), [(4, 10), (2, 5_000_000)], ids=["many", "large"])
async def test_a_further_batch_waits_for_room(count: int, size: int) -> None:
    async with working() as worker:
        for number in range(count):
            await worker.begin(str(number), fold(run(f"r{number}"), size=size))
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await worker.begin("further", fold(run("further")))
        before = len(worker.database.begun)
        await worker.database.answer("r0@1")
        await worker.begin("further", fold(run("further")))

        assert before == count
        assert worker.database.begun[-1] == ["further@1"]


async def test_whoever_waits_for_the_writes_on_their_way_waits_for_no_later_one():
    async with working() as worker:
        await worker.begin("first", fold(run("a")))
        settled = asyncio.create_task(worker.writes.settle())
        await turns()
        await worker.begin("second", fold(run("b")))
        before = settled.done()
        await worker.database.answer("a@1")

        assert (before, settled.done()) == (False, True)


async def test_each_write_that_is_not_answered_is_waiting_under_the_name_of_a_run():
    async with working() as worker:
        await worker.begin("first", fold(run("a")))
        await worker.begin("second", fold(run("b")))
        await worker.database.answer("a@1")

        assert list(worker.writes.waiting()) == ["b"]
