"""One background thread whose event loop holds connections, so that any loop and any thread can
use them.

A connection of asyncio belongs to the loop that opened it, and many programs have several loops:
`asyncio.run` twice, a framework that starts a thread and a loop for each call, a notebook. Here
every connection belongs to the loop of one daemon thread. Callers hand their work to that loop and
wait for it, in their own loop (`run`) or without one (`call`).

The thread starts with the first call. When the program ends it closes all connections. After a
fork, the child has a thread and connections of its own. Importing this module has no effect.
"""

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from typing import Any, Final, Generic, TypeVar

AnswerT = TypeVar("AnswerT")
ConnectedT = TypeVar("ConnectedT")

_CLOSE_SECONDS: Final = 10.0
"""How long the end of a program waits until connections are closed, for example for Kafka's
answers.
"""

_ENDING: Final = "the program is ending, and Runfold has closed its connections"

_FORKED: Final = "this belongs to the parent process, whose connections a fork does not have: open it again"


_log = logging.getLogger(__name__)


class BackgroundLoop:
    """An event loop in a daemon thread of its own."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._held: set[HeldConnection[Any]] = set()
        self._finishing: set[asyncio.Task[object]] = set()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run_thread, args=(started,), name="runfold", daemon=True)
        self._thread.start()
        self._loop = started.result()

    async def run(self, work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        """Does the work in the background loop and waits for it in the caller's loop.

        If the caller is cancelled, the work is cancelled, and the caller waits until it has ended.
        """
        self._check_running(work)
        if asyncio.get_running_loop() is self._loop:
            return await work
        task = _Task(self._loop, work)
        task.start()
        try:
            await _done(task.future)
        except asyncio.CancelledError:
            while not task.future.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await _done(task.future)
            raise
        except GeneratorExit:  # the caller's loop was closed around it
            task.cancel()
            raise
        try:
            return task.future.result()
        finally:
            del task  # an error refers to this frame: together they would be a cycle

    def call(self, work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        """Does the work in the background loop and blocks the calling thread until it has ended.

        An interrupt (Ctrl-C) cancels the work, and the caller waits until it has ended.
        """
        self._check_running(work)
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the background loop cannot wait for itself: use the asynchronous classes")
        task = _Task(self._loop, work)
        try:
            task.start()
            return task.future.result()
        except BaseException:
            if not task.future.done():
                task.cancel()
                wait([task.future])
            raise
        finally:
            del task  # as above

    def post(self, action: Callable[[], object]) -> None:
        """Calls `action` in the background loop soon, if that still runs in this process."""
        if self._process_id == os.getpid():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(action)

    def finish(self, work: Coroutine[Any, Any, object]) -> None:
        """As `call`, where the garbage collector may be the caller: in the background thread itself
        the work is only started, and at the end of the program it is dropped.
        """
        if threading.current_thread() is self._thread:
            self._finishing.add(task := self._loop.create_task(work))
            task.add_done_callback(self._finishing.discard)
        elif self.is_running():
            self.call(work)
        else:
            work.close()

    def hold(
        self, connect: Callable[[], AbstractAsyncContextManager[ConnectedT]]
    ) -> "HeldConnection[ConnectedT]":
        """A connection that this loop, which is running, holds open. The end of the program closes
        it.
        """
        held = HeldConnection(connect)
        self._held.add(held)
        held.task.add_done_callback(lambda _: self._held.discard(held))
        return held

    def is_running(self) -> bool:
        """Whether this is the loop of this process: a fork has the object, but not the thread."""
        return self._process_id == os.getpid() and not self._loop.is_closed()

    def stop(self) -> None:
        """Closes all connections and ends the thread."""
        if self.is_running():
            self.post(self._stopping.set)
            self._thread.join(_CLOSE_SECONDS)

    def _check_running(self, work: Coroutine[Any, Any, object]) -> None:
        """Closes the work and raises `RuntimeError` if the thread does not run in this process."""
        if not self.is_running():
            work.close()
            raise RuntimeError(_ENDING if self._process_id == os.getpid() else _FORKED)

    def _run_thread(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.get_loop()  # raises `OSError` if the process has too many open files
                runner.run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._stopping = asyncio.Event()
        started.set_result(asyncio.get_running_loop())
        await self._stopping.wait()
        # Connections close before other tasks are cancelled, so that sent events are delivered.
        if tasks := [held.task for held in self._held]:
            for held in list(self._held):
                held.close_at_once()
            await asyncio.wait(tasks)


class _Task(Generic[AnswerT]):
    """Work that the background loop does for another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, AnswerT]) -> None:
        self.future: Future[AnswerT] = Future()
        self._loop = loop
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._start, context=copy_context())
        except RuntimeError:
            self._settle()
            raise RuntimeError(_ENDING) from None

    def cancel(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._finish())
        self._task.add_done_callback(lambda _: self._settle())

    def _cancel(self) -> None:
        if self._task is None:  # the interrupt came before the start
            self._settle()
        else:
            self._task.cancel()

    async def _finish(self) -> None:
        try:
            answer = await self._work
        except BaseException as error:  # noqa: BLE001  # every error belongs to the caller
            self.future.set_exception(error)
        else:
            self.future.set_result(answer)

    def _settle(self) -> None:
        if not self.future.done():  # cancelled before it began
            self._work.close()
            self.future.set_exception(asyncio.CancelledError())


def _done(future: Future[Any]) -> asyncio.Future[None]:
    """Resolves in the running loop when `future` is done."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def resolve() -> None:
        if not waiting.done():
            waiting.set_result(None)

    def arrive(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the caller's loop was closed
            loop.call_soon_threadsafe(resolve)

    future.add_done_callback(arrive)
    return waiting


class _BackgroundLoops:
    """The background loop of this process, and those of the processes that it was forked from."""

    def __init__(self) -> None:
        self._loops: list[BackgroundLoop] = []
        self._starting = threading.Lock()
        self._is_registered = False
        self._is_ending = False

    def of_this_process(self) -> BackgroundLoop:
        if not self._is_running():
            if self._is_ending:
                raise RuntimeError(_ENDING)
            self._register()
            with self._starting:
                if not self._is_running():
                    self._loops.append(BackgroundLoop())
        return self._loops[-1]

    def stop(self) -> None:
        self._is_ending = True
        for loop in self._loops:
            loop.stop()

    def _is_running(self) -> bool:
        return bool(self._loops) and self._loops[-1].is_running()

    def _register(self) -> None:
        if not self._is_registered:
            self._is_registered = True
            os.register_at_fork(after_in_child=self._forked)
            atexit.register(self.stop)

    def _forked(self) -> None:
        # Loops of the parent stay in the list: if the child collected one, it would unregister
        # the parent's sockets from the selector that both share.
        self._starting = threading.Lock()


_loops: Final = _BackgroundLoops()


def background() -> BackgroundLoop:
    """The background loop of this process, which is started if it does not run yet. Raises
    `RuntimeError` when the program ends.
    """
    return _loops.of_this_process()


class KeptConnection(Generic[ConnectedT]):
    """A connection that the background loop opens with the first call and holds open until it is
    closed, collected as garbage, or the program ends.

    Args:
        connect: opens the connection for the length of a block. It must not refer to the owner of
            the `KeptConnection`, or that is never collected.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[ConnectedT]]) -> None:
        self._connect = connect
        self._loop: BackgroundLoop | None = None
        self._held: HeldConnection[ConnectedT] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    async def open(self) -> None:
        """Connects now, if it is not connected."""
        await self.run(_nothing)

    async def run(self, use: Callable[[ConnectedT], Awaitable[AnswerT]]) -> AnswerT:
        """Calls `use` with the connection in the background loop, and returns its result."""
        return await background().run(self._use(use))

    async def close(self) -> None:
        """Closes the connection as soon as no call uses it any more. A later call opens another
        one.
        """
        if (loop := self._open_in()) is not None:
            await loop.run(self._close())

    # For threads without a loop, which are blocked.

    def call(self, use: Callable[[ConnectedT], Awaitable[AnswerT]]) -> AnswerT:
        """As `run`."""
        return background().call(self._use(use))

    def call_open(self) -> None:
        """As `open`."""
        self.call(_nothing)

    def call_close(self) -> None:
        """As `close`."""
        if (loop := self._open_in()) is not None:
            loop.call(self._close())

    def _open_in(self) -> BackgroundLoop | None:
        """The loop that holds an open connection. After a fork, the child has none."""
        if self._loop is None or not self._loop.is_running():
            return None
        return self._loop if self._held is not None and self._held.is_usable() else None

    # These run in the background loop only, so they need no locks.

    async def _use(self, use: Callable[[ConnectedT], Awaitable[AnswerT]]) -> AnswerT:
        held = self._current()
        connection = await held.enter()
        try:
            return await use(connection)
        finally:
            held.leave()

    def _current(self) -> "HeldConnection[ConnectedT]":
        if self._held is not None and self._open_in() is not None:
            return self._held
        self._loop = background()
        self._held = held = self._loop.hold(self._connect)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, self._loop.post, held.close_soon)
        self._finalizer.atexit = False
        return held

    async def _close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await held.close()


class HeldConnection(Generic[ConnectedT]):
    """A connection of the loop that is running: a task of that loop is inside its block, until the
    connection is closed and no longer in use.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[ConnectedT]]) -> None:
        self._uses = 0
        self._is_closing = False
        self._may_close = asyncio.Event()
        self._connection: asyncio.Future[ConnectedT] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._hold(connect))

    async def enter(self) -> ConnectedT:
        """The connection, which stays open until `leave`. Raises what connecting has raised."""
        self._uses += 1
        try:
            return await asyncio.shield(self._connection)
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        self._uses -= 1
        self._look()

    def is_used(self) -> bool:
        return self._uses > 0

    def is_usable(self) -> bool:
        return not self._is_closing and not self.task.done()

    async def close(self) -> None:
        self.close_soon()
        await asyncio.shield(self.task)

    def close_soon(self) -> None:
        self._is_closing = True
        self._look()

    def close_at_once(self) -> None:
        """Closes the connection also if it is in use."""
        self._is_closing = True
        self._may_close.set()

    def _look(self) -> None:
        if self._is_closing and not self._uses:
            self._may_close.set()

    async def _hold(self, connect: Callable[[], AbstractAsyncContextManager[ConnectedT]]) -> None:
        try:
            async with connect() as connection:
                self._connection.set_result(connection)
                await self._may_close.wait()
        except BaseException as error:
            if self._connection.done():
                if not isinstance(error, Exception):
                    raise
                # Nobody waits for the end of a connection. At the end of the program, its last
                # threads may have ended before.
                _log.debug("a connection was not closed in order", exc_info=error)
                return
            self._connection.set_exception(error)
            self._connection.exception()  # marks the error as seen: callers that wait raise it


async def _nothing(_: object) -> None:
    return
