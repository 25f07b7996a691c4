"""What a process knows of the catalog: the lives that it asked for, and all skips of the partitions
that it follows. So its memory does not grow with the number of runs that ever were, but by four
bytes for each of their lives.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Final

from runfold.log.archived_logs import UnknownIdError
from runfold.log.catalog import (
    ARCHIVE_KEY,
    SEGMENT_KEYS,
    SKIP_KEYS,
    entry_of,
    folded_life,
    folded_segments,
    is_in_place,
    is_life,
    life_key,
    partition_of,
    segments_key,
)
from runfold.log.catalog_reading import CatalogReading
from runfold.log.leaders import Leaders
from runfold.log.life_pass import runs_of
from runfold.log.partition_counts import counted
from runfold.log.segments import SegmentBook
from runfold.log.settings import LogSettings
from runfold.log.watched_life import FollowedPartition, WatchedLife
from runfold_schemas.catalog import ArchivedRun, Life, Segments, Skip
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition

_RECENT_MAX: Final = 1_000
"""How many lives stay watched after their look-up although nobody holds them: about 1 MB."""

OfInterest = Callable[[bytes], bool]
"""Whether a life may be of interest, by the value of a record."""


class CatalogView:
    """The lives that this process asked for, kept current in the background."""

    def __init__(
        self,
        settings: LogSettings,
        *,
        leaders: Leaders | None = None,
        segments: SegmentBook | None = None,
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._reading = CatalogReading(settings, self._take, leaders=leaders)
        self._partitions = self._reading.partitions
        self._recent: OrderedDict[bytes, WatchedLife] = OrderedDict()
        self._open: dict[bytes, dict[bytes, WatchedLife]] = {}
        """The lives of open runs, by the beginnings of keys that somebody asked for."""
        self._skips: dict[Partition, frozenset[range]] = {}
        self.segments = segments or SegmentBook(self._topics)
        if leaders is not None:
            self.segments = leaders.segments(self._topics)
        """Where the logs of runs lie, as far as this process knows."""
        self._announced: dict[int, int] = {}
        """The offset behind the first run that this process announced, by partition."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        settings: LogSettings,
        *,
        leaders: Leaders | None = None,
        segments: SegmentBook | None = None,
    ) -> AsyncIterator["CatalogView"]:
        """A view, open for the length of the block, over the client of `leaders` if given. It feeds
        their book of segments, or `segments`.
        """
        view = cls(await counted(settings, leaders=leaders), leaders=leaders, segments=segments)
        async with view._reading.connect():
            view.segments.look_up = view.look_up_segments
            try:
                yield view
            finally:
                if view.segments.look_up == view.look_up_segments:
                    view.segments.look_up = None

    # Lives.

    async def lookup(self, run_id: str) -> Life | None:
        """The run's current life, None if there is none. Raises `UnavailableError`, and
        `UnknownIdError` if it may be in the archive and this process has none.

        The first look-up in a partition of the catalog reads the partition. Later ones read what
        is new, and the few records that may be the run's.
        """
        number, key = partition_of(self._topics, run_id), life_key(run_id)
        watched = self._reading.follow(number, 0).watch(key)
        self._keep_recent(key, watched)
        await self._reading.read_to_ends([number])
        await self._complete(number, key, watched)
        if watched.life is not None or not self._partitions[number].lacks_archived:
            return watched.life
        archived = await self._archived_run(run_id)
        return archived.life if archived is not None else None

    async def check(self) -> None:
        """Reads a partition of the catalog to its end. Raises `UnavailableError`."""
        self._reading.follow(0, 0)
        await self._reading.read_to_ends([0])

    async def look_up_segments(self, run_id: str) -> Segments | None:
        """Where the run's log lies, None if it was never sealed. Raises as `lookup`."""
        entry: Segments | None = None
        async for key, value in self._entries(run_id):
            entry = folded_segments(entry, key, value)
        if entry is not None or not self._lacks_archived(run_id):
            return entry
        if self._settings.archived is None and await self.lookup(run_id) is not None:
            return None
        archived = await self._archived_run(run_id)
        return archived.segments if archived is not None else None

    async def archived_among(self, run_ids: Collection[str]) -> list[str]:
        """Those of these runs that the archive may have, sorted: their log was sealed, and no
        archiver has said since that it removed them. Raises as `lookup`.
        """
        numbers = {run_id: partition_of(self._topics, run_id) for run_id in sorted(run_ids)}
        for number in set(numbers.values()):
            self._reading.follow(number, 0)
        await self._reading.read_to_ends(set(numbers.values()))
        return [run_id for run_id in numbers if await self._may_be_archived(run_id)]

    async def _may_be_archived(self, run_id: str) -> bool:
        if self._partitions[partition_of(self._topics, run_id)].logs.find(segments_key(run_id)):
            values = [value async for _, value in self._entries(run_id)]
            if values and values[-1] is not None:
                return True
        archived = await self._archived_run(run_id) if self._lacks_archived(run_id) else None
        return archived is not None and archived.segments is not None

    async def _entries(self, run_id: str) -> AsyncGenerator[tuple[bytes, bytes | None], None]:
        """The records that say where the run's log lies, with their key."""
        number, key = partition_of(self._topics, run_id), segments_key(run_id)
        partition = self._reading.follow(number, 0)
        await self._reading.read_to_ends([number])
        for begin, end in partition.logs.find(key):
            last = partition.position if end is None else end
            async with aclosing(self._reading.records(number, begin, last)) as batches:
                async for records in batches:
                    for record in records:
                        if record.key == key:
                            yield key, record.value

    async def has_sealed(self) -> bool:
        """Whether the log of any run was sealed once. Raises `UnavailableError`."""
        await self.follow_all()
        return any(len(each.logs) or each.lacks_archived for each in self._partitions.values())

    async def _archived_run(self, run_id: str) -> ArchivedRun | None:
        if self._settings.archived is None:
            raise UnknownIdError(run_id)
        return await self._settings.archived.run(run_id)

    def _lacks_archived(self, run_id: str) -> bool:
        return self._partitions[partition_of(self._topics, run_id)].lacks_archived

    def watch(self, life: Life) -> WatchedLife:
        """The life of this run from now on, as far as the run's partition is followed."""
        return self._partitions[partition_of(self._topics, life.run_id)].watch(life_key(life.run_id), life)

    def follow(self, run_id: str) -> None:
        """Follows the partition of a run that this process has announced, so that the life that
        `watch` returns soon has changes.
        """
        number = partition_of(self._topics, run_id)
        self._reading.follow(number, self._announced.get(number, 0))

    async def follow_all(self) -> None:
        """Reads and follows every partition, so that later calls of `lookup` are fast. Raises
        `UnavailableError`.
        """
        numbers = range(self._topics.partitions)
        # One after the other: records of all at once would take more memory.
        for number in numbers:
            if not self._reading.follow(number, 0).caught_up:
                await self._reading.read_to_ends([number])
        await self._reading.read_to_ends(numbers)

    async def open_lives(self, prefix: str) -> list[Life]:
        """The lives of open runs whose ids begin with `prefix`. They are followed from the first
        call on. Raises `UnavailableError`.
        """
        await self._follow_open(prefix)
        for key, watched in list(self._open[life_key(prefix)].items()):
            await self._complete(
                partition_of(self._topics, key.removeprefix(life_key("")).decode()), key, watched
            )
        lives = [watched.life for watched in self._open[life_key(prefix)].values()]
        return [life for life in lives if life is not None and _is_open(life)]

    async def count_open(self) -> int:
        """The number of open runs. A view that counts them holds the lives of all of them. Raises
        `UnavailableError`.
        """
        await self._follow_open("")
        return len(self._open[life_key("")])

    async def _follow_open(self, prefix: str) -> None:
        if life_key(prefix) not in self._open:
            self._open[life_key(prefix)] = {}
            # What was read before was read without keeping these lives.
            for number, partition in self._partitions.items():
                if partition.began is not None:
                    self._reading.begin(number, 0)
        await self.follow_all()

    async def lives(self, of_interest: OfInterest | None = None) -> AsyncGenerator[Life, None]:
        """The lives of all runs that are not deleted, or of those with a record `of_interest`.
        Raises as `lookup`.

        They come partition after partition of the catalog, and within a partition in the
        order of each run's last record: a run has one of its opening, and perhaps one of its end.
        What is written to a partition after the pass over it began is left out. Runs that are in
        the archive alone come last.
        """
        listed: dict[int, set[int]] = {}
        async with (
            Leaders.connect(self._settings) as leaders,
            aclosing(self._listed_lives(leaders, of_interest, listed)) as lives,
        ):
            async for life in lives:
                yield life
        archived = self._settings.archived
        if listed and archived is not None:
            async with aclosing(archived.runs()) as runs:
                async for life, _ in runs:
                    own = listed.get(partition_of(self._topics, life.run_id))
                    is_other = own is not None and hash(life_key(life.run_id)) not in own
                    if is_other and (of_interest is None or of_interest(life.model_dump_json().encode())):
                        yield life

    async def _listed_lives(
        self, leaders: Leaders, of_interest: OfInterest | None, listed: dict[int, set[int]]
    ) -> AsyncGenerator[Life, None]:
        """The lives of the catalog. `listed` gets the hashes of all keys of the partitions that
        lack archived runs.
        """
        for number in range(self._topics.partitions):
            partition = self._reading.follow(number, 0)
            await self._reading.read_to_ends([number])
            if partition.lacks_archived:
                if self._settings.archived is None:
                    raise UnknownIdError(None)
                listed[number] = set()
            runs = runs_of(
                self._settings,
                Partition(self._topics.catalog, number),
                partition.places.remaining(),
                end=partition.position,
                verdicts=self._reading.verdicts,
                leaders=leaders,
            )
            async with aclosing(runs):
                async for key, values in runs:
                    if number in listed:
                        listed[number].add(hash(key))
                    if of_interest is None or any(map(of_interest, values)):
                        life: Life | None = None
                        for value in values:
                            life = folded_life(life, key, value)
                        if life is not None and not life.deleted:
                            yield life

    # Skips.

    def skipped(self, at: Partition) -> frozenset[range]:
        """The offsets of a partition that an operator skipped, as far as this view has read the
        catalog: `read_skips` first. Reads nothing itself.
        """
        return self._skips.get(at, frozenset())

    async def skips_of(self, run_id: str, topic: str, *, is_new: bool = False) -> frozenset[range]:
        """The offsets that an operator skipped in a run's topic. `is_new` says that this process
        announced the run, so no skip of it is older. Raises `UnavailableError`.
        """
        number = partition_of(self._topics, run_id)
        if not (is_new and number in self._announced):
            await self.read_skips([number])
        elif self._partitions[number].began is not None:
            await self._reading.catch_up([number])
        else:
            await self._begin_with_new_runs()
        return self.skipped(Partition(topic, 0))

    async def read_skips(self, numbers: Iterable[int]) -> None:
        """Reads the skips of partitions with these numbers, and follows them. Returns at once if
        the partitions were read before. Raises `UnavailableError`.
        """
        wanted = set(numbers)
        for number in wanted:
            self._reading.follow(number, 0)
        await self._reading.catch_up(wanted)

    def note_announced(self, number: int, offset: int) -> None:
        """Notes that this process announced a run at this offset of the partition `number`."""
        self._announced.setdefault(number, offset + 1)

    async def _begin_with_new_runs(self) -> None:
        """Follows the skips of all partitions, as far as they may concern runs that this process
        has announced or will announce.
        """
        numbers = range(self._topics.partitions)
        ends = await self._reading.ends(numbers)
        for number in numbers:
            self._reading.follow(number, self._announced.get(number, ends[number]))
        for number, end in ends.items():
            await self._reading.read_to(number, end)

    # Records.

    def _keep_recent(self, key: bytes, watched: WatchedLife) -> None:
        self._recent[key] = watched
        self._recent.move_to_end(key)
        if len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)

    async def _complete(self, number: int, key: bytes, watched: WatchedLife) -> None:
        """Reads the records of the run that were passed over before somebody asked for its life."""
        partition = self._partitions[number]
        while watched.unread:
            places = partition.places
            if not watched.is_given and not places.find(key, end=watched.unread):
                watched.unread = 0
                return
            life = await self._read_life(number, key)
            if places is partition.places:
                watched.set_read(life, partition.position)
            else:
                await self._reading.read_to_ends([number])

    async def _read_life(self, number: int, key: bytes) -> Life | None:
        """The life of all records under the key up to the partition's position."""
        partition = self._partitions[number]
        life, next_offset, searched = None, 0, 0
        while stretches := partition.places.find(key, first=searched):
            searched = len(partition.places)
            for begin, end in stretches:
                last = partition.position if end is None else end
                async with aclosing(self._reading.records(number, begin, last)) as batches:
                    async for records in batches:
                        for record in records:
                            if record.key == key and record.offset >= next_offset:
                                life, next_offset = folded_life(life, key, record.value), record.offset + 1
        return life

    def _take(self, record: Record, at: Partition) -> None:
        key = record.key
        if key is None:
            return
        if is_life(record):
            self._take_life(record, key, self._partitions[at.partition])
        elif key.startswith(SEGMENT_KEYS):
            self._take_segments(record, key, self._partitions[at.partition])
        elif key == ARCHIVE_KEY:
            self._partitions[at.partition].lacks_archived = True
        elif key.startswith(SKIP_KEYS):
            skip = entry_of(key, record.value)
            if isinstance(skip, Skip) and is_in_place(self._topics, skip, at):
                self._skips[skip.at] = self.skipped(skip.at) | {skip.offsets}

    def _take_segments(self, record: Record, key: bytes, partition: FollowedPartition) -> None:
        partition.logs.add(key, record.offset)
        # The entries of all archived runs would need too much memory, so those of runs that this
        # process has to do with are kept, and what is new.
        run_key = life_key(key.removeprefix(SEGMENT_KEYS).decode(errors="replace"))
        if partition.caught_up or partition.is_watched(run_key):
            entry = entry_of(key, record.value)
            if isinstance(entry, Segments) and segments_key(entry.run_id) == key:
                self.segments.take(entry)

    def _take_life(self, record: Record, key: bytes, partition: FollowedPartition) -> None:
        open_lives = next((lives for prefix, lives in self._open.items() if key.startswith(prefix)), None)
        watched = partition.take(record, key, watch=open_lives is not None)
        if open_lives is not None and watched is not None:
            if watched.life is not None and _is_open(watched.life):
                open_lives[key] = watched
            else:
                open_lives.pop(key, None)


def _is_open(life: Life) -> bool:
    return not life.ended and not life.deleted
