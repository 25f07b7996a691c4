"""One background thread whose event loop holds connections, so that any loop and any thread can
use them.

A connection of asyncio belongs to the loop that opened it, and many programs have several loops:
`asyncio.run` twice, a framework that starts a thread and a loop for each call, a notebook. Here
every connection belongs to the loop of one daemon thread. Callers hand their work to that loop and
wait for it, in their own loop (`run`) or without one (`call`).

The thread starts with the first call. When the program ends it closes all connections. After a
fork, the child has a thread and connections of its own.
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from typing import Any, Final, Generic, TypeVar

AnswerT = TypeVar("AnswerT")
ConnectedT = TypeVar("ConnectedT")

_CLOSE_SECONDS: Final = 10.0
"""How long the end of a program waits for connections to close, such as for Kafka's answers."""

_ENDING: Final = "the program is ending, and Runfold has closed its connections"


class BackgroundLoop:
    """An event loop in a daemon thread of its own."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._keepers: set[_Keeper[Any]] = set()
        self._finishing: set[asyncio.Task[object]] = set()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="runfold", daemon=True
        )
        self._thread.start()
        self._loop = started.result()

    async def run(self, work: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        """Does the work in the background loop and waits for it in the caller's loop.

        If the caller is cancelled, the work is cancelled, and the caller waits until it has ended.
        """
        if asyncio.get_running_loop() is self._loop:
            return await work
        task = _Task(self._loop, work)
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

        An interrupt (Ctrl-C) cancels the work.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the background loop cannot wait for itself: use the asynchronous classes")
        task = _Task(self._loop, work)
        try:
            return task.future.result()
        except BaseException:
            task.cancel()
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

    def keep(self, keeper: "_Keeper[Any]") -> None:
        """Keeps a reference to the keeper, so that its connection is closed when the program
        ends.
        """
        self._keepers.add(keeper)
        keeper.task.add_done_callback(lambda _: self._keepers.discard(keeper))

    def is_running(self) -> bool:
        """Whether this is the loop of this process: a fork has the object, but not the thread."""
        return self._process_id == os.getpid() and not self._loop.is_closed()

    def stop(self) -> None:
        """Closes all connections and ends the thread."""
        if self.is_running():
            self.post(self._stopping.set)
            self._thread.join(2 * _CLOSE_SECONDS)

    async def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        self._stopping = asyncio.Event()
        started.set_result(asyncio.get_running_loop())
        await self._stopping.wait()
        # Connections close before other tasks are cancelled, so that sent events are delivered.
        if tasks := [keeper.task for keeper in self._keepers]:
            for keeper in list(self._keepers):
                keeper.close_soon()
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)


class _Task(Generic[AnswerT]):
    """Work that the background loop does for another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, AnswerT]) -> None:
        self.future: Future[AnswerT] = Future()
        self._loop = loop
        self._work = work
        try:
            loop.call_soon_threadsafe(self._start, context=copy_context())
        except RuntimeError:
            work.close()
            raise RuntimeError(_ENDING) from None

    def cancel(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._finish())
        self._task.add_done_callback(self._settle)

    def _cancel(self) -> None:
        self._task.cancel()

    async def _finish(self) -> None:
        try:
            answer = await self._work
        except BaseException as error:  # noqa: BLE001  # every error belongs to the caller
            self.future.set_exception(error)
        else:
            self.future.set_result(answer)

    def _settle(self, _: asyncio.Task[None]) -> None:
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


class _Process:
    """The background loop of this process."""

    def __init__(self) -> None:
        self._loops: list[BackgroundLoop] = []
        self._starting = threading.Lock()
        self._is_ending = False
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.stop)

    def background(self) -> BackgroundLoop:
        if not self._loops or not self._loops[-1].is_running():
            if self._is_ending:
                raise RuntimeError(_ENDING)
            with self._starting:
                if not self._loops or not self._loops[-1].is_running():
                    self._loops.append(BackgroundLoop())
        return self._loops[-1]

    def stop(self) -> None:
        self._is_ending = True
        for loop in self._loops:
            loop.stop()

    def _forked(self) -> None:
        # Loops of the parent stay in the list: if the child collected one, it would unregister
        # the parent's sockets from the selector that both share.
        self._starting = threading.Lock()


_process: Final = _Process()


def background() -> BackgroundLoop:
    """The background loop of this process, which is started if it does not run yet."""
    return _process.background()


class KeptConnection(Generic[ConnectedT]):
    """A connection that the background loop opens with the first call and holds open until it is
    closed, collected as garbage, or the program ends.

    Args:
        connect: opens the connection for the length of a block. It must not refer to the owner of
            the `KeptConnection`, or that is never collected.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[ConnectedT]]) -> None:
        self._connect = connect
        self._keeper: _Keeper[ConnectedT] | None = None
        self._finalizer = weakref.finalize(self, lambda: None)

    async def open(self) -> None:
        """Connects now, if it is not connected."""
        await background().run(self._connected())

    async def run(self, use: Callable[[ConnectedT], Awaitable[AnswerT]]) -> AnswerT:
        """Calls `use` with the connection in the background loop, and returns its result."""
        return await background().run(self._use(use))

    def call(self, use: Callable[[ConnectedT], Awaitable[AnswerT]]) -> AnswerT:
        """As `run`, for a thread without a loop: it blocks."""
        return background().call(self._use(use))

    async def close(self) -> None:
        """Closes the connection. A later call opens another one."""
        if self._keeper is not None and self._keeper.is_usable():
            await background().run(self._close())

    # These run in the background loop only, so they need no locks.

    async def _use(self, use: Callable[[ConnectedT], Awaitable[AnswerT]]) -> AnswerT:
        return await use(await self._connected())

    async def _connected(self) -> ConnectedT:
        keeper = self._keeper
        if keeper is None or not keeper.is_usable():
            keeper = self._keeper = _Keeper(background(), self._connect)
            self._finalizer.detach()
            self._finalizer = weakref.finalize(self, keeper.close_soon)
            self._finalizer.atexit = False
        return await keeper.connection()

    async def _close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper.is_usable():
            await keeper.close()


class _Keeper(Generic[ConnectedT]):
    """A task of the background loop that is inside the block of a connection."""

    def __init__(
        self, loop: BackgroundLoop, connect: Callable[[], AbstractAsyncContextManager[ConnectedT]]
    ) -> None:
        self._loop = loop
        self._closing = asyncio.Event()
        self._connection: asyncio.Future[ConnectedT] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._hold(connect))
        loop.keep(self)

    async def connection(self) -> ConnectedT:
        """Raises what connecting has raised."""
        return await asyncio.shield(self._connection)

    def is_usable(self) -> bool:
        return self._loop.is_running() and not self.task.done() and not self._closing.is_set()

    async def close(self) -> None:
        self._closing.set()
        await asyncio.shield(self.task)

    def close_soon(self) -> None:
        self._loop.post(self._closing.set)

    async def _hold(self, connect: Callable[[], AbstractAsyncContextManager[ConnectedT]]) -> None:
        try:
            async with connect() as connection:
                self._connection.set_result(connection)
                await self._closing.wait()
        except BaseException as error:
            if self._connection.done():
                raise
            self._connection.set_exception(error)
            self._connection.exception()  # marks the error as seen: callers that wait raise it
