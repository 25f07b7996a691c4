"""What the query service remembers of the quarantine, so that reads which nearly never concern a
quarantine need not ask MongoDB.
"""

from typing import Final

from runfold.store.edition import Edition
from runfold.store.quarantine import degradation, key_id_of, run_id_of
from runfold_schemas.lists import QuarantineKind

REMEMBERED_MAX: Final = 1_000
"""The entries of each kind that are remembered. If there are more, reads ask MongoDB."""

_KINDS: Final[dict[str, QuarantineKind]] = {run_id_of(""): "run", key_id_of(""): "key"}
"""The kinds of entries that reads meet, by the prefixes of their ids."""


class QuarantineLook:
    """The quarantine of one edition as of the last look at it, a second ago at most."""

    def __init__(self) -> None:
        self._edition: str | None = None
        self._ids: frozenset[str] = frozenset()
        self._incomplete: frozenset[str] = frozenset()
        """The prefixes of the kinds with too many entries."""

    async def repeat(self, edition: Edition) -> None:
        """Looks at the quarantine of this edition. Raises `UnavailableError`."""
        entries = await edition.quarantine.all(limit=REMEMBERED_MAX)
        ids, incomplete = {entry.id for entry in entries}, set()
        # The entries are sorted by their ids, so many of one kind would hide the next kind.
        for prefix, kind in _KINDS.items() if len(entries) == REMEMBERED_MAX else ():
            entries = await edition.quarantine.all(kind=kind, after=prefix, limit=REMEMBERED_MAX)
            ids |= {entry.id for entry in entries}
            if len(entries) == REMEMBERED_MAX:
                incomplete.add(prefix)
        self._edition = edition.name
        self._ids, self._incomplete = frozenset(ids), frozenset(incomplete)

    def may_have(self, entry_id: str, edition: Edition | None) -> bool:
        """Whether the entry may be in quarantine in this edition. It costs nothing."""
        return (
            edition is None
            or self._edition != edition.name
            or entry_id in self._ids
            or f"{entry_id.partition(':')[0]}:" in self._incomplete
        )

    @property
    def degradation(self) -> list[str]:
        """What readiness says about the quarantine."""
        return degradation(self._ids)
