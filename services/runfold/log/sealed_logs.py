"""Logs that a tail follows and that go on elsewhere: a seal mark was their last record, their topic
is missing, or the topic has no such offset.

    looks where the log goes on --> archived records, if the tail is behind --> the next topic
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final

from runfold.log.archived_logs import ARCHIVE
from runfold.log.fetch_answer import FetchedRecords
from runfold.log.leaders import Leaders
from runfold.log.placing import Followed
from runfold.log.reader import LogGoneError, look_up_segments, read_fetches
from runfold.log.settings import LogSettings
from runfold.telemetry import outages
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.topics import Partition

_PAUSE_SECONDS, _PAUSE_MAX_SECONDS = 0.02, 5.0
"""The pauses between two looks."""

_LOOK_UP_SECONDS: Final = 0.5
"""From this pause on, the catalog is read: until then others may tell the entry."""

_LOOKS, _RARE_LOOKS = 15, 60
"""After so many looks, only each 60th reads the catalog: a mark may be no archiver's."""

RUN: Final = ".run."
"""What the names of the topics of runs contain, and no other names of topics."""

_ARCHIVE: Final = "The archive"

_log = logging.getLogger(__name__)

Move = Callable[[Followed, Partition, int], None]
"""Follows a log in another topic, from an offset on."""

HandOver = Callable[[Followed, FetchedRecords], Awaitable[None]]
"""Takes archived records when there is room for them."""


class SealedLogs:
    """The logs of a tail that wait for their next topic, each with a task. `is_followed` says
    whether the tail still follows a log.
    """

    def __init__(
        self,
        settings: LogSettings,
        leaders: Leaders,
        *,
        is_followed: Callable[[Followed], bool],
        move: Move,
        hand_over: HandOver,
    ) -> None:
        self._settings = settings
        self._leaders = leaders
        self._is_followed = is_followed
        self._move = move
        self._hand_over = hand_over
        self._tasks: dict[Followed, asyncio.Task[None]] = {}

    def add(self, followed: Followed, *, at_once: bool = False) -> None:
        """Looks where a log goes on. `at_once` asks the catalog without waiting for others."""
        if RUN in followed.log.topic and followed not in self._tasks:
            task = self._tasks[followed] = asyncio.create_task(self._go_on(followed, at_once=at_once))
            task.add_done_callback(lambda _: self._tasks.pop(followed, None))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _go_on(self, followed: Followed, *, at_once: bool) -> None:
        pause, looks, warned = _LOOK_UP_SECONDS if at_once else _PAUSE_SECONDS, 0, ""
        while self._is_followed(followed):
            try:
                if await self._has_moved(followed):
                    return
                looks += 1
                if pause >= _LOOK_UP_SECONDS and (looks <= _LOOKS or looks % _RARE_LOOKS == 0):
                    await self._look_up(followed)
                    if await self._has_moved(followed):
                        return
            except UnavailableError as error:
                if error.server == ARCHIVE:
                    outages.failed(_ARCHIVE, error.reason)
                await asyncio.sleep(_PAUSE_MAX_SECONDS)
                continue
            except (ConfigurationError, ArchiveDamagedError) as error:
                if str(error) != warned:
                    warned = str(error)
                    _log.warning("%s is not followed: %s", followed.log.topic, warned)
                await asyncio.sleep(_PAUSE_MAX_SECONDS)
                continue
            if not followed.is_sealed and followed.broker is not None and not followed.is_doubtful:
                return  # the topic was only new
            if followed.is_doubtful:
                followed.is_doubtful, followed.is_lost = False, True
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_SECONDS)

    async def _has_moved(self, followed: Followed) -> bool:
        """Follows the log where it goes on, as far as the process knows that."""
        while (stretch := self._leaders.stretch(followed.log, followed.position)).topic is None:
            assert stretch.end is not None
            reading = read_fetches(
                self._settings_of(followed),
                followed.log,
                first_offset=followed.position,
                end=stretch.end,
                leaders=self._leaders,
            )
            with suppress(LogGoneError):
                async with aclosing(reading) as fetches:
                    async for fetched in fetches:
                        if not self._is_followed(followed):
                            return True
                        await self._hand_over(followed, fetched)
            outages.answered(_ARCHIVE)
            followed.position = max(followed.position, stretch.end)
        at = Partition(stretch.topic, followed.log.partition)
        if at == followed.at:
            return False
        self._move(followed, at, max(followed.position, stretch.begin))
        return True

    async def _look_up(self, followed: Followed) -> None:
        settings = self._settings_of(followed)
        run = settings.topics.parse_run(followed.log.topic)
        if run is not None:
            book = self._leaders.segments(settings.topics)
            await look_up_segments(settings, self._leaders, book, run)

    def _settings_of(self, followed: Followed) -> LogSettings:
        """The settings for the log's prefix: a tail may follow logs of several."""
        prefix = followed.log.topic.partition(".")[0]
        if prefix == self._settings.prefix:
            return self._settings
        return self._settings.model_copy(update={"prefix": prefix, "partitions": None})
