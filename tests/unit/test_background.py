"""The background loop: work that other loops and threads hand to it, and the connections that it
holds.
"""

import asyncio
import contextvars
import gc
import threading
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from runfold.client.background import KeptConnection, background


class Connection:
    """Counts how often it is open."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = threading.Event()
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.failure: Exception | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator["Connection"]:
        self.opened += 1
        self.closed.clear()
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        try:
            yield self
        finally:
            self.closed.set()

    async def use(self) -> int:
        self.loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return self.opened


async def use(connection: Connection) -> int:
    return await connection.use()


def in_a_thread(work: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_a_connection_serves_loops_threads_and_callers_without_a_loop():
    connection = Connection()
    kept = KeptConnection(connection.connect)

    assert asyncio.run(kept.run(use)) == 1
    assert asyncio.run(kept.run(use)) == 1
    assert in_a_thread(lambda: asyncio.run(kept.run(use))) == 1
    assert kept.call(use) == 1

    assert len(connection.loops) == 1


async def test_a_caller_whose_loop_is_running_may_block_and_so_may_a_thread_of_it():
    connection = Connection()
    kept = KeptConnection(connection.connect)

    assert kept.call(use) == 1
    assert in_a_thread(lambda: asyncio.run(kept.run(use))) == 1
    assert await kept.run(use) == 1


async def test_first_calls_at_once_open_one_connection():
    connection = Connection()
    kept = KeptConnection(connection.connect)

    assert await asyncio.gather(*(kept.run(use) for _ in range(20))) == [1] * 20


async def test_a_closed_connection_opens_again():
    connection = Connection()
    kept = KeptConnection(connection.connect)
    await kept.close()
    await kept.open()

    in_a_thread(lambda: asyncio.run(kept.close()))

    assert connection.closed.is_set()
    assert await kept.run(use) == 2


async def test_a_connection_that_fails_to_open_says_why_and_is_tried_again():
    connection = Connection()
    connection.failure = ValueError("no")
    kept = KeptConnection(connection.connect)

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await kept.run(use)
    connection.failure = None

    assert await kept.run(use) == 3


async def test_a_connection_that_nobody_has_any_more_is_closed():
    connection = Connection()
    kept = KeptConnection(connection.connect)
    await kept.run(use)

    del kept
    gc.collect()

    assert await asyncio.to_thread(connection.closed.wait, 10)


async def test_an_error_keeps_its_traceback():
    async def fail_deep_inside() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError) as failure:
        await background().run(fail_deep_inside())

    assert "fail_deep_inside" in "".join(traceback.format_tb(failure.value.__traceback__))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_would_end_a_program_reaches_the_caller_and_the_loop_goes_on(kind: type[BaseException]):
    async def end() -> None:
        raise kind

    async def answer() -> int:
        return 1

    with pytest.raises(kind):
        background().call(end())

    assert background().call(answer()) == 1


async def test_a_cancelled_caller_waits_until_its_work_has_ended():
    began, steps = threading.Event(), []

    async def work() -> None:
        try:
            began.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.02)
            steps.append("cleaned up")

    task = asyncio.create_task(background().run(work()))
    await asyncio.to_thread(began.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert steps == ["cleaned up"]


async def test_work_that_is_cancelled_before_it_begins_leaves_no_warning():
    async def work() -> None:
        await asyncio.sleep(60)

    for _ in range(50):
        task = asyncio.create_task(background().run(work()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_deadline_of_the_caller_counts_in_the_background_too():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await background().run(asyncio.sleep(60))


async def test_context_variables_travel():
    variable = contextvars.ContextVar("variable", default="")
    variable.set("caller's")

    async def read() -> str:
        return variable.get()

    assert await background().run(read()) == "caller's"


async def test_the_background_loop_does_not_wait_for_itself():
    async def work() -> None:
        background().call(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="asynchronous"):
        await background().run(work())
    assert await background().run(background().run(asyncio.sleep(0, 1))) == 1
