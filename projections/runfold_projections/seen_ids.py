"""The ids of the events of a run that count: 16 bytes each, except for the newest."""

from collections.abc import Iterable
from typing import Final

_LOOSE_MAX: Final = 512
"""The number of ids that are kept as a set of strings, of 150 bytes each. Sorting them takes 0.2 us
for each id.
"""

_ID_BYTES: Final = 16


class SeenIds:
    """A set of event ids. Most ids are higher than all before, because UUIDv7 begin with the time.
    So few ids are searched among the packed ones.
    """

    __slots__ = ("_highest", "_loose", "_packed")

    def __init__(self, event_ids: Iterable[str] = ()) -> None:
        self._loose: set[str] | None = None
        self._packed = b""
        """Sorted."""
        self._highest = ""
        if ids := {*event_ids}:
            self._loose = ids
            self.pack()

    def __contains__(self, event_id: str) -> bool:
        if self._loose is not None and event_id in self._loose:
            return True
        return event_id <= self._highest and self._is_packed(_to_bytes(event_id))

    def add(self, event_id: str) -> None:
        if self._loose is None:
            self._loose = set()
        self._loose.add(event_id)
        if len(self._loose) > _LOOSE_MAX + len(self._packed) // (8 * _ID_BYTES):
            self.pack()

    def pack(self) -> None:
        """Packs all ids. Call it when a run is quiet."""
        if self._loose is None:
            return
        added = sorted(self._loose)
        more = bytes.fromhex("".join(added).replace("-", ""))
        if added[0] > self._highest:
            self._packed += more
        else:
            self._packed = b"".join(sorted(_each(self._packed) + _each(more)))
        self._highest = max(self._highest, added[-1])
        self._loose = None

    def _is_packed(self, key: bytes) -> bool:
        packed = self._packed
        low, high = 0, len(packed) // _ID_BYTES
        while low < high:
            middle = (low + high) // 2
            begin = middle * _ID_BYTES
            found = packed[begin : begin + _ID_BYTES]
            if found == key:
                return True
            if found < key:
                low = middle + 1
            else:
                high = middle
        return False


def _to_bytes(event_id: str) -> bytes:
    return bytes.fromhex(event_id.replace("-", ""))


def _each(packed: bytes) -> list[bytes]:
    return [packed[begin : begin + _ID_BYTES] for begin in range(0, len(packed), _ID_BYTES)]
