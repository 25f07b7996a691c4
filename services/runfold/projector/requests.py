"""Does what operators ask for: trying again what is in quarantine, folding a run anew, and skipping
records.

A skip comes from the catalog. Its consequence is noted as a request before the catalog's offset is
committed, so it is not lost.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from runfold.log.catalog import partition_of
from runfold.projector.intake import Intake
from runfold.projector.quarantine import BEGUN_MAX, DIED, defect, reason_of
from runfold.projector.safeguards import Safeguards
from runfold.projector.shared import SharedTopics
from runfold.projector.stuck import Steps
from runfold.projector.suspects import Suspect
from runfold.store.edition import Edition
from runfold.store.quarantine import Action, Quarantined, key_id_of, record_id_of, run_id_of
from runfold.store.runs import RunState
from runfold_schemas.catalog import Skip
from runfold_schemas.topics import Partition, Topics

_LOOK_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Requests:
    """The requests for the partitions of one worker."""

    def __init__(
        self,
        topics: Topics,
        stores: Edition,
        *,
        safeguards: Safeguards,
        shared: SharedTopics,
        intake: Intake,
        partitions: Callable[[], Collection[int]],
    ) -> None:
        self._topics = topics
        self._store = stores.quarantine
        self._runs = stores.runs
        self._quarantine = safeguards.quarantine
        self._skips = safeguards.skips
        self._suspects = safeguards.suspects
        self._shared = shared
        self._intake = intake
        self._partitions = partitions
        self.doing = Steps()

    async def work(self) -> None:
        """Endless."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._is_settled() and (partitions := self._partitions()):
                for entry_id, action in (await self._store.requests(partitions)).items():
                    if self._is_settled():
                        await self.doing.run(self._do(entry_id, action))

    def _is_settled(self) -> bool:
        """Whether what is stored of the worker's partitions is loaded. Before that, the worker does
        not know the quarantine.
        """
        return self._intake.after is not None and self._intake.after.done()

    async def take_skips(self, skips: Sequence[Skip]) -> None:
        """Takes skips from the catalog."""
        if not skips:
            return
        await self._skips.add(skips)
        for skip in skips:
            if (run := self._topics.parse_run(skip.topic)) is not None:
                await self._skip_of_run(run.run_id, run.log_id)
                continue
            entries = self._quarantine.covered_by(skip.at, skip.offsets)
            await self._quarantine.release(
                [entry.id for entry in entries if entry.kind == "record"], "the record is skipped"
            )
            for entry in entries:
                if entry.kind == "key":
                    await self._store.request(entry.id, "retry", owner=entry.owner, is_kept=True)
            if not entries and skip.topic != self._topics.catalog:
                # The records may be folded already, for example when MongoDB was lost.
                entry_id = record_id_of(skip.at, skip.offset)
                await self._store.request(entry_id, "refold", owner=skip.partition, is_kept=True)

    async def _skip_of_run(self, run_id: str, log_id: str) -> None:
        state = (await self._runs.get_many([run_id])).get(run_id)
        if state is not None and state.log_id == log_id:
            await self._store.request(
                run_id_of(run_id), "retry", owner=partition_of(self._topics, run_id), is_kept=True
            )

    async def _do(self, entry_id: str, action: Action) -> None:
        kind, _, name = entry_id.partition(":")
        if kind == "run":
            await self._examine(entry_id, name, is_refolded=action == "refold")
            return
        async with self._quarantine.begun(entry_id) as request:
            if request is None:
                return
            entry = await self._quarantine.find(entry_id)
            try:
                if request.begun > BEGUN_MAX:
                    await self._give_up(entry_id, entry, DIED)
                elif entry is not None:
                    await self._retry(entry)
                elif request.action == "refold" and kind == "key":
                    await self._shared.refold(name)
                elif request.action == "refold":
                    at, offset = _place_of(name)
                    await self._shared.unfold_skipped(at, offset)
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                fault = defect(error)
                trace = await self._quarantine.loggable(fault)
                _log.error("what was asked for %s failed", entry_id, exc_info=trace)
                await self._give_up(entry_id, entry, reason_of(fault))
            await self._quarantine.forget_request(entry_id)

    async def _give_up(self, entry_id: str, entry: Quarantined | None, reason: str) -> None:
        """Leaves it to the operator."""
        if (known := await self._quarantine.find(entry_id)) is not None:
            await self._quarantine.set_aside_again(known, reason)
        elif entry is None and entry_id.startswith("record:"):
            at, offset = _place_of(entry_id.partition(":")[2])
            await self._quarantine.set_aside_record(at, range(offset, offset + 1), reason)

    async def _retry(self, entry: Quarantined) -> None:
        if entry.kind == "key":
            await self._shared.retry(entry)
            await self._free_runs(entry.name)
        else:
            await self._retry_record(entry)

    async def _examine(self, entry_id: str, run_id: str, *, is_refolded: bool) -> None:
        """Has the run examined, which begins the request."""
        state: RunState | None = None if run_id in self._suspects else await self._runs.get(run_id)
        if state is not None:
            self._suspects.add(Suspect(run_id, state.log_id, is_refolded=is_refolded, is_requested=True))
        elif run_id not in self._suspects:
            async with self._quarantine.begun(entry_id):
                await self._quarantine.release([entry_id], "there is no such run")

    async def _retry_record(self, entry: Quarantined) -> None:
        if entry.topic == self._topics.catalog:
            await self._intake.retry(entry)
        else:
            # The records may belong to any key, and their keys are folded further by now.
            await self._quarantine.set_aside_record(
                entry.at, range(entry.offset, entry.next_offset), entry.reason
            )

    async def _free_runs(self, key: str) -> None:
        """Has the runs tried again that waited for a key."""
        if self._quarantine.get(key_id_of(key)) is None:
            for entry in await self._store.all(kind="run"):
                if key_id_of(key) in entry.reason:
                    await self._store.request(entry.id, "retry", owner=entry.owner)


def _place_of(name: str) -> tuple[Partition, int]:
    """The partition and the offset in the id of a record."""
    at, _, offset = name.rpartition(":")
    topic, _, number = at.rpartition("-")
    return Partition(topic, int(number)), int(offset)
