"""A cache of ledgers: where the last message of a run opened, and the JSON of the messages before.

`runfold.query.ledger_reader` fills it and decides whether a checkpoint is still valid.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from runfold.query.cache_room import CacheRoom

MEMBERS_BYTES_MAX: Final = 8 * 1024 * 1024
"""The longest JSON of one checkpoint."""

_TOTAL_BYTES_MAX: Final = 32 * 1024 * 1024


class Checkpoint(NamedTuple):
    """The ledger before `offset`, where no message was open."""

    offset: int
    members: bytes
    """Messages as the members of a JSON array."""
    calls: frozenset[str]
    """The ids of all calls in them."""


BEGINNING: Final = Checkpoint(0, b"", frozenset())


Key = tuple[str, str, object]
"""The name of an edition, the id of a log, and which keys were destroyed."""


class Checkpoints:
    """The checkpoints of the runs that were read last, 32 MB of them. Each edition has its own, so
    a rebuilt run is read anew.
    """

    def __init__(self, room: CacheRoom | None = None) -> None:
        self._kept: OrderedDict[Key, Checkpoint] = OrderedDict()
        self._room = room or CacheRoom()
        self._room.join(self)
        self.size = 0

    def get(self, key: Key) -> Checkpoint:
        return self._kept.get(key, BEGINNING)

    def keep(self, key: Key, checkpoint: Checkpoint) -> None:
        """Keeps the checkpoint, unless a later one is there or its JSON is too long."""
        if checkpoint.offset < self.get(key).offset:
            return
        self.drop(key)
        if len(checkpoint.members) > MEMBERS_BYTES_MAX:
            return
        self._kept[key] = checkpoint
        self.size += len(checkpoint.members)
        while self.size > _TOTAL_BYTES_MAX:
            self.drop_oldest()
        self._room.make_room()

    def drop_oldest(self) -> None:
        self.drop(next(iter(self._kept)))

    def drop(self, key: Key) -> None:
        dropped = self._kept.pop(key, BEGINNING)
        self.size -= len(dropped.members)
