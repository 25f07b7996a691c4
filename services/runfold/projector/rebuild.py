"""A rebuild: a projector that writes the next edition. It reads the catalog from the beginning,
folds every run, keeps up with new events, and then switches the pointer.

Readers use the old edition until shortly before the switch. Around the switch they use both, so
data that a reader saw never disappears. The projectors notice the switch within a second, take over
the new edition from the rebuild's worker, and leave the old edition, which they drop after
`retire_seconds`. If no projector runs, the rebuild itself waits for that time and drops it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import NamedTuple

from runfold.log.fetch_answer import silent_about
from runfold.log.partition_counts import counted
from runfold.log.settings import LogSettings
from runfold.projector.connection import connect_worker
from runfold.projector.intake import Entry
from runfold.projector.quarantine import DIED
from runfold.projector.rebuild_losses import (
    NAMED_MAX,
    Missing,
    RebuildLosses,
    RebuildLossesError,
    drop,
    find_losses,
    keep,
)
from runfold.projector.worker import Worker
from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.edition import Edition
from runfold.store.editions import POINTER_LOOK_SECONDS, Editions, new_edition
from runfold.store.quarantine import Quarantined, run_id_of
from runfold.store.reports import ReportStore
from runfold_schemas.errors import RunfoldError, UnavailableError
from runfold_schemas.lists import QuarantineKind
from runfold_schemas.topics import OFFSET_MAX, Partition

_LOOK_SECONDS = 0.25

_ENTRIES_AT_ONCE = 500

_JOIN_SECONDS = 3 * POINTER_LOOK_SECONDS
"""The time after which every reader uses both editions."""

_log = logging.getLogger(__name__)


class RebuildError(RunfoldError):
    """The rebuild was given up. The current edition is unchanged."""


class SetAsideError(RebuildError):
    """Readers would see less after the rebuild: what the current edition has folded is in
    quarantine in the new edition.
    """

    def __init__(self, entries: Sequence[Quarantined]) -> None:
        super().__init__(
            _told(
                "the current projections have what cannot be folded any more",
                [f"{each.id}, offset {each.offset}: {each.reason}" for each in entries],
                cure="Remove the cause and rebuild again, or skip the record of a run:"
                " `runfold quarantine skip RUN --offset N`",
            )
        )


class DeadlyRecordsError(RebuildError):
    """Records in quarantine that killed projectors would kill the rebuild, too."""

    def __init__(self, entries: Sequence[Quarantined]) -> None:
        super().__init__(
            _told(
                "these records killed projectors, and a rebuild reads them again",
                [f"{each.id}, offset {each.offset} of {each.topic}" for each in entries],
                cure="Skip them for ever, or try them again with more memory, and rebuild afterwards:"
                " `runfold quarantine skip ID`, `runfold quarantine retry ID`",
            )
        )


def _told(what: str, entries: Sequence[str], *, cure: str) -> str:
    """The text of an error, with a line for each entry up to a limit."""
    more = [f"and {len(entries) - NAMED_MAX:,} more"] if len(entries) > NAMED_MAX else []
    named = [f"  {each}" for each in (*entries[:NAMED_MAX], *more)]
    return "\n".join([f"{what}:", *named, f"Nothing was changed. {cure}"])


class RebuildNote:
    """What MongoDB notes about the rebuild that writes `edition`, for operators. An error of a note
    is logged only.
    """

    def __init__(self, database: Database, tenant: str, edition: str) -> None:
        self._reports = ReportStore(database)
        self._tenant = tenant
        self._fields = {
            "edition": edition,
            "started_at": datetime.now(UTC),
            "done_records": 0,
            "total_records": 0,
        }

    async def go_on(self, done: int, total: int) -> None:
        self._fields |= {"done_records": done, "total_records": total}
        await self._note("running")

    async def end(self, *, is_switched: bool) -> None:
        await self._note("done" if is_switched else "failed")

    async def _note(self, status: str) -> None:
        try:
            await self._reports.note_job("rebuild", self._tenant, {**self._fields, "status": status})
        except Exception as error:  # noqa: BLE001  # no note is worth the rebuild
            _log.warning("the rebuild is not noted as %s: %s", status, error)


class RebuildProgress(NamedTuple):
    """The number of records in the new edition, and in the old edition."""

    done: int
    total: int
    quarantined: tuple[str, ...] = ()
    """The ids of runs that are in quarantine in the new edition."""
    kept: int = 0
    """The number of runs without a log that are kept read-only."""
    dropped: int = 0
    """The number of runs without a log that are dropped."""


async def rebuild(
    settings: Settings,
    *,
    report: Callable[[RebuildProgress], None],
    switched: Callable[[], None],
    missing: Missing | None = None,
) -> RebuildProgress:
    """Rebuilds every projection from the log. Calls `report` with its progress, and `switched` when
    readers use the new edition. `missing` says what becomes of runs whose log is gone.

    Raises `RebuildLossesError` if logs are missing and `missing` is None, `DeadlyRecordsError` for
    records that killed projectors, `RebuildError` if another rebuild overtakes it, `SetAsideError`
    if readers would see less, and `UnavailableError`. The last three may be in a group.
    """
    log = await counted(settings.log("runfold/rebuild"))
    async with connect(settings.mongo, settings.database) as database:
        editions = Editions(database)
        old, new = await editions.current_or_first(), new_edition()
        before, after = Edition.of(database, old), Edition.of(database, new)
        with silent_about(await before.skips.reader()):
            losses = await find_losses(log, before)
        if missing is None:
            kept = await before.runs.without_log()
            if any(run.run_id not in kept for run in losses.runs) or losses.shortened:
                raise RebuildLossesError(losses)
        if deadly := [entry for entry in await before.quarantine.all() if entry.reason == DIED]:
            raise DeadlyRecordsError(deadly)
        _require(await editions.begin(old=old, new=new))
        note = RebuildNote(database, settings.prefix, new)
        for leftover in await editions.others():
            await editions.drop(leftover)
        try:
            async with (
                connect_worker(settings, database, new, rebuilt_from=old) as worker,
                asyncio.TaskGroup() as tasks,
            ):
                worker.quarantine.decide(run_id_of(run.run_id) for run in losses.runs)
                is_switched = asyncio.Event()
                working = tasks.create_task(_work(worker, is_switched))
                await _take_archived(worker, log)
                async for progress in _catching_up(editions, losses, old=before, new=after):
                    report(progress)
                    await note.go_on(progress.done, progress.total)
                await _check_aside(losses, old=before, new=after)
                take = drop if missing == "drop" else keep
                await take(log, losses.runs, old=before, new=after)
                _require(await editions.join(old=old, new=new))
                await asyncio.sleep(_JOIN_SECONDS)
                _require(await editions.switch(old=old, new=new))
                is_switched.set()
                switched()
                has_heirs = await _hand_over(worker, log.topics.partitions, seconds=settings.retire_seconds)
                working.cancel()
            await after.quarantine.remove(run_id_of(run.run_id) for run in losses.runs)
        except* RebuildError:
            await editions.drop(new)
            raise
        finally:
            await editions.give_up(new)
            await note.end(is_switched=await editions.current() == new)
        if not has_heirs:
            await editions.drop(old)
    if missing == "drop":
        return progress._replace(dropped=len(losses.runs))
    return progress._replace(kept=len(losses.runs))


async def _work(worker: Worker, is_switched: asyncio.Event) -> None:
    """Endless. After the switch, a failure ends it without an error: the projectors that take over
    also fold what it did not commit.
    """
    try:
        await worker.work()
    except* UnavailableError:
        if not is_switched.is_set():
            raise


async def _take_archived(worker: Worker, log: LogSettings) -> None:
    """Takes the runs that the archive has noted, because the catalog may not have them any more."""
    if log.archived is None:
        return
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if worker.partitions:
            break
    entries: list[Entry] = []
    async with aclosing(log.archived.runs()) as runs:
        async for life, segments in runs:
            now = int(time.time() * 1000)
            entries += [(life, now)] if segments is None else [(segments, now), (life, now)]
            if len(entries) >= _ENTRIES_AT_ONCE:
                await worker.take_entries(entries)
                entries = []
    await worker.take_entries(entries)


async def _hand_over(worker: Worker, partitions: int, *, seconds: float) -> bool:
    """Waits until projectors have taken over the new edition, and returns True: they drop the old
    edition when nobody reads it any more. Returns False if no projector came in time.
    """
    until, is_member = time.monotonic() + seconds, False
    while time.monotonic() < until:
        # A worker that is alone has no partitions until it has joined the group, and then all.
        is_member = is_member or bool(worker.partitions)
        if is_member and len(worker.partitions) < partitions:
            return True
        await asyncio.sleep(_LOOK_SECONDS)
    return False


def _require(done: bool) -> None:
    if not done:
        raise RebuildError(
            "another rebuild has begun or finished since this one began, or the switch came too late; this"
            " one was given up. Run it again"
        )


async def _catching_up(
    editions: Editions, losses: RebuildLosses, *, old: Edition, new: Edition
) -> AsyncIterator[RebuildProgress]:
    """Yields the progress until the new edition includes everything that the old edition has, and
    Kafka too.
    """
    without_log = {run.run_id for run in losses.runs}
    ends = {each.key: each.end for each in losses.shortened}
    while True:
        # A run whose record of the catalog is set aside is never reached.
        await _check_aside(losses, old=old, new=new, kind="record")
        pointer = await editions.pointer()
        _require(pointer is not None and pointer.building == new.name)
        positions, reached = await _positions(old), await _positions(new)
        targets = {
            key: min(offset, ends.get(key, offset))
            for key, offset in positions.items()
            # Nothing comes from an empty log.
            if key not in without_log and ends.get(key) != 0
        }
        aside = {entry.name for entry in await new.quarantine.all(kind="run")} - without_log
        # A run in quarantine waits for an operator, and the rebuild does not wait for the run.
        reached |= {run_id: targets[run_id] for run_id in aside if run_id in targets}
        done = sum(min(offset, reached.get(key, 0)) for key, offset in targets.items())
        yield RebuildProgress(done, sum(targets.values()), tuple(sorted(aside)))
        is_reached = all(key in reached and reached[key] >= offset for key, offset in targets.items())
        # A key whose record is skipped after it was folded is in quarantine till it is folded anew.
        if is_reached and not await new.quarantine.has_kept_requests():
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _check_aside(
    losses: RebuildLosses, *, old: Edition, new: Edition, kind: QuarantineKind | None = None
) -> None:
    """Raises `SetAsideError` if the new edition has something in quarantine that the old edition
    has folded.
    """
    before = {entry.id: entry.offset for entry in await old.quarantine.all(kind=kind)}
    without_log = {run_id_of(run.run_id) for run in losses.runs}
    if worse := [
        entry
        for entry in await new.quarantine.all(kind=kind)
        if entry.id not in without_log and before.get(entry.id, OFFSET_MAX) > entry.offset
    ]:
        raise SetAsideError(worse)


async def _positions(stores: Edition) -> dict[str | Partition, int]:
    """The positions of an edition: of each run by its id, and of each partition of the shared
    topics.
    """
    positions: dict[str | Partition, int] = dict([entry async for entry in stores.runs.progress()])
    positions.update(await stores.shared_positions.positions())
    return positions
