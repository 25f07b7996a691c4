"""The background loop: work that other loops and threads hand to it, and the connections that it
holds.
"""

import asyncio
import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.processes import DEADLINE_SECONDS

from runfold.client.background import BackgroundLoop, KeptConnection, background
from runfold.client.background_reading import BackgroundReading


class Connection:
    """Counts how often it is open."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = threading.Event()
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.failure: Exception | None = None
        self.connecting_seconds = 0.0

    @asynccontextmanager
    async def connect(self) -> AsyncIterator["Connection"]:
        self.opened += 1
        self.closed.clear()
        await asyncio.sleep(self.connecting_seconds)
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


@pytest.mark.parametrize("began_seconds", [0, 0.05], ids=["while it connects", "during a call"])
async def test_closing_waits_for_the_calls_that_use_the_connection(began_seconds: float):
    connection = Connection()
    connection.connecting_seconds = 0.02
    kept = KeptConnection(connection.connect)

    async def use_slowly(connection: Connection) -> bool:
        await asyncio.sleep(0.1)
        return not connection.closed.is_set()

    call = asyncio.create_task(kept.run(use_slowly))
    await asyncio.sleep(began_seconds)
    await kept.open()
    closing = asyncio.create_task(kept.close())

    assert await call
    await closing
    assert connection.closed.is_set()


async def test_a_call_while_the_connection_closes_opens_another_one():
    connection = Connection()
    kept = KeptConnection(connection.connect)
    began = threading.Event()

    async def use_slowly(_: Connection) -> None:
        began.set()
        await asyncio.sleep(0.05)

    call = asyncio.create_task(kept.run(use_slowly))
    await asyncio.to_thread(began.wait)
    closing = asyncio.create_task(kept.close())
    await asyncio.sleep(0.01)

    assert await kept.run(use) == 2
    await asyncio.gather(call, closing)
    await kept.close()


def test_closing_blocks_a_thread_until_the_connection_is_closed():
    connection = Connection()
    kept = KeptConnection(connection.connect)
    kept.call_close()
    kept.call_open()

    kept.call_close()

    assert connection.closed.is_set()


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


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupted_thread_waits_until_its_work_has_ended():
    steps: list[str] = []

    async def work() -> None:
        try:
            interrupt()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            steps.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        background().call(work())

    assert steps == ["cleaned up"]


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_iteration_closes_the_iterator(times: int):
    steps: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            interrupt()
            await asyncio.sleep(60)
        finally:
            for _ in range(times - 1):
                await asyncio.sleep(0.1)  # the thread waits for this end
                interrupt()
            await asyncio.sleep(0.1)
            steps.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        list(BackgroundReading(numbers(), background()).all())

    assert steps == ["cleaned up"]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises `KeyboardInterrupt`. A test run that a shell started in its background ignores
    the signal otherwise.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    """Ctrl-C."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_an_iteration_gives_all_items_before_the_error_that_follows_them():
    async def numbers() -> AsyncIterator[int]:
        for number in range(600):
            yield number
        raise KeyError("k")

    read: list[int] = []
    with pytest.raises(KeyError):
        read.extend(BackgroundReading(numbers(), background()).all())
    reading = BackgroundReading(numbers(), background()).all()
    assert [next(reading) for _ in range(300)] == list(range(300))
    reading.close()


def test_work_for_the_loop_of_a_parent_process_is_refused():
    async def numbers() -> AsyncIterator[int]:
        for number in range(600):
            yield number

    reading, loop = BackgroundReading(numbers(), background()).all(), background()
    next(reading)

    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(0 if refuses(lambda: list(reading)) and refuses(lambda: loop.call(asyncio.sleep(0))) else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert len(list(reading)) == 599


def refuses(call: Any) -> bool:
    try:
        call()
    except RuntimeError as error:
        return "open it again" in str(error)
    return False


def test_a_loop_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise OSError(24, "Too many open files")

    failures: list[BaseException] = []

    def start() -> None:
        try:
            BackgroundLoop()
        except OSError as error:
            failures.append(error)

    with monkeypatch.context() as patched:
        patched.setattr("asyncio.events.new_event_loop", fail)
        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        thread.join(DEADLINE_SECONDS)

    assert [str(error) for error in failures] == ["[Errno 24] Too many open files"]


def test_the_end_of_a_program_waits_for_connections_up_to_its_deadline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("runfold.client.background._CLOSE_SECONDS", 0.1)
    opened, closed = threading.Event(), threading.Event()

    @asynccontextmanager
    async def connect() -> AsyncIterator[None]:
        opened.set()
        try:
            yield
        finally:
            await asyncio.sleep(1)
            closed.set()

    loop = BackgroundLoop()
    loop.post(lambda: loop.hold(connect))
    assert opened.wait(60)
    loop.stop()

    assert not closed.is_set()
    assert closed.wait(60)


AT_THE_END = """
import atexit
from runfold.client.background import KeptConnection, background
from runfold.sync import Runfold

def at_the_end():
    runfold.close()
    for late in (lambda: runfold.sessions.list(), lambda: run_loop.call(work()), lambda: background()):
        try:
            late()
        except RuntimeError as error:
            print(error)

async def work():
    return 1

atexit.register(at_the_end)
runfold = Runfold("127.0.0.1:1")
run_loop = background()
assert run_loop.call(work()) == 1
"""


def test_calls_after_the_end_of_the_program_are_refused_without_a_warning():
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", AT_THE_END],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["the program is ending, and Runfold has closed its connections"] * 3
