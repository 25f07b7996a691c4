"""The rounds of an archiver: each takes the runs of its partitions one step further.

catalog --> runs with topics --due--> sealed --> archived --> topic deleted
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Final, NoReturn

from prometheus_client import Gauge

from runfold.archive.table import Fence, FencedError
from runfold.archiver.compacting import Compacting
from runfold.archiver.known_runs import KnownRun, ListedTopics, PartitionRuns, listed_logs
from runfold.archiver.steps import Steps
from runfold.log.catalog_group import CatalogRecord
from runfold.log.driver import kafka_errors
from runfold.log.leaders import Leaders
from runfold.log.settings import LogSettings
from runfold.log.topic_list import topic_leaders
from runfold.log.verdicts import Verdicts, read_settled
from runfold.settings import Settings
from runfold_schemas.codec import UnreadableBatch
from runfold_schemas.topics import Partition

_LIST_SECONDS: Final = 60.0
"""How often the topics are listed."""

_AT_ONCE: Final = 1_000
"""The number of runs that a step takes at once."""

_SEALED_MAX: Final = 2_000
"""The number of sealed runs above which no more are sealed."""

_WAITING: Final = Gauge("runfold_archiver_waiting_runs", "Runs that are due and not archived yet")
_OLDEST: Final = Gauge(
    "runfold_archiver_oldest_waiting_seconds", "How long the first of the waiting runs has been due"
)
_SET_ASIDE: Final = Gauge("runfold_archiver_set_aside_runs", "Runs that cannot be archived now")

_FencedWork = Callable[[Sequence[KnownRun], Mapping[int, Fence]], Awaitable[dict[int, int]]]

_log = logging.getLogger(__name__)


class Rounds:
    """The work on the partitions that this process owns, with one connection to Kafka."""

    def __init__(
        self,
        settings: Settings,
        log: LogSettings,
        steps: Steps,
        leaders: Leaders,
        compacting: Compacting,
    ) -> None:
        self._settings = settings
        self._log = log
        self._steps = steps
        self.clearing: Final = steps.clearing
        self._leaders = leaders
        self.compacting: Final = compacting
        self._verdicts = Verdicts(log)
        self._partitions: dict[int, PartitionRuns] = {}
        self._read: dict[int, PartitionRuns] = {}
        """The own partitions that were read."""
        self.fenced: dict[int, str] = {}
        """Why partitions are not archived: another process has written as their owner."""
        self.archive_failed = False
        """Whether the last round ended because the archive failed."""
        self._moved = asyncio.Condition()
        self._reading = asyncio.Lock()
        """Held while records are taken: a reading that ends behind the group would lose some."""
        self._listed_at = float("-inf")

    def owns(self, number: int) -> bool:
        """Whether this process owns a partition of the catalog."""
        return number in self._read

    def failed(self) -> list[KnownRun]:
        """The runs that cannot be archived now."""
        return [run for each in self._read.values() for run in each.runs.values() if run.failure is not None]

    async def take_partitions(self, assigned: set[int]) -> None:
        """Takes the partitions that are new, and leaves those that are lost."""
        before = self._partitions
        self._partitions = {
            number: before.get(number) or PartitionRuns(self._log.topics, number) for number in assigned
        }
        self._read = {number: each for number, each in self._read.items() if number in assigned}
        self.fenced = {number: reason for number, reason in self.fenced.items() if number in assigned}
        async with self._moved:
            self._moved.notify_all()

    async def take_records(self, records: Sequence[CatalogRecord], _: Sequence[UnreadableBatch]) -> None:
        """Takes records of one partition, after it was read."""
        for number in {record.at.partition for record in records}:
            await self._take([each for each in records if each.at.partition == number], number)

    async def _take(self, records: Sequence[CatalogRecord], number: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: number in self._read or number not in self._partitions)
        async with self._reading:
            if (partition := self._read.get(number)) is None:
                return
            at, plain = records[0].at, [each.record for each in records]
            for record in await self._verdicts.settle(plain, at, leaders=self._leaders):
                if record.offset >= partition.position:
                    partition.take(record)
                    partition.position = record.offset + 1
        async with self._moved:
            self._moved.notify_all()

    # A round.

    async def round(self) -> bool:
        """Takes what is due one step further. Returns whether there was anything. Raises
        `UnavailableError`.
        """
        await self.read_partitions()
        partitions = list(self._read.values())
        self._measure(partitions)
        await self._restate(partitions)
        sealed = self._sealed(partitions)
        archived = self._archived(partitions, without=sealed)
        await self._own({run.number for run in (*sealed, *archived)})
        # No run is in two steps at once, and all steps end before the next round.
        steps = await asyncio.gather(
            self._seal(partitions, without=[*sealed, *archived]),
            self._work_on(sealed, self._steps.archive),
            self._work_on(archived, self._steps.delete),
            return_exceptions=True,
        )
        for partition in partitions:
            partition.forget(list(partition.runs.values()))
        for step in steps:
            if isinstance(step, BaseException):
                raise step
        is_busy = any(steps)
        for partition in partitions:
            is_busy |= await self.clearing.clear(partition.number, partition.deleted)
            keep_seconds = self._settings.archive_catalog_seconds
            await self._steps.retiring.retire_if_due(partition, self._list, keep_seconds=keep_seconds)
        if not is_busy:
            await self._check_kafka()
        return is_busy

    async def remove_files(self) -> NoReturn:
        """Endless: removes files of deleted rows, while the first partition is an own one."""
        seconds = self._settings.archive_erase_seconds
        await self.clearing.remove_files(within_seconds=seconds, is_due=lambda: 0 in self._read)

    async def _check_kafka(self) -> None:
        """Raises `UnavailableError` if Kafka is away while there is nothing to do."""
        with kafka_errors():
            async with asyncio.timeout(self._log.publish_timeout_seconds):
                await self._leaders.ends([Partition(self._log.topics.catalog, 0)])

    async def _seal(self, partitions: Sequence[PartitionRuns], *, without: Collection[KnownRun]) -> bool:
        passed = {run.run_id for run in without}
        due = [run for each in partitions for run in self._due(each) if run.run_id not in passed]
        # What is sealed already takes no events until its entry says where the log goes on.
        if runs := [run for run in due if run.is_sealing][:_AT_ONCE]:
            await self._wait_for(await self._steps.seal(runs))
            return True
        sealed = sum(run.is_sealed for each in partitions for run in each.runs.values())
        if not due or sealed >= _SEALED_MAX or (sealed and self.archive_failed):
            return False
        await self._steps.check_archive()
        quiet: list[KnownRun] = []
        for is_ended in (True, False):
            if some := [run for run in due if run.life.ended is is_ended][:_AT_ONCE]:
                quiet += await self._steps.quiet(some, quiet_seconds=self._quiet_seconds(some[0]))
        if quiet:
            await self._wait_for(await self._steps.seal(quiet))
        return bool(quiet)

    async def _restate(self, partitions: Sequence[PartitionRuns]) -> None:
        """Writes entries again after refused ones, so that compaction keeps the right ones."""
        overwritten = [run for each in partitions for run in each.runs.values() if run.is_overwritten]
        if overwritten:
            await self._wait_for(await self._steps.restate(overwritten))

    def _sealed(self, partitions: Sequence[PartitionRuns]) -> list[KnownRun]:
        """The runs that are archived in this round."""
        now = time.monotonic()
        runs = (run for each in partitions for run in each.runs.values())
        return list(islice((run for run in runs if run.is_sealed and run.not_before <= now), _AT_ONCE))

    def _archived(
        self, partitions: Sequence[PartitionRuns], *, without: Collection[KnownRun]
    ) -> list[KnownRun]:
        """The runs whose topics are deleted in this round."""
        passed, now = {run.run_id for run in without}, time.monotonic()
        until_ms = (time.time() - self._settings.archive_delete_seconds) * 1000
        runs = (run for each in partitions for run in each.runs.values())
        due = (run for run in runs if run.entry_ms <= until_ms and run.not_before <= now and run.past_bases())
        return list(islice((run for run in due if run.run_id not in passed), _AT_ONCE))

    async def _work_on(self, runs: Sequence[KnownRun], work: _FencedWork) -> bool:
        """Does work on those of the runs whose partitions this process owns in the archive too.
        Returns whether there were any.
        """
        fences = {number: each.fence for number, each in self._read.items() if each.fence is not None}
        while runs := [run for run in runs if run.number in fences]:
            try:
                behind = await work(runs, fences)
            except FencedError as error:
                # The next round begins as a new owner, if the group still says so.
                for number in [number for number, fence in fences.items() if fence.name == error.name]:
                    del fences[number]
                    self._leave(number, error)
                continue
            for number in {run.number for run in runs}:
                self.fenced.pop(number, None)
            await self._wait_for(behind)
            return True
        return False

    def _leave(self, number: int, error: FencedError) -> None:
        if (partition := self._read.get(number)) is not None:
            partition.fence = None
        self.fenced[number] = f"partition {number} of the catalog is not archived: {error}"
        _log.warning("%s", self.fenced[number])

    async def _own(self, numbers: Collection[int]) -> None:
        """Takes the ownership of partitions in the archive that this process did not take yet."""
        partitions = [each for number in numbers if (each := self._read.get(number)) is not None]
        if new := [each for each in partitions if each.fence is None]:
            await self._steps.take_ownership(new)

    def _due(self, partition: PartitionRuns) -> list[KnownRun]:
        """The runs whose last topic may be sealed."""
        now = time.monotonic()
        return [
            run
            for run in partition.runs.values()
            if run.is_open and run.not_before <= now and (run.is_sealing or self._due_seconds(run) >= 0)
        ]

    def _due_seconds(self, run: KnownRun) -> float:
        """For how long the run has been due."""
        return time.time() - run.noted_ms / 1000 - self._quiet_seconds(run)

    def _quiet_seconds(self, run: KnownRun) -> float:
        """How long the log of a run has to be quiet. Any client may say that a run has ended."""
        settings = self._settings
        return settings.archive_after_seconds if run.life.ended else settings.archive_quiet_seconds

    async def _wait_for(self, behind: dict[int, int]) -> None:
        """Returns when own partitions are read up to these offsets. Raises `UnavailableError`."""

        def is_read() -> bool:
            return all(
                number not in self._read or self._read[number].position >= end
                for number, end in behind.items()
            )

        with kafka_errors():
            async with asyncio.timeout(self._log.publish_timeout_seconds), self._moved:
                await self._moved.wait_for(is_read)

    def _measure(self, partitions: Sequence[PartitionRuns]) -> None:
        waiting = [run for each in partitions for run in self._due(each)]
        sealed = [run for each in partitions for run in each.runs.values() if run.is_sealed]
        _WAITING.set(len(waiting) + len(sealed))
        _OLDEST.set(max((self._due_seconds(run) for run in [*waiting, *sealed]), default=0.0))
        _SET_ASIDE.set(len(self.failed()))

    # Reading.

    async def read_partitions(self) -> None:
        """Reads the partitions that are new, and those with topics of runs that are not known."""
        new = [number for number in self._partitions if number not in self._read]
        if not new and time.monotonic() - self._listed_at < _LIST_SECONDS:
            return
        listed = await self._list()
        logs = dict(listed_logs(self._log.topics, listed))
        for number, partition in list(self._partitions.items()):
            if number in self._read and not partition.lacks(listed, logs):
                continue
            async with self._reading:
                again = partition.anew()
                await self._read_to_end(again, listed)
                partition.read_again(again)
            partition.lacks(listed, logs)
            if self._partitions.get(number) is partition:
                self._read[number] = partition
            async with self._moved:
                self._moved.notify_all()
        await self._steps.find_sealed(
            run
            for each in self._read.values()
            for run in each.runs.values()
            if run.is_open and not run.is_sealing
        )
        for partition in self._read.values():
            await self._steps.retiring.restore(partition)
        self._listed_at = time.monotonic()

    async def _list(self) -> ListedTopics:
        with kafka_errors():
            async with asyncio.timeout(self._log.publish_timeout_seconds):
                names = [name async for name, _ in topic_leaders(self._leaders.client)]
        return ListedTopics(self._log.topics, names)

    async def _read_to_end(self, partition: PartitionRuns, listed: ListedTopics) -> None:
        at = Partition(self._log.topics.catalog, partition.number)
        reading = read_settled(self._log, at, self._verdicts, leaders=self._leaders)
        async with aclosing(reading) as batches:
            async for records in batches:
                for record in records:
                    partition.take(record, listed)
                    partition.position = record.offset + 1
