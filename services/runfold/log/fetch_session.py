"""An incremental fetch session (KIP-227) with one broker.

The broker remembers which partitions a session has, and from which offset each of them is fetched.
So a request names only what has changed, and an answer only what has news. Nothing depends on the
broker's memory: a session that the broker has lost begins anew, from the offsets that are kept
here.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code

from runfold.log.batches import moved
from runfold.log.fetch_messages import Fetch, FetchedPartition
from runfold_schemas.topics import Partition, base_of, is_of_run

ANSWER_BYTES: Final = 8 * 1024 * 1024
"""The limit of an answer. Unpacking so much blocks the event loop for 50 ms."""

PARTITION_BYTES: Final = 1024 * 1024
"""The limit of one partition in an answer. A broker never cuts the first batch of an answer, so
larger batches arrive too.
"""

SESSIONLESS_MAX: Final = 12
"""Up to this number of partitions, every request names all of them, and takes none of the 1,000
places that a broker has for sessions. The catalog has twelve partitions.
"""

OUT_OF_RANGE: Final = 1
"""The error of an offset that the partition does not have."""

REFUSED: Final = 29
"""The error of a topic that this login may not read."""

_CLOSE_SECONDS: Final = 1.0

_NO_SESSION, _FIRST_EPOCH, _LAST_EPOCH, _EPOCH_MAX = 0, 0, -1, 2**31 - 1

_UNKNOWN_SESSION, _WRONG_EPOCH = 70, 71
"""The errors FETCH_SESSION_ID_NOT_FOUND and INVALID_FETCH_SESSION_EPOCH."""


class Answer(NamedTuple):
    """What a broker says of one partition. `asked` is the offset from which it was fetched, and
    `error` a code of Kafka's protocol, 0 if there is none. `end` of a run's topic is that of its
    committed records. `aborted` has a producer's id and the first offset for each aborted
    transaction in `data`. All offsets, those in `data` too, are the run's: see `base_of`.
    """

    partition: Partition
    asked: int
    error: int
    end: int
    data: bytes
    aborted: Sequence[tuple[int, int]] = ()
    is_held: bool = False
    """Whether records of an open transaction follow."""


class FetchSession:
    """A set of partitions that one broker leads, fetched over a connection of their own. `name` is
    the connection's. All of them are of runs, which are read committed, or none.
    """

    def __init__(
        self,
        client: AIOKafkaClient,
        broker: int,
        name: str,
        *,
        sessionless_max: int = SESSIONLESS_MAX,
        answer_bytes: int = ANSWER_BYTES,
        partition_bytes: int = PARTITION_BYTES,
    ) -> None:
        self._client = client
        self._broker = broker
        self._name = name
        self._sessionless_max = sessionless_max
        self.answer_bytes = answer_bytes
        """The limit of the next answer."""
        self._partition_bytes = partition_bytes
        self.session_id = _NO_SESSION
        self.epoch = _FIRST_EPOCH
        self.resets = 0
        """How often a session that existed began anew."""
        self._offsets: dict[Partition, int] = {}
        """All partitions of this session, in the order of whole requests."""
        self._changed: set[Partition] = set()
        self._forgotten: set[Partition] = set()
        self._known: dict[Partition, int] = {}
        """The partitions that the broker knows, each with the offset that it knows."""
        self._confirmed: set[Partition] = set()
        self._ends: dict[Partition, int] = {}
        self._free_at = 0.0
        """The time until which the broker wants no request."""

    def __contains__(self, at: object) -> bool:
        return at in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def partitions(self) -> Iterable[Partition]:
        return self._offsets

    @property
    def has_new(self) -> bool:
        """Whether the next request names a partition that the broker has not answered for yet."""
        return not self._changed <= self._confirmed

    def is_confirmed(self, at: Partition) -> bool:
        """Whether the broker has answered a request that names the partition."""
        return at in self._confirmed

    def end(self, at: Partition) -> int | None:
        """The end of a partition that the broker knows, as of the last answer. A broker tells the
        end when a partition is new and when the end has changed.
        """
        return self._ends.get(at)

    def ask(self, at: Partition, offset: int) -> None:
        """Fetches the partition from `offset` on, from the next request on."""
        self._offsets[at] = offset
        self._changed.add(at)
        self._forgotten.discard(at)

    def forget(self, at: Partition) -> None:
        """Fetches the partition no more, from the next request on."""
        if self._offsets.pop(at, None) is not None:
            self._changed.discard(at)
            self._confirmed.discard(at)
            if at in self._known:
                self._forgotten.add(at)

    async def fetch(self, wait_ms: int) -> list[Answer]:
        """Waits up to `wait_ms` for records, and returns what the broker says. Call it again after
        it has returned only. Raises aiokafka's errors.

        The list is empty if there is no news, and also if the broker has lost the session, which
        then begins anew with the next call.
        """
        if (pause := self._free_at - time.monotonic()) > 0:
            await asyncio.sleep(pause)
        request = self._next_request(wait_ms)
        named = request.named
        try:
            response = await self._client.send(self._broker, request, group=self._name)
        except BaseException:
            self._begin_anew(self.session_id)
            raise
        self._free_at = time.monotonic() + response.throttle_time_ms / 1000
        if response.error_code:
            known = _NO_SESSION if response.error_code == _UNKNOWN_SESSION else self.session_id
            self._begin_anew(known)
            if response.error_code in (_UNKNOWN_SESSION, _WRONG_EPOCH):
                return []
            raise for_code(response.error_code)
        self._go_on(response.session_id)
        self._confirmed.update(at for at in named if at in self._offsets)
        answers = [
            _answer(each, self._known[each.at])
            for each in response.partitions
            # A partition that was forgotten meanwhile may still be in the answer.
            if each.at in self._offsets and each.at in self._known
        ]
        for answer in answers:
            if answer.error:
                self._ends.pop(answer.partition, None)  # it is told again after the error
            else:
                self._ends[answer.partition] = answer.end
        self._turn(answers)
        return answers

    async def close(self) -> None:
        """Gives the session's place at the broker back, and closes the connection."""
        if self.session_id != _NO_SESSION:
            request = Fetch(0, self.answer_bytes, (self.session_id, _LAST_EPOCH), [], [])
            self.session_id = _NO_SESSION
            # Over another connection: this one may wait for the answer to a fetch. If it fails, the
            # broker forgets the session by itself.
            with contextlib.suppress(KafkaError, TimeoutError, OSError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._client.send(self._broker, request)
        # Others may go on using the client.
        connection = self._client._conns.pop((self._broker, self._name), None)  # noqa: SLF001  # aiokafka closes all or none
        if connection is not None:
            connection.close()

    def _next_request(self, wait_ms: int) -> Fetch:
        is_whole = self.epoch in (_FIRST_EPOCH, _LAST_EPOCH)
        if is_whole:
            self.epoch = _LAST_EPOCH if len(self) <= self._sessionless_max else _FIRST_EPOCH
            # With its old id, a session that the broker still has is closed.
            self._known, self._forgotten, self._ends = {}, set(), {}
            named: Iterable[Partition] = list(self._offsets)
        else:
            named = [at for at in self._changed if at in self._offsets]
        offsets, size = self._offsets, self._partition_bytes
        forgotten, self._forgotten, self._changed = self._forgotten, set(), set()
        for at in forgotten:
            self._known.pop(at, None)
            self._ends.pop(at, None)
        for at in named:
            self._known[at] = offsets[at]
        entries = [(at.topic, at.partition, offsets[at] - base_of(at.topic), size) for at in named]
        request = Fetch(
            wait_ms,
            self.answer_bytes,
            (self.session_id, self.epoch),
            entries,
            list(forgotten),
            is_committed=any(is_of_run(at.topic) for at in islice(offsets, 1)),
        )
        request.named = named
        return request

    def _go_on(self, session_id: int) -> None:
        """Takes over the session of an answer."""
        self.session_id = session_id
        if session_id == _NO_SESSION:
            self.epoch = _FIRST_EPOCH
        else:
            self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1

    def _begin_anew(self, session_id: int) -> None:
        # With the old id and the first epoch, the broker closes the old session.
        self.resets += self.session_id != _NO_SESSION
        self.session_id, self.epoch = session_id, _FIRST_EPOCH
        self._confirmed.clear()
        self._changed = set(self._offsets)

    def _turn(self, answers: Iterable[Answer]) -> None:
        """Has the next whole request name those partitions last that had records."""
        if self.session_id == _NO_SESSION:
            for answer in answers:
                if answer.data:
                    self._offsets[answer.partition] = self._offsets.pop(answer.partition)


def _answer(fetched: FetchedPartition, asked: int) -> Answer:
    """What a broker says of a partition that was fetched from `asked` on, by the offsets of the
    run.
    """
    at, error, end, stable_end, aborted, data = fetched
    if not is_of_run(at.topic):
        return Answer(at, asked, error, end, data)
    is_held = 0 <= stable_end < end
    end = stable_end if is_held else end
    if base := base_of(at.topic):
        aborted = [(producer_id, first + base) for producer_id, first in aborted]
        end, data = end + base, moved(data, base)
    return Answer(at, asked, error, end, data, aborted, is_held)
