"""What runs triggers when they are due: of streams, of completed runs, and of generations whose
process has died.

From time to time the logs of generations that have grown are read. So what somebody has left
unanswered is taken up by another process, or by the same after its restart. At the start every such
log is read, from its beginning, while what is due already runs.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Self

from runfold.client.runfold import Runfold
from runfold.generation.answering import is_log
from runfold.generation.generator import Generator
from runfold.generation.logs import log_of
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

SWEEP_SECONDS: Final = 10.0
"""How often it is looked for what nobody here has ingested."""

TAKE_UP_SECONDS: Final = 300.0
"""How long a trigger is left to who has put it into the log. Two who answer do no harm, but one of
them asks the model in vain.
"""

_RETRY_SECONDS: Final = 15.0

_GRACE_SECONDS: Final = 10.0
"""For what is at work when the process is to end. What is given up then is taken up by somebody
else.
"""

_KEPT_SECONDS: Final = 60.0
"""How long a stream is kept at hand into which somebody here has ingested, and in which nothing is
pending.
"""

_AT_ONCE_MAX: Final = 4
"""Generations at a time, beside those that somebody waits for, and logs that are read at a time."""

_log = logging.getLogger(__name__)


class TriggerRunner:
    """Use it as an async context manager: in it, triggers are run when they are due.

    `generator` gives the one of the connection that stands, or raises `UnavailableError`.
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
        """Those in which something may become due, by run."""
        self._read_to: dict[str, int] = {}
        """How far the log of each topic was read here, also if nothing was due in it."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(_AT_ONCE_MAX)
        self._stopping = asyncio.Event()
        self._tending: asyncio.Task[None]
        self._sweeping: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._tending = asyncio.create_task(self._tend())
        self._sweeping = asyncio.create_task(self._sweep_always())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._stopping.set()
        self.look()
        tasks = [self._tending, self._sweeping, *self._running.values()]
        _, pending = await asyncio.wait(tasks, timeout=_GRACE_SECONDS)
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def log_of(self, life: Life) -> TriggerLog:
        """The log of a run that is one of a generation, which is kept at hand for some time. Raises
        `UnavailableError`.
        """
        log = self._known(life)
        log.used_at = time.monotonic()
        return log

    def look(self) -> None:
        """Something may be due."""
        self._changed.set()

    def _known(self, life: Life) -> TriggerLog:
        generator = self._current()
        known = self._logs.get(life.run_id)
        if known is None or known.run.life.log_id != life.log_id:
            known = self._logs[life.run_id] = TriggerLog(generator, log_of(generator.runfold, life))
        return known

    async def _tend(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            self._start_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._changed.wait()

    async def _sweep_always(self) -> None:
        while not self._stopping.is_set():
            await self._sweep_quietly()
            self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._sweep_seconds):
                    await self._stopping.wait()

    def _start_due(self) -> None:
        for log in list(self._logs.values()):
            if self._is_at_work(log):
                continue
            if self._is_due(log):
                self._running[log.run.run_id] = asyncio.create_task(self._run(log))
            elif self._is_idle(log):
                self._forget(log)

    def _is_at_work(self, log: TriggerLog) -> bool:
        return log.run.run_id in self._running or log.answering.locked()

    def _is_idle(self, log: TriggerLog) -> bool:
        """Whether nothing will happen in a stream before something is ingested, and nobody has done
        so lately.
        """
        is_unused = time.monotonic() > log.used_at + _KEPT_SECONDS
        return log.state.is_stream and log.state.is_settled and is_unused

    def _is_due(self, log: TriggerLog) -> bool:
        if time.monotonic() < self._not_before.get(log.run.run_id, 0.0):
            return False
        return self._is_for_us(log) or self._is_over(log) or self._reason(log) is not None

    def _reason(self, log: TriggerLog) -> Reason | None:
        """Why memories are to be generated now. What is due at once is the matter of who has
        ingested it, for some time.
        """
        reason = due(log.state, _now())
        is_left = _now() >= log.state.content_at + self._take_up_seconds * 1000
        return reason if reason != "flush" or is_left else None

    def _is_for_us(self, log: TriggerLog) -> bool:
        """Whether a trigger is unanswered that nobody else is at work on."""
        unanswered = log.state.unanswered
        if unanswered is None:
            return False
        is_left = _now() >= unanswered.log_time + self._take_up_seconds * 1000
        return is_left or unanswered.event.event_id in log.asked

    def _is_over(self, log: TriggerLog) -> bool:
        """Whether whoever was to complete the run has died: a log that is no stream's has nothing
        more to come.
        """
        state = log.state
        if state.is_stream or state.has_ended or state.unanswered is not None or state.answered_at is None:
            return False
        return _now() >= state.answered_at + self._take_up_seconds * 1000

    async def _run(self, log: TriggerLog) -> None:
        """Answers the trigger that is unanswered, or the one that is due now."""
        run_id = log.run.run_id
        try:
            async with self._slots, log.answering:
                await self._work(log)
        except RunfoldError as error:
            _log.warning("no memories were generated of run %s yet: %s", run_id, error)
            self._not_before[run_id] = time.monotonic() + _RETRY_SECONDS
        except Exception:  # noqa: BLE001  # a mistake that one log brings to light does not stop the others
            _log.exception("no memories were generated of run %s", run_id)
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
            if self._is_for_us(log):
                await log.answer()
            elif self._is_over(log):
                await log.finish()
            else:
                return
        except BankNotFoundError as error:
            _log.info("run %s ends, of which nothing is remembered: %s", log.run.run_id, error)
            await _complete(log)
        else:
            await _complete_unless_stream(log)

    async def _sweep_quietly(self) -> None:
        try:
            await self._sweep()
        except NoModelError:
            pass  # nothing can be answered here
        except UnavailableError as error:
            _log.info("generations that others have left are looked for later: %s", error)
        except Exception as error:  # noqa: BLE001  # whatever it is, what is known here is run all the same
            _log.warning("it was not looked for generations that others have left: %s", error)

    async def _sweep(self) -> None:
        runfold = self._current().runfold
        await runfold.connection.catalog.follow_all()
        standing = {
            runfold.connection.topics.run(life.run_id, life.log_id): life
            for life in runfold.connection.catalog.lives()
            if is_log(life.run_id) and not life.ended and not life.deleted
        }
        over = self._logs.keys() - {life.run_id for life in standing.values()} - self._running.keys()
        for run_id in over:
            self._forget(self._logs[run_id])
        if not standing:
            return
        self._read_to = {topic: end for topic, end in self._read_to.items() if topic in standing}
        async with LogEnds.connect(runfold.connection.settings) as ends:
            end = await ends.ends(standing)
        await self._read(life for topic, life in standing.items() if end[topic] > self._read_to.get(topic, 0))

    async def _read(self, lives: Iterable[Life]) -> None:
        async def read(life: Life) -> None:
            async with at_once:
                if self._stopping.is_set():
                    return
                log = self._known(life)
                try:
                    await log.catch_up()
                except RunfoldError as error:
                    _log.warning("the log of run %s was not read: %s", life.run_id, error)
                self._read_to[_topic(log)] = log.state.next_offset
                if self._is_idle(log) and not self._is_at_work(log):
                    self._forget(log)
                else:
                    self.look()

        at_once = asyncio.Semaphore(_AT_ONCE_MAX)
        await asyncio.gather(*(read(life) for life in lives))

    def _current(self) -> Generator:
        """The generator; what belongs to an earlier connection is forgotten."""
        generator = self.generator()
        if generator.runfold is not self._runfold:
            self._runfold = generator.runfold
            self._logs.clear()
            self._read_to.clear()
        return generator

    def _forget(self, log: TriggerLog) -> None:
        self._read_to[_topic(log)] = log.state.next_offset
        self._logs.pop(log.run.run_id, None)
        self._not_before.pop(log.run.run_id, None)

    def _pause(self) -> float:
        """Until the next thing that is due; what has no time of its own is looked for as often as
        others' logs are.
        """
        now, wall = time.monotonic(), _now()
        pauses = [self._sweep_seconds]
        for run_id, log in self._logs.items():
            if self._is_at_work(log):
                continue
            held_up = self._not_before.get(run_id, 0.0) - now
            if (at := due_at(log.state)) is not None:
                pauses.append(max((at - wall) / 1000, held_up))
            elif held_up > 0:
                pauses.append(held_up)
        return max(min(pauses), 0.0)


async def _complete_unless_stream(log: TriggerLog) -> None:
    """A log that is no stream's has nothing more to come."""
    if not log.state.is_stream:
        await _complete(log)


async def _complete(log: TriggerLog) -> None:
    if not log.state.has_ended:
        with suppress(RunEndedError, RejectedError):
            await log.run.complete()
        await log.catch_up()


def _topic(log: TriggerLog) -> str:
    return log.generator.runfold.connection.topics.run(log.run.run_id, log.run.life.log_id)


def _now() -> int:
    return int(time.time() * 1000)
