"""Where the sealed logs of one worker's runs lie.

    catalog --> MongoDB --> what reads and follows logs here

The topic of an archived run does not exist, and nothing is wrong with that: the run rests until
somebody publishes to it.
"""

from collections.abc import Collection, Mapping, Sequence

from runfold.log.segments import SegmentBook, follows
from runfold.projector.active import ActiveRun
from runfold.projector.suspects import Suspect
from runfold.store.runs import RunStore
from runfold.store.segments import SegmentStore
from runfold_schemas.catalog import Segments


class RunSegments:
    """The entries of segments in the catalog, as far as the worker has taken it. Its connections
    find them in `book`.
    """

    def __init__(self, store: SegmentStore, runs: RunStore, book: SegmentBook) -> None:
        self._store = store
        self._runs = runs
        self.book = book
        book.look_up = self.look_up

    async def take(self, entries: Sequence[Segments]) -> list[Suspect]:
        """Takes entries of the catalog, durably. Returns the runs with records that came to a
        sealed topic after its mark: their place is before the topic of the new base, so a run that
        is folded beyond it is folded anew.
        """
        if not entries:
            return []
        late = _late(await self._store.get({entry.run_id for entry in entries}), entries)
        await self._store.add(entries)
        self._note(entries)
        suspects = []
        for state in (await self._runs.get_many([*late])).values() if late else ():
            entry, place = late[state.run_id]
            position = state.record.next_offset
            if state.log_id == entry.log_id and (position > place or position < entry.end):
                suspects.append(Suspect(state.run_id, state.log_id, is_refolded=position > place))
        return suspects

    async def look_up(self, run_id: str) -> Segments | None:
        """The entry of a run. None if its log was not sealed, as far as the catalog is taken."""
        return (await self._store.get([run_id])).get(run_id)

    async def learn(self, run_ids: Collection[str]) -> None:
        """Looks up the logs of runs whose topic is missing."""
        if run_ids:
            self._note((await self._store.get(run_ids)).values())

    def _note(self, entries: Collection[Segments]) -> None:
        for entry in entries:
            self.book.take(entry)

    def archived_end(self, run: ActiveRun) -> int:
        """The offset up to which the log of a run is archived, as far as it is known here."""
        entry = self.book.of_topic(run.topic)
        if entry is None:
            return 0
        return entry.end if entry.sealed_base is None else entry.sealed_base

    def rests(self, run: ActiveRun, end: int) -> bool:
        """Whether all of a run's log, which ends at `end`, is folded and sealed, and there is no
        topic yet in which it goes on.
        """
        entry = self.book.of_topic(run.topic)
        return entry is not None and end < entry.base and entry.end <= run.next_offset < entry.base


def _late(stored: Mapping[str, Segments], entries: Sequence[Segments]) -> dict[str, tuple[Segments, int]]:
    """The entries with an end that grew after the seal, by run, each with the place of the late
    records. If the entry of the seal is not known, the place is the end of the gap.
    """
    known = dict(stored)
    late: dict[str, tuple[Segments, int]] = {}
    for entry in entries:
        before = known.get(entry.run_id)
        if before is not None and before.log_id == entry.log_id and not follows(before, entry):
            continue
        known[entry.run_id] = entry
        if entry.sealed_base is not None:
            continue
        if before is None or (before.log_id, before.base) != (entry.log_id, entry.base):
            late[entry.run_id] = entry, entry.base - 1
        elif entry.end > before.end:
            late[entry.run_id] = entry, min(before.end, late.get(entry.run_id, (entry, before.end))[1])
    return late
