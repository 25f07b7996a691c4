"""A life of a run that somebody asked for, and the partition of the catalog that has it."""

import sys
from typing import Final
from weakref import WeakValueDictionary

from runfold.log.catalog import folded_life
from runfold.log.life_places import LifePlaces
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record

_ALL: Final = sys.maxsize


class WatchedLife:
    """The life of a run as far as the catalog was read. It stays current as long as somebody holds
    the object.
    """

    __slots__ = ("__weakref__", "_next_offset", "life", "unread")

    def __init__(self, life: Life | None, *, unread: int) -> None:
        self.life = life
        self.unread = unread
        """The number of records at the beginning of the partition among which earlier ones of the
        run may be. 0 if `life` is the one that counts.
        """
        self._next_offset = 0

    @property
    def is_given(self) -> bool:
        """Whether `life` may be what a caller knows, and not what was read."""
        return self.unread == _ALL

    def take(self, key: bytes, record: Record) -> None:
        """Takes a record under the run's key. A partition may be read again from its beginning."""
        if record.offset >= self._next_offset:
            self.life = folded_life(self.life, key, record.value)
            self._next_offset = record.offset + 1

    def set_read(self, life: Life | None, next_offset: int) -> None:
        """Sets the life that counts, of all records before `next_offset`."""
        self.life, self._next_offset, self.unread = life, next_offset, 0

    def restart(self, *, rewound: bool = False) -> None:
        """The partition is read again from its beginning. `rewound` says that it is a new one."""
        if self.unread:
            self.unread = _ALL
        if rewound:
            self._next_offset = 0


class FollowedPartition:
    """A partition of the catalog that a view follows: what it has read, and the lives asked for."""

    def __init__(self) -> None:
        self.began: int | None = None
        """The offset from which the partition is followed. None if it is not followed."""
        self.position = 0
        self.places = LifePlaces()
        """Where the lives from `began` on lie."""
        self.logs = LifePlaces()
        """Where the entries of segments from `began` on lie."""
        self.caught_up = False
        """Whether the partition was read to an end since it is followed from `began`."""
        self.lacks_archived = False
        """Whether the partition says that it lacks archived runs."""
        self._watched: WeakValueDictionary[bytes, WatchedLife] = WeakValueDictionary()

    def begin(self, offset: int, *, rewound: bool = False) -> None:
        """The partition is followed from `offset` on."""
        self.began = self.position = offset
        self.places, self.logs = LifePlaces(), LifePlaces()
        self.caught_up = self.lacks_archived = False
        for watched in self._watched.values():
            watched.restart(rewound=rewound)

    def watch(self, key: bytes, life: Life | None = None) -> WatchedLife:
        """The life under `key`, from now on. `life` is what the caller knows of it."""
        watched = self._watched.get(key)
        if watched is None:
            unread = len(self.places) if life is None and self.began == 0 else _ALL
            watched = self._watched[key] = WatchedLife(life, unread=unread)
        return watched

    def is_watched(self, key: bytes) -> bool:
        """Whether somebody asked for the life under this key."""
        return key in self._watched

    def take(self, record: Record, key: bytes, *, watch: bool) -> WatchedLife | None:
        """Takes a life, and returns it if somebody asked for it, or if it is to `watch`."""
        watched = self.watch(key) if watch else self._watched.get(key)
        if watched is not None:
            watched.take(key, record)
        self.places.add(key, record.offset)
        return watched
