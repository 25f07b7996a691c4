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
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Final, NamedTuple, Self

from runfold.encryption.sealing import Sealing, open_sealing
from runfold.log.leaders import Leaders
from runfold.log.segments import SegmentBook
from runfold.query.quarantine_look import QuarantineLook
from runfold.query.sealed_labels import check_filter
from runfold.settings import Settings
from runfold.store.damage import damaged
from runfold.store.database import Database, connect, sibling
from runfold.store.edition import Edition
from runfold.store.editions import POINTER_LOOK_SECONDS, RETIRED_READ, Editions
from runfold.store.quarantine import Quarantined
from runfold.store.run_filter import NEWEST_FIRST, RunFilter, RunOrder
from runfold.store.run_state import RunState, list_fields_of
from runfold_schemas.catalog import Life, Segments
from runfold_schemas.errors import UnavailableError
from runfold_schemas.topics import Partition

_REST_SECONDS: Final = 10.0
"""How long after its last reader one of many tenants is looked at."""

_STALE_SECONDS: Final = 5.0
"""A reader of a tenant that rested looks first."""

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
    to connect; if it fails, further attempts follow in the background. With `beside`, the
    connection to MongoDB is that of another one. With `leaders`, keys are read by their client, and
    with `sealing`, which is connected already, they are not read again.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        beside: "StoredRuns | None" = None,
        leaders: Leaders | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        self.log_settings = settings.log("runfold/query")
        topics = self.log_settings.topics
        self.segment_book: SegmentBook = SegmentBook(topics) if leaders is None else leaders.segments(topics)
        """Where the logs of runs lie, as far as this process knows."""
        self.damaged_logs: set[str] = set()
        """The logs with pages whose checksums are right and whose records cannot be read."""
        self.sealing: Sealing | None = sealing
        """Reveals what is sealed, if encryption is configured."""
        self._settings = settings
        self._beside = beside
        self._leaders = leaders
        self._database: Database = None
        self._edition: Edition | None = None
        self._joined: Edition | None = None
        self._previous: Edition | None = None
        self._previous_until = 0.0
        self._looks = self._followed = 0
        self._used_at = self._looked_at = time.monotonic()
        self._quarantine = QuarantineLook()
        self.folded_partitions: int | None = None
        """The number of partitions of the shared topics that the editions are folded from. None if
        it is unknown yet.
        """
        self._tried = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()
        self._watching: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        if self.sealing is None and self.log_settings.encryption_key is not None:
            self.sealing = await self._stack.enter_async_context(
                open_sealing(self.log_settings, leaders=self._leaders)
            )
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
        await self._stack.aclose()

    @property
    def database(self) -> Database:
        """Raises `UnavailableError` before MongoDB's first answer."""
        if self._database is None:
            raise UnavailableError("MongoDB", reason="it has not answered since this service started")
        return self._database

    async def current(self) -> Edition | None:
        """The current edition; None if nothing was ever projected. Raises `UnavailableError`."""
        self._used_at = time.monotonic()
        if self._used_at - self._looked_at > _STALE_SECONDS and self._beside is not None:
            await self._look_around()
        elif self._edition is None:
            await self.look()
        return self._edition

    async def look(self) -> None:
        """Reads the pointer now. Raises `UnavailableError`."""
        database = self.database
        self._looks += 1
        number = self._looks
        pointer = await Editions(database).pointer()
        # Two reads of the pointer may end in another order than they began.
        if pointer is None or number < self._followed:
            return
        self._followed, self.folded_partitions = number, pointer.partitions
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
        """The run as it is stored. Raises `DamagedError` if its state or the pages behind the state
        cannot be used, and `UnavailableError`.
        """
        current = await self.current()
        by_edition = [await _find(edition, run_id) for edition in self._readable()]
        stored = [run for run in by_edition if run is not None]
        if any(run.state.log_id in self.damaged_logs for run in stored):
            raise damaged("runs", run_id, "its pages cannot be read", cure=f"runfold rebuild {run_id}")
        if not stored and await self.has_changed(current):
            return await self.find(run_id)
        return max(stored, key=attrgetter("end"), default=None)

    async def runs(
        self,
        run_filter: RunFilter,
        *,
        limit: int,
        cursor: str | None = None,
        order: RunOrder = NEWEST_FIRST,
    ) -> tuple[list[RunState], str | None]:
        """A page of runs in this order, and the cursor of the next page. Around a switch the page
        may be shorter than `limit`. Damaged states are among the runs.

        Raises `InvalidEventError` for a foreign cursor and a sealed label, and `UnavailableError`.
        """
        check_filter(self.log_settings, run_filter.labels or ())
        current = await self.current()
        editions = self._readable()
        pages = [
            await edition.runs.list(run_filter, limit=limit, cursor=cursor, order=order)
            for edition in editions
        ]
        furthest = _furthest(state for states, _ in pages for state in states)
        if not furthest and await self.has_changed(current):
            return await self.runs(run_filter, limit=limit, cursor=cursor, order=order)
        states = sorted(furthest.values(), key=order.key, reverse=not order.ascending)
        has_more = len(states) > limit or any(next_cursor for _, next_cursor in pages)
        next_cursor = order.cursor_after(states[limit - 1]) if has_more else None
        return await _from_furthest(states[:limit], run_filter, editions), next_cursor

    async def of_session(self, session_id: str) -> list[Life]:
        """The lives of the runs that name the session. Raises `UnavailableError`."""
        await self.current()
        return [life for edition in self._readable() for life in await edition.runs.of_session(session_id)]

    async def first_times(self, log_ids: Sequence[str]) -> dict[str, int]:
        """When the first record of each log was appended, in milliseconds. Logs that are not stored
        yet have no entry.
        """
        await self.current()
        times: dict[str, int] = {}
        for edition in self._readable():
            times |= await edition.pages.first_times(log_ids)
        return times

    async def skipped(self, topic: str) -> frozenset[range]:
        """The offsets that an operator skipped in a run's topic. Raises `UnavailableError`."""
        by_edition = [await edition.skips.all([topic]) for edition in await self.editions()]
        return frozenset().union(*(skips.get(Partition(topic, 0), ()) for skips in by_edition))

    async def segments(self, run_id: str) -> Segments | None:
        """Where the log of a run lies that was sealed. None if it never was. Raises
        `UnavailableError`.
        """
        by_edition = [await edition.segments.get([run_id]) for edition in await self.editions()]
        entries = [entry for found in by_edition for entry in found.values()]
        return max(entries, key=attrgetter("base"), default=None)

    def may_be_quarantined(self, entry_id: str) -> bool:
        """Whether this id may be in quarantine, as of the last look at it, a second ago at most.
        True if there was no look at the current edition yet, or if there are too many entries. It
        costs nothing, so reads that nearly never concern a quarantine begin with it.
        """
        return self._quarantine.may_have(entry_id, self._edition)

    @property
    def degradation(self) -> list[str]:
        """What readiness says about the quarantine, as of the last look at it."""
        return self._quarantine.degradation

    async def quarantined(self, entry_id: str) -> Quarantined | None:
        """What is in quarantine under this id now. Raises `UnavailableError`."""
        edition = await self.current()
        return await edition.quarantine.get(entry_id) if edition is not None else None

    def _readable(self) -> list[Edition]:
        previous = self._previous if time.monotonic() < self._previous_until else None
        return [edition for edition in (self._edition, self._joined, previous) if edition is not None]

    async def _watch(self) -> None:
        while True:
            try:
                async with self._connect() as database:
                    self._database = database
                    await self._keep_looking()
            except UnavailableError as error:
                _log.warning("%s; trying again in %s s", error, POINTER_LOOK_SECONDS)
            self._tried.set()
            await asyncio.sleep(POINTER_LOOK_SECONDS)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Database]:
        if self._beside is None:
            async with connect(self._settings.mongo, self._settings.database) as database:
                yield database
        else:
            yield sibling(self._beside.database, self._settings.database)

    async def _keep_looking(self) -> None:
        """Never returns. The driver reconnects by itself, so only the first connection is
        repeated. One of many tenants rests while nobody reads it.
        """
        while True:
            if self._beside is None or time.monotonic() - self._used_at < _REST_SECONDS:
                with contextlib.suppress(UnavailableError):
                    await self._look_around()
            self._tried.set()
            await asyncio.sleep(POINTER_LOOK_SECONDS)

    async def _look_around(self) -> None:
        """Reads the pointer and the quarantine. Raises `UnavailableError`."""
        await self.look()
        if self._edition is not None:
            await self._quarantine.repeat(self._edition)
        self._looked_at = time.monotonic()


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
    return [
        state
        for state in (furthest[run_id] for run_id in run_ids)
        if run_filter.matches(state.record, list_fields_of(state))
    ]


def _furthest(states: Iterable[RunState]) -> dict[str, RunState]:
    """The state of each run that reaches further."""
    return {state.run_id: state for state in sorted(states, key=attrgetter("record.next_offset"))}
