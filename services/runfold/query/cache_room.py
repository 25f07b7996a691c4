"""The memory that the caches of all tenants of a process have together."""

from typing import Final, Protocol
from weakref import WeakSet

BYTES_MAX: Final = 160 * 1024 * 1024
"""As much as all caches of one tenant have at most."""


class Cache(Protocol):
    @property
    def size(self) -> int:
        """In bytes."""

    def drop_oldest(self) -> None:
        """Drops one entry. A cache with a size has one."""


class CacheRoom:
    """If the caches are too large together, the largest one gives way. So one tenant alone has as
    much as there is, and a tenant with little keeps it while others take much.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max: Final = bytes_max
        # A cache leaves with its tenant.
        self._caches: WeakSet[Cache] = WeakSet()

    def join(self, cache: Cache) -> None:
        self._caches.add(cache)

    def make_room(self) -> None:
        """Call it after a cache has grown."""
        while sum(cache.size for cache in self._caches) > self._bytes_max:
            max(self._caches, key=lambda cache: cache.size).drop_oldest()
