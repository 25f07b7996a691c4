"""What is stored of runs, in the edition that is read.

The pointer is looked up once a second, so that a rebuild's switch is followed. Around a switch two
editions are read, and of each run the one that reaches further: the pages of both hold the log's
own bytes, so either is right, and nobody sees anything older than what the other edition showed
before.
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


class Snapshot(NamedTuple):
    """A run's saved state, and the end of its pages, which may be further."""

    edition: Edition
    state: RunState
    end: int

    async def again(self) -> "Snapshot":
        """The same state, with the pages that were stored since: half of what finding it anew
        costs.
        """
        pages = self.edition.pages
        return self._replace(end=await pages.end(self.state.log_id, first_offset=self.end))


class Snapshots:
    """What is in MongoDB. Use it as an async context manager: entering waits for one attempt to
    reach MongoDB and goes on if that failed; the attempts go on in the background.
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
        if self._watching.done():  # with an error that no other attempt would cure
            await self._watching
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching

    async def current(self) -> Edition | None:
        """The edition that is read; None where nothing was ever projected. Raises
        `UnavailableError`.
        """
        if self._edition is None:
            await self.look()
        return self._edition

    async def look(self) -> None:
        """Looks now where the pointer points. Raises `UnavailableError`."""
        if self._database is None:
            raise UnavailableError("MongoDB", reason="it has not answered since this service started")
        self._looks += 1
        number = self._looks
        pointer = await Editions(self._database).pointer()
        # Of two looks at once the one that began first may be answered last.
        if pointer is None or number < self._followed:
            return
        self._followed = number
        if self._edition is None or self._edition.name != pointer.current:
            _log.info("reading edition %s", pointer.current)
            # The old one is read beside the new one until the projectors have surely taken over and
            # left it, and let go before it is dropped; but where everything was thrown away, its
            # last worker may still write into what is left of it.
            self._previous_until = time.monotonic() + self._settings.retire_seconds * RETIRED_READ
            known = self._edition
            self._previous = known if known is not None and known.name == pointer.previous else None
            self._edition = Edition.of(self._database, pointer.current)
        self._joined = Edition.of(self._database, pointer.joined) if pointer.joined else None

    async def editions(self) -> list[Edition]:
        """Those that are read, the current one first: more than one around a switch, none where
        nothing was ever projected.

        Raises `UnavailableError`.
        """
        await self.current()
        return self._read()

    async def left(self, edition: Edition | None) -> bool:
        """Whether another edition is read by now. For who found nothing: it may have read one that
        is gone.
        """
        await self.look()
        return self._edition is not edition

    async def find(self, run_id: str) -> Snapshot | None:
        """A run as it is stored. Raises `UnavailableError`."""
        current = await self.current()
        snapshots = [await _find(edition, run_id) for edition in self._read()]
        found = [snapshot for snapshot in snapshots if snapshot is not None]
        if not found and await self.left(current):
            return await self.find(run_id)
        return max(found, key=attrgetter("end"), default=None)

    async def runs(
        self, wanted: RunFilter, *, limit: int, cursor: str | None = None
    ) -> tuple[list[RunState], str | None]:
        """A page of runs, newest first, and the cursor of the next page. Around a switch it may be
        shorter than `limit`.

        Raises `InvalidEventError` for a foreign cursor, and `UnavailableError`.
        """
        current = await self.current()
        editions = self._read()
        lists = [await edition.runs.list(wanted, limit=limit, cursor=cursor) for edition in editions]
        found = _furthest(state for states, _ in lists for state in states)
        if not found and await self.left(current):
            return await self.runs(wanted, limit=limit, cursor=cursor)
        states = sorted(found.values(), key=sort_key, reverse=True)
        more = len(states) > limit or any(following for _, following in lists)
        following = cursor_after(states[limit - 1]) if more else None
        return await _as_furthest(states[:limit], wanted, editions), following

    async def first_times(self, log_ids: Sequence[str]) -> dict[str, int]:
        """When the first record of each log was appended, in milliseconds; nothing of a log that is
        not stored yet.
        """
        await self.current()
        times: dict[str, int] = {}
        for edition in self._read():
            times |= await edition.pages.first_times(log_ids)
        return times

    def _read(self) -> list[Edition]:
        previous = self._previous if time.monotonic() < self._previous_until else None
        return [one for one in (self._edition, self._joined, previous) if one is not None]

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
        """Endless. The driver finds its way back to MongoDB by itself, so only the first connection
        is repeated.
        """
        while True:
            with contextlib.suppress(UnavailableError):
                await self.look()
            self._tried.set()
            await asyncio.sleep(POINTER_LOOK_SECONDS)


async def _find(edition: Edition, run_id: str) -> Snapshot | None:
    state = await edition.runs.get(run_id)
    if state is None:
        return None
    end = await edition.pages.end(state.log_id, first_offset=state.record.next_offset)
    return Snapshot(edition, state, end)


async def _as_furthest(
    listed: list[RunState], wanted: RunFilter, editions: Sequence[Edition]
) -> list[RunState]:
    """The runs as the edition has them that reaches further, which may be one that did not list
    them: without those that are wanted by an older state only.
    """
    if len(editions) == 1:
        return listed
    run_ids = [state.run_id for state in listed]
    states = [await edition.runs.get_many(run_ids) for edition in editions]
    furthest = _furthest([*listed, *(state for found in states for state in found.values())])
    return [furthest[run_id] for run_id in run_ids if wanted.matches(furthest[run_id].record)]


def _furthest(states: Iterable[RunState]) -> dict[str, RunState]:
    """Of each run the state that reaches further."""
    return {state.run_id: state for state in sorted(states, key=attrgetter("record.next_offset"))}
