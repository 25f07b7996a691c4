"""Runs triggers when they are due: of streams, of completed runs, and of generations whose process
has died.

From time to time the runner reads the logs of generations that have grown. So a trigger that a dead
process left unanswered is answered by another process, or by the same one after its restart. At its
start the runner reads all logs of generations from the beginning; triggers that are due run
meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Self

from runfold.client.runfold import Runfold
from runfold.generation.generator import Generator
from runfold.generation.trigger_log import TriggerLog
from runfold.generation.triggers import Reason, due, due_at
from runfold.log.ends import LogEnds
from runfold_schemas.catalog import Life
from runfold_schemas.errors import (
    BankNotFoundError,
    NoModelError,
    RejectedError,
    RunEndedError,
    RunfoldError,
    UnavailableError,
)
from runfold_schemas.memories import GENERATION_LOG_PREFIX, is_generation_log
from runfold_schemas.runs import RunCompleted

SWEEP_SECONDS: Final = 10.0
"""How often the logs of other processes' generations are read."""

TAKE_UP_SECONDS: Final = 300.0
"""How long a trigger is left to the process that published it. Two processes that answer do no
harm, but one of them asks the model in vain.
"""

_RETRY_SECONDS: Final = 15.0

_GRACE_SECONDS: Final = 10.0
"""How long the end of the process waits for generations. Other processes finish the rest."""

_KEPT_SECONDS: Final = 60.0
"""How long a stream without pending contents is kept in memory after this process last used it."""

_AT_ONCE_MAX: Final = 4
"""How many generations run at a time, without those that a caller waits for, and how many logs are
read at a time.
"""

_log = logging.getLogger(__name__)


class TriggerRunner:
    """Use it as an async context manager: inside, triggers are run when they are due.

    `generator` returns the generator of the current connection, or raises `UnavailableError`.
    """

    def __init__(
        self,
        generator: Callable[[], Generator],
        *,
        sweep_seconds: float = SWEEP_SECONDS,
        take_up_seconds: float = TAKE_UP_SECONDS,
    ) -> None:
        self.generator = generator
        self._sweep_seconds = sweep_seconds
        self._take_up_seconds = take_up_seconds
        self._runfold: Runfold | None = None
        self._logs: dict[str, TriggerLog] = {}
        """The logs in which a trigger may become due, by run."""
        self._read_to: dict[str, int] = {}
        """The offset up to which this process has read the log of each topic."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(_AT_ONCE_MAX)
        self._stopping = asyncio.Event()
        self._has_read_logs = False
        self._scheduling: asyncio.Task[None]
        self._sweeping: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._scheduling = asyncio.create_task(self._schedule())
        self._sweeping = asyncio.create_task(self._sweep_always())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._stopping.set()
        self.look()
        tasks = [self._scheduling, self._sweeping, *self._running.values()]
        _, pending = await asyncio.wait(tasks, timeout=_GRACE_SECONDS)
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_busy(self) -> bool:
        """Whether a trigger is at work, or will be due without any new content. Before the logs
        have been read for the first time, this is not known.
        """
        return not self._has_read_logs or bool(self._running) or any(map(self._has_work, self._logs.values()))

    def trigger_log_of(self, life: Life) -> TriggerLog:
        """The log of a generation's run, which is kept in memory for some time. Raises
        `UnavailableError`.
        """
        log = self._cached_log(life)
        log.used_at = time.monotonic()
        return log

    def look(self) -> None:
        """Makes the runner look whether a trigger is due."""
        self._changed.set()

    def _cached_log(self, life: Life) -> TriggerLog:
        generator = self._current_generator()
        log = self._logs.get(life.run_id)
        if log is None or log.appender.life.log_id != life.log_id:
            log = self._logs[life.run_id] = TriggerLog(
                generator, generator.runfold.connection.appender_of(life)
            )
        return log

    async def _schedule(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            self._start_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._changed.wait()

    async def _sweep_always(self) -> None:
        while not self._stopping.is_set():
            await self._sweep_and_log_errors()
            self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._sweep_seconds):
                    await self._stopping.wait()

    def _start_due(self) -> None:
        for log in list(self._logs.values()):
            if self._is_at_work(log):
                continue
            if self._is_due(log):
                self._running[log.appender.run_id] = asyncio.create_task(self._run(log))
            elif self._is_idle(log):
                self._forget(log)

    def _is_at_work(self, log: TriggerLog) -> bool:
        return log.appender.run_id in self._running or log.answering.locked()

    def _has_work(self, log: TriggerLog) -> bool:
        state = log.state
        is_unfinished = not state.is_stream and not state.has_ended and state.answered_at is not None
        is_pending = due_at(state) is not None or due(state, _now()) is not None
        return log.answering.locked() or state.unanswered is not None or is_unfinished or is_pending

    def _is_idle(self, log: TriggerLog) -> bool:
        """Whether the log is a stream without anything to do, which was not used lately."""
        is_unused = time.monotonic() > log.used_at + _KEPT_SECONDS
        return log.state.is_stream and log.state.is_settled and is_unused

    def _is_due(self, log: TriggerLog) -> bool:
        if time.monotonic() < self._not_before.get(log.appender.run_id, 0.0):
            return False
        return self._has_trigger_for_us(log) or self._is_abandoned(log) or self._reason(log) is not None

    def _reason(self, log: TriggerLog) -> Reason | None:
        """The condition by which memories have to be generated now. A flush is left for some time
        to the process that ingested the contents.
        """
        reason = due(log.state, _now())
        is_overdue = _now() >= log.state.content_at + self._take_up_seconds * 1000
        return reason if reason != "flush" or is_overdue else None

    def _has_trigger_for_us(self, log: TriggerLog) -> bool:
        """Whether a trigger is unanswered that this process published, or that is overdue."""
        unanswered = log.state.unanswered
        if unanswered is None:
            return False
        is_overdue = _now() >= unanswered.log_time + self._take_up_seconds * 1000
        return is_overdue or unanswered.event.event_id in log.own_triggers

    def _is_abandoned(self, log: TriggerLog) -> bool:
        """Whether the log is not a stream and has its answer, but the process that should complete
        the run has died.
        """
        state = log.state
        if state.is_stream or state.has_ended or state.unanswered is not None or state.answered_at is None:
            return False
        return _now() >= state.answered_at + self._take_up_seconds * 1000

    async def _run(self, log: TriggerLog) -> None:
        """Publishes a trigger if one is due, and answers the unanswered trigger."""
        run_id = log.appender.run_id
        try:
            async with self._slots, log.answering:
                await self._work(log)
        except RunfoldError as error:
            _log.warning("memories of run %s could not be generated yet: %s", run_id, error)
            self._not_before[run_id] = time.monotonic() + _RETRY_SECONDS
        except Exception:  # noqa: BLE001  # a defect that shows with one log does not stop the others
            _log.exception("memories of run %s could not be generated", run_id)
            self._not_before[run_id] = time.monotonic() + _RETRY_SECONDS
        else:
            self._not_before.pop(run_id, None)
        finally:
            self._running.pop(run_id, None)
            self.look()

    async def _work(self, log: TriggerLog) -> None:
        await log.catch_up()
        if reason := self._reason(log):
            await log.trigger(reason)
            await log.catch_up()
        try:
            if self._has_trigger_for_us(log):
                await log.answer()
            elif self._is_abandoned(log):
                await log.finish()
            else:
                return
        except BankNotFoundError as error:
            _log.info("run %s is completed without memories: %s", log.appender.run_id, error)
            await _complete(log)
        else:
            await _complete_unless_stream(log)

    async def _sweep_and_log_errors(self) -> None:
        try:
            await self._sweep()
            self._has_read_logs = True
        except NoModelError:
            pass  # this process cannot answer anything
        except UnavailableError as error:
            _log.info("unanswered triggers of other processes are read later: %s", error)
        except Exception as error:  # noqa: BLE001  # after any error, triggers that are known are still run
            _log.warning("unanswered triggers of other processes could not be read: %s", error)

    async def _sweep(self) -> None:
        runfold = self._current_generator().runfold
        open_logs = {
            runfold.connection.topics.run(life.run_id, life.log_id): life
            for life in await runfold.connection.catalog.open_lives(GENERATION_LOG_PREFIX)
            if is_generation_log(life.run_id)
        }
        ended = self._logs.keys() - {life.run_id for life in open_logs.values()} - self._running.keys()
        for run_id in ended:
            self._forget(self._logs[run_id])
        if not open_logs:
            return
        self._read_to = {topic: end for topic, end in self._read_to.items() if topic in open_logs}
        segments = runfold.connection.catalog.segments
        async with LogEnds.connect(runfold.connection.settings, segments=segments) as ends:
            end = await ends.ends(open_logs)
        await self._read_logs(
            life for topic, life in open_logs.items() if end[topic] > self._read_to.get(topic, 0)
        )

    async def _read_logs(self, lives: Iterable[Life]) -> None:
        async def read(life: Life) -> None:
            async with at_once:
                if self._stopping.is_set():
                    return
                log = self._cached_log(life)
                try:
                    await log.catch_up()
                except RunfoldError as error:
                    _log.warning("the log of run %s could not be read: %s", life.run_id, error)
                self._read_to[_topic(log)] = log.state.next_offset
                if self._is_idle(log) and not self._is_at_work(log):
                    self._forget(log)
                else:
                    self.look()

        at_once = asyncio.Semaphore(_AT_ONCE_MAX)
        await asyncio.gather(*(read(life) for life in lives))

    def _current_generator(self) -> Generator:
        """The generator of the current connection. The logs of an earlier connection are
        dropped.
        """
        generator = self.generator()
        if generator.runfold is not self._runfold:
            self._runfold = generator.runfold
            self._logs.clear()
            self._read_to.clear()
        return generator

    def _forget(self, log: TriggerLog) -> None:
        self._read_to[_topic(log)] = log.state.next_offset
        self._logs.pop(log.appender.run_id, None)
        self._not_before.pop(log.appender.run_id, None)

    def _pause(self) -> float:
        """The seconds until the next trigger is due, at most those between two sweeps."""
        now, wall = time.monotonic(), _now()
        pauses = [self._sweep_seconds]
        for run_id, log in self._logs.items():
            if self._is_at_work(log):
                continue
            until_retry = self._not_before.get(run_id, 0.0) - now
            if (at := due_at(log.state)) is not None:
                pauses.append(max((at - wall) / 1000, until_retry))
            elif until_retry > 0:
                pauses.append(until_retry)
        return max(min(pauses), 0.0)


async def _complete_unless_stream(log: TriggerLog) -> None:
    """Completes the run of the log, unless it is a stream, to which contents may follow."""
    if not log.state.is_stream:
        await _complete(log)


async def _complete(log: TriggerLog) -> None:
    if not log.state.has_ended:
        with suppress(RunEndedError, RejectedError):
            await log.appender.append(RunCompleted())
        await log.catch_up()


def _topic(log: TriggerLog) -> str:
    return log.generator.runfold.connection.topics.run(log.appender.run_id, log.appender.life.log_id)


def _now() -> int:
    return int(time.time() * 1000)
