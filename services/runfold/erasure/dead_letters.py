"""Deletes the dead letters of a user's runs, by tombstones. Their topic is compacted from the
first erasure on that has to delete some. Other dead letters stay until their retention ends. A dead
letter without content is judged by its record.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final

from runfold.client.connection import LogConnection
from runfold.erasure.names import Names
from runfold.log.publisher import Outgoing
from runfold.log.reader import LogGoneError, read
from runfold_schemas.codec import Record
from runfold_schemas.memories import USER_KEYS
from runfold_schemas.topics import Partition, Topics

COMPACTION_HOURS: Final = 24
"""After this time Kafka has removed deleted records, if the partition has got a further one."""

_PLACE: Final = re.compile(rb"(?P<topic>.+)-(?P<partition>[0-9]{1,9}):(?P<offset>[0-9]{1,18})")

_COMPACTED: Final = {
    "cleanup.policy": "compact,delete",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": str(COMPACTION_HOURS * 3600 * 1000),
}


async def erase_dead_letters(connection: LogConnection, *, user: str, origins: Collection[str]) -> int:
    """Deletes the dead letters from these topics, and those from shared topics that name the user.
    Returns how many there were.
    """
    keys = await _find(connection, user=user, origins=origins)
    if not keys:
        return 0
    topic = connection.topics.dead_letters
    await connection.admin.alter(topic, _COMPACTED)
    acks = [
        await connection.publisher.send(topic, Outgoing(key=key, value=None), partition=0)
        for key in sorted(keys)
    ]
    for ack in acks:
        await connection.publisher.wait(ack)
    return len(keys)


async def _find(connection: LogConnection, *, user: str, origins: Collection[str]) -> set[bytes]:
    names = {origin.encode() for origin in origins}
    shared = tuple(f"{topic}-".encode() for topic in connection.topics.shared)
    names_of_user = Names([user])
    keys: set[bytes] = set()
    references: set[bytes] = set()

    def take(record: Record) -> None:
        key = record.key or b""
        if record.value is None:
            keys.discard(key)
            references.discard(key)
        elif key.rpartition(b":")[0] in names or (
            key.startswith(shared) and _is_of_user(record.value, user, names_of_user)
        ):
            keys.add(key)
        elif key.startswith(shared) and not record.value:
            references.add(key)

    try:
        async for records in read(connection.settings, connection.topics.dead_letters):
            for record in records:
                take(record)
    except LogGoneError:
        pass
    for at, letters in _places(connection.topics, references).items():
        keys |= {
            letters[record.offset]
            for record in await _records(connection, at, letters)
            if _is_of_user(record.value or b"", user, names_of_user)
        }
    return keys


def _places(topics: Topics, keys: Collection[bytes]) -> Mapping[Partition, Mapping[int, bytes]]:
    """The keys of dead letters by the places of their records, which are in shared topics. Other
    producers may have written any key.
    """
    places: dict[Partition, dict[int, bytes]] = defaultdict(dict)
    for key in keys:
        if (match := _PLACE.fullmatch(key)) is not None:
            at = Partition(match["topic"].decode(errors="replace"), int(match["partition"]))
            if at.topic in topics.shared and at.partition < topics.partitions:
                places[at][int(match["offset"])] = key
    return places


async def _records(connection: LogConnection, at: Partition, offsets: Collection[int]) -> list[Record]:
    """What a shared topic still has at these offsets. Some may be beyond its end."""
    found: list[Record] = []
    reading = read(connection.settings, at.topic, partition=at.partition, first_offset=min(offsets))
    with suppress(LogGoneError):
        async with aclosing(reading):
            async for records in reading:
                found += [record for record in records if record.offset in offsets]
                if records[-1].offset >= max(offsets):
                    break
    return found


def _is_of_user(value: bytes, user: str, names: Names) -> bool:
    """Whether a record has the user as its user. One that is no JSON counts if it has the user's id
    as a word.
    """
    if names.find(value) is None:
        return False
    try:
        return _has_user(json.loads(value), user)
    except (ValueError, RecursionError):
        return True


def _has_user(value: Any, user: str) -> bool:
    if isinstance(value, list):
        return any(_has_user(inner, user) for inner in value)
    if not isinstance(value, dict):
        return False
    return any(value.get(key) == user for key in USER_KEYS) or any(
        _has_user(inner, user) for inner in value.values()
    )
