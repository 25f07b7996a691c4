"""What a worker has set aside, and which errors are a reason for that.

An error of a server ends the worker: see `worker`. Any other error arises from the data of one run,
of one key of a shared topic or of one record of the catalog. Only that waits, until an operator
tries it again or skips the record. All others go on.
"""

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Container, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from prometheus_client import Counter as CounterMetric

from runfold.log.archived_logs import NoArchiveError
from runfold.projector.dead_letters import HasKeys
from runfold.store.quarantine import (
    REASON_MAX,
    Quarantined,
    QuarantineStore,
    Request,
    degradation,
    key_id_of,
    no_topic,
    record_id_of,
    run_id_of,
)
from runfold.telemetry.log_limit import LimitedLog
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.lists import QuarantineKind
from runfold_schemas.topics import Partition

_SET_ASIDE = CounterMetric(
    "runfold_set_aside", "Runs, keys and records that this projector has put into quarantine", ["kind"]
)

DIED: str = (
    "the projector died twice with this record in hand, the second time with nothing else: it needs too"
    " much memory"
)
"""The reason of records that were in hand at two deaths."""

BEGUN_MAX = 2
"""How often projectors begin a request that is kept. Each time before this, a process died."""

_ERROR: Final = re.compile(r"(?!HeldBackError)(\w+): ")
"""The begin of a reason that `reason_of` has made. That of a `HeldBackError` has ids alone."""

_log = logging.getLogger(__name__)


def defect(error: BaseException) -> Exception:
    """The first error in `error`, if all of them are about data. Otherwise raises `error`: a server
    is away, or the task was cancelled.
    """
    leaves = list(_leaves(error))
    for leaf in leaves:
        if _is_of_server(leaf) or not isinstance(leaf, Exception):
            raise error
    first = leaves[0]
    assert isinstance(first, Exception)
    return first


def _is_of_server(error: BaseException) -> bool:
    return isinstance(error, UnavailableError | ConfigurationError) and not isinstance(error, NoArchiveError)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def reason_of(error: Exception) -> str:
    """The error in one line."""
    # A message may quote text that MongoDB refuses.
    text = " ".join(str(error)[: 2 * REASON_MAX].encode(errors="replace").decode().split())
    return f"{type(error).__name__}: {text}"[:REASON_MAX] if text else type(error).__name__


class HiddenError(Exception):
    """Stands for an error of this name in a log, with its trace and without its message."""


class Quarantine:
    """The entries of the worker's partitions, in memory and in MongoDB. If clients encrypt, which
    `has_keys` says, the reason of an entry names an error without its message: the message may
    quote a record that is in clear.
    """

    def __init__(self, store: QuarantineStore, *, has_keys: HasKeys) -> None:
        self._store = store
        self._has_keys = has_keys
        self._entries: dict[str, Quarantined] = {}
        self._decided: frozenset[str] = frozenset()
        # Held while MongoDB and memory differ.
        self._changing = asyncio.Lock()
        self._lines = LimitedLog(
            _log, "runs, keys and records were set aside", level=logging.ERROR, lines_max=5, seconds=1.0
        )

    async def loggable(self, error: Exception) -> Exception:
        """The error as a log may have it, for the same reason."""
        if await self._has_keys():
            return HiddenError(type(error).__name__).with_traceback(error.__traceback__)
        return error

    async def load(self, partitions: Collection[int]) -> None:
        """Loads the entries of these partitions of the catalog, and forgets all others."""
        async with self._changing:
            self._entries = {entry.id: entry for entry in await self._store.all(owners=partitions)}

    def decide(self, entry_ids: Iterable[str]) -> None:
        """Notes that an operator has decided what becomes of these, so that the log does not name
        them when they are set aside.
        """
        self._decided = frozenset(entry_ids)

    def get(self, entry_id: str) -> Quarantined | None:
        return self._entries.get(entry_id)

    def has_run(self, run_id: str) -> bool:
        return run_id_of(run_id) in self._entries

    def has_key(self, at: Partition, key: str) -> bool:
        entry = self._entries.get(key_id_of(key))
        return entry is not None and entry.at == at

    def is_deadly(self, at: Partition, key: bytes | None) -> bool:
        """Whether a record with this key killed the projector. Further records with the key may do
        the same, so they are not decoded.
        """
        if not self._entries or key is None:
            return False
        entry = self._entries.get(key_id_of(key.decode(errors="replace")))
        return entry is not None and entry.at == at and entry.reason == DIED

    def covered_by(self, at: Partition, offsets: range) -> list[Quarantined]:
        """The entries of a partition that begin within these offsets."""
        return [entry for entry in self._entries.values() if entry.at == at and entry.offset in offsets]

    def counts(self) -> Counter[QuarantineKind]:
        return Counter(entry.kind for entry in self._entries.values())

    async def find(self, entry_id: str) -> Quarantined | None:
        """The entry, also if another worker set it aside after `load`."""
        async with self._changing:
            if entry_id not in self._entries and (entry := await self._store.get(entry_id)) is not None:
                self._entries[entry_id] = entry
            return self._entries.get(entry_id)

    async def set_aside_again(self, entry: Quarantined, reason: str) -> None:
        await self._set_aside(entry._replace(reason=reason))

    @asynccontextmanager
    async def begun(self, entry_id: str) -> AsyncIterator[Request | None]:
        """The request for this id, if there is one, for the length of the block. An operator's
        request is forgotten first. A request that is kept remains, until its outcome is stored. If
        the block is interrupted, the request is there again afterwards.
        """
        request = await self._store.begin(entry_id)
        try:
            yield request
        except BaseException:
            if request is not None:
                with contextlib.suppress(UnavailableError):
                    await self._store.put_back(request)
            raise

    async def forget_request(self, entry_id: str) -> None:
        await self._store.forget([entry_id])

    async def set_aside_run(
        self, run_id: str, at: Partition, offsets: range, reason: str, *, owner: int
    ) -> None:
        entry = _entry(run_id_of(run_id), "run", at, offsets, reason)
        await self._set_aside(entry._replace(owner=owner))

    async def set_aside_key(self, key: str, at: Partition, offset: int, reason: str) -> None:
        await self._set_aside(_entry(key_id_of(key), "key", at, range(offset, offset + 1), reason))

    async def set_aside_record(self, at: Partition, offsets: range, reason: str) -> None:
        await self._set_aside(_entry(record_id_of(at, offsets.start), "record", at, offsets, reason))

    async def release(self, entry_ids: Iterable[str], why: str) -> None:
        """Ends the quarantine of these entries, and forgets requests for them."""
        released = list(entry_ids)
        if not released:
            return
        async with self._changing:
            await self._store.remove(released)
            known = [entry_id for entry_id in released if self._entries.pop(entry_id, None) is not None]
        for entry_id in known:
            _log.warning("%s is no longer in quarantine: %s", entry_id, why)

    async def take_back(self, topics: Container[str]) -> list[str]:
        """Ends the quarantine of runs that had no topic, and have it now. Returns their ids."""
        back = [
            entry
            for entry in self._entries.values()
            if entry.kind == "run" and entry.topic in topics and entry.reason == no_topic(entry.topic)
        ]
        await self.release([entry.id for entry in back], "its topic exists again")
        return [entry.name for entry in back]

    def reasons(self) -> list[str]:
        """What readiness says about the entries."""
        return degradation(self._entries)

    async def _set_aside(self, entry: Quarantined) -> None:
        if (error := _ERROR.match(entry.reason)) is not None and await self._has_keys():
            entry = entry._replace(reason=error[1])
        async with self._changing:
            await self._store.add(entry)
            self._entries[entry.id] = entry
        _SET_ASIDE.labels(entry.kind).inc()
        if entry.id in self._decided:
            return
        self._lines.log(
            entry.id,
            f"{entry.id} is set aside at offset {entry.offset} of {entry.topic}, partition"
            f" {entry.partition}: {entry.reason}; see `runfold quarantine show {entry.id}`",
        )


def _entry(entry_id: str, kind: QuarantineKind, at: Partition, offsets: range, reason: str) -> Quarantined:
    return Quarantined(
        id=entry_id,
        kind=kind,
        topic=at.topic,
        partition=at.partition,
        offset=offsets.start,
        next_offset=offsets.stop,
        owner=at.partition,
        reason=reason,
        since=datetime.now(UTC),
    )
