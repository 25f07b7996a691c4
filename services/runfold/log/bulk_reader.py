"""Reads ranges of many topics with few fetches.

It reads what brokers answer at once. The rest is left out, and `read_segment` reads it: it waits,
looks for leaders again, and says what is wrong.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import count
from typing import Final

from aiokafka.errors import KafkaError

from runfold.log.fetch_answer import Budget, FetchedRecords, PartitionAnswer, skipped_here
from runfold.log.fetch_session import Answer, FetchSession
from runfold.log.leaders import Leaders
from runfold_schemas.topics import Partition

_WAIT_MS: Final = 200

_IDLE_MAX: Final = 5
"""The number of fetches without news after which the rest is left out."""

_numbers: Final = count()


async def read_ranges(
    leaders: Leaders, ranges: Mapping[Partition, range]
) -> AsyncGenerator[FetchedRecords, None]:
    """The records in these ranges of offsets of runs, in order within each topic. A range may end
    early.
    """
    try:
        if unknown := [at for at in ranges if leaders.leader(at) is None]:
            await leaders.find(unknown)
    except (KafkaError, TimeoutError, OSError):
        return
    by_leader: dict[int, dict[Partition, range]] = defaultdict(dict)
    for at, offsets in ranges.items():
        if offsets and (leader := leaders.leader(at)) is not None:
            by_leader[leader][at] = offsets
    for leader, led in by_leader.items():
        # The name is that of a connection, which a session has for itself.
        session = FetchSession(leaders.client, leader, f"bulk-{next(_numbers)}")
        try:
            async with aclosing(_read(session, led)) as fetches:
                async for fetched in fetches:
                    yield fetched
        finally:
            await session.close()


async def _read(
    session: FetchSession, ranges: Mapping[Partition, range]
) -> AsyncGenerator[FetchedRecords, None]:
    for at, offsets in ranges.items():
        session.ask(at, offsets.start)
    idle = 0
    while len(session) and idle < _IDLE_MAX:
        try:
            answers = await session.fetch(_WAIT_MS)
        except (KafkaError, TimeoutError, OSError):
            return
        idle += 1
        for answer in answers:
            at = answer.partition
            if answer.error:
                session.forget(at)
            elif answer.data:
                position = answer.asked
                for fetched in _portions(answer, ranges[at].stop):
                    position = fetched.next_offset
                    yield fetched
                if position >= ranges[at].stop:
                    session.forget(at)
                else:
                    session.ask(at, position)
                idle = 0 if position > answer.asked else idle


def _portions(answer: Answer, end: int) -> "list[FetchedRecords]":
    """The records of an answer before `end`."""
    reader = PartitionAnswer.of(answer, answer.partition, skipped_here())
    portions: list[FetchedRecords] = []
    while not reader.is_read and reader.next_offset < end:
        records, unreadable = reader.take(Budget()), reader.take_unreadable()
        if reader.next_offset > end:
            records = [record for record in records if record.offset < end]
        within = tuple(batch for batch in unreadable if batch.offset < end)
        portions.append(FetchedRecords(answer.partition, records, min(reader.next_offset, end), within))
    return portions
