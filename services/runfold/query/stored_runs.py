"""Runs as they are stored in MongoDB, in the current edition.

The pointer to the current edition is read once a second, so readers follow the switch of a rebuild.
Around a switch, two editions are read, and each run is taken from the edition that reaches further.
The pages of both editions hold the same bytes of the log, so both are right, and no reader sees an
older state than before.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, Self

from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.edition import Edition
from runfold.store.editions import POINTER_LOOK_SECONDS, RETIRED_READ, Editions
from runfold.store.runs import RunFilter, RunState, cursor_after, sort_key
from runfold_schemas.errors import UnavailableError

_log = logging.getLogger(__name__)


class StoredRun(NamedTuple):
    """A run's saved state, and the end of its pages, which may be later."""

    edition: Edition
    state: RunState
    end: int

    async def refresh(self) -> "StoredRun":
        """The same state, with the pages that were stored since. It costs half of `find`."""
        pages = self.edition.pages
        return self._replace(end=await pages.end(self.state.log_id, first_offset=self.end))


class StoredRuns:
    """Reads runs from MongoDB. Use it as an async context manager. Entering waits for one attempt
    to connect; if it fails, further attempts follow in the background.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database: Database = None
        self._edition: Edition | None = None
        self._joined: Edition | None = None
        self._previous: Edition | None = None
        self._previous_until = 0.0
        self._looks = self._followed = 0
        self._tried = asyncio.Event()
        self._watching: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        self._watching.add_done_callback(lambda _: self._tried.set())
        await self._tried.wait()
        if self._watching.done():  # with an error that another attempt would repeat
            await self._watching
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching

    async def current(self) -> Edition | None:
        """The current edition; None if nothing was ever projected. Raises `UnavailableError`."""
        if self._edition is None:
            await self.look()
        return self._edition

    async def look(self) -> None:
        """Reads the pointer now. Raises `UnavailableError`."""
        if self._database is None:
            raise UnavailableError("MongoDB", reason="it has not answered since this service started")
        self._looks += 1
        number = self._looks
        pointer = await Editions(self._database).pointer()
        # Two reads of the pointer may end in another order than they began.
        if pointer is None or number < self._followed:
            return
        self._followed = number
        if self._edition is None or self._edition.name != pointer.current:
            _log.info("reading edition %s", pointer.current)
            # The previous edition is read too until all projectors have surely left it, and no
            # longer before it is dropped. The pointer names no previous edition if everything was
            # thrown away: then the last worker of the old edition may still write into it.
            self._previous_until = time.monotonic() + self._settings.retire_seconds * RETIRED_READ
            before = self._edition
            self._previous = before if before is not None and before.name == pointer.previous else None
            self._edition = Edition.of(self._database, pointer.current)
        self._joined = Edition.of(self._database, pointer.joined) if pointer.joined else None

    async def editions(self) -> list[Edition]:
        """The editions to read, the current one first. Around a switch there are several, and none
        if nothing was ever projected.

        Raises `UnavailableError`.
        """
        await self.current()
        return self._readable()

    async def has_changed(self, edition: Edition | None) -> bool:
        """Whether another edition is current by now. A reader that finds nothing asks this, because
        its edition may have been dropped.
        """
        await self.look()
        return self._edition is not edition

    async def find(self, run_id: str) -> StoredRun | None:
        """The run as it is stored. Raises `UnavailableError`."""
        current = await self.current()
        by_edition = [await _find(edition, run_id) for edition in self._readable()]
        stored = [run for run in by_edition if run is not None]
        if not stored and await self.has_changed(current):
            return await self.find(run_id)
        return max(stored, key=attrgetter("end"), default=None)

    async def runs(
        self, run_filter: RunFilter, *, limit: int, cursor: str | None = None
    ) -> tuple[list[RunState], str | None]:
        """A page of runs, newest first, and the cursor of the next page. Around a switch the page
        may be shorter than `limit`.

        Raises `InvalidEventError` for a foreign cursor, and `UnavailableError`.
        """
        current = await self.current()
        editions = self._readable()
        pages = [await edition.runs.list(run_filter, limit=limit, cursor=cursor) for edition in editions]
        furthest = _furthest(state for states, _ in pages for state in states)
        if not furthest and await self.has_changed(current):
            return await self.runs(run_filter, limit=limit, cursor=cursor)
        states = sorted(furthest.values(), key=sort_key, reverse=True)
        has_more = len(states) > limit or any(next_cursor for _, next_cursor in pages)
        next_cursor = cursor_after(states[limit - 1]) if has_more else None
        return await _from_furthest(states[:limit], run_filter, editions), next_cursor

    async def first_times(self, log_ids: Sequence[str]) -> dict[str, int]:
        """When the first record of each log was appended, in milliseconds. Logs that are not stored
        yet have no entry.
        """
        await self.current()
        times: dict[str, int] = {}
        for edition in self._readable():
            times |= await edition.pages.first_times(log_ids)
        return times

    def _readable(self) -> list[Edition]:
        previous = self._previous if time.monotonic() < self._previous_until else None
        return [edition for edition in (self._edition, self._joined, previous) if edition is not None]

    async def _watch(self) -> None:
        while True:
            try:
                async with connect(self._settings.mongo, self._settings.database) as database:
                    self._database = database
                    await self._keep_looking()
            except UnavailableError as error:
                _log.warning("%s; trying again in %s s", error, POINTER_LOOK_SECONDS)
            self._tried.set()
            await asyncio.sleep(POINTER_LOOK_SECONDS)

    async def _keep_looking(self) -> None:
        """Never returns. The driver reconnects by itself, so only the first connection is
        repeated.
        """
        while True:
            with contextlib.suppress(UnavailableError):
                await self.look()
            self._tried.set()
            await asyncio.sleep(POINTER_LOOK_SECONDS)


async def _find(edition: Edition, run_id: str) -> StoredRun | None:
    state = await edition.runs.get(run_id)
    if state is None:
        return None
    end = await edition.pages.end(state.log_id, first_offset=state.record.next_offset)
    return StoredRun(edition, state, end)


async def _from_furthest(
    states: list[RunState], run_filter: RunFilter, editions: Sequence[Edition]
) -> list[RunState]:
    """The listed runs as they are in the edition that reaches further. That edition need not have
    listed them. A run that matches the filter only by its older state is left out.
    """
    if len(editions) == 1:
        return states
    run_ids = [state.run_id for state in states]
    by_edition = [await edition.runs.get_many(run_ids) for edition in editions]
    furthest = _furthest([*states, *(state for found in by_edition for state in found.values())])
    return [furthest[run_id] for run_id in run_ids if run_filter.matches(furthest[run_id].record)]


def _furthest(states: Iterable[RunState]) -> dict[str, RunState]:
    """The state of each run that reaches further."""
    return {state.run_id: state for state in sorted(states, key=attrgetter("record.next_offset"))}
