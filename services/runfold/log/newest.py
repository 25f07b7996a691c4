"""Reads the newest records of a log with one request, over a connection that stays open.

A consumer of aiokafka needs three requests and a connection for each log. This reader is for the
few records that readers wait for, so it leaves everything that is large or damaged to others.
"""

from typing import Final, NamedTuple

from runfold.log.driver import kafka_errors
from runfold.log.fetch_answer import Budget, PartitionAnswer, skipped_here
from runfold.log.fetch_session import Answer, FetchSession
from runfold.log.leaders import Leaders
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition

NEWEST_BYTES: Final = 256 * 1024
"""The size of what is read. The worst known records need 400 times their size when they are
decoded.
"""


class Newest(NamedTuple):
    """Records of a log, and the offset behind them."""

    records: list[Record]
    next_offset: int


async def newest(leaders: Leaders, at: Partition, *, first_offset: int) -> Newest | None:
    """The records from `first_offset` on that the broker gives now. None if the log does not exist
    or goes on elsewhere, if there is too much, if a batch cannot be read, or if its broker refuses.
    Raises `UnavailableError`.
    """
    stretch = leaders.stretch(at, first_offset)
    if stretch.topic is None:
        return None
    place = Partition(stretch.topic, at.partition)
    with kafka_errors():
        leader = leaders.leader(place)
        if leader is None:
            leader = (await leaders.find([place])).leaders.get(place)
        if leader is None:
            return None
        try:
            answer = await _fetch(leaders, leader, place, max(first_offset, stretch.begin))
        except Exception:
            leaders.forget(place)
            raise
    if answer is None:
        return Newest([], first_offset)
    if answer.error:
        leaders.forget(place)
        return None
    return _read(at, answer)


async def _fetch(leaders: Leaders, leader: int, at: Partition, offset: int) -> Answer | None:
    session = FetchSession(
        leaders.client, leader, "newest", answer_bytes=NEWEST_BYTES, partition_bytes=NEWEST_BYTES
    )
    session.ask(at, offset)
    # A broker that has the client pause, because of a quota, answers without partitions.
    return next(iter(await session.fetch(wait_ms=0)), None)


def _read(at: Partition, answer: Answer) -> Newest | None:
    if len(answer.data) > NEWEST_BYTES:
        return None
    reader = PartitionAnswer.of(answer, at, skipped_here())
    budget = Budget(unpacked_bytes=NEWEST_BYTES)
    records = reader.take(budget)
    if not reader.is_read or reader.is_sealed or budget.unpacked_bytes < 0 or reader.take_unreadable():
        return None
    return Newest(records, reader.next_offset)
