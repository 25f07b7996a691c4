"""The chain of a partition that no projector folds as a run: of the shared topics, and of the topic
of evidence itself.
"""

from contextlib import aclosing

from runfold.log.reader import read_fetches
from runfold.log.settings import LogSettings
from runfold.store.page import packed_records
from runfold.store.signing import StoredChain
from runfold_projections.chain import extend, head_of
from runfold_schemas.topics import Partition


class FollowedChain:
    """The chain of one partition, as far as it was read."""

    def __init__(self, settings: LogSettings, at: Partition, stored: StoredChain) -> None:
        self.at = at
        self.next_offset = stored.next_offset
        self.signed = stored.signed
        self._chain = stored.chain
        self._settings = settings

    @property
    def head(self) -> bytes:
        return head_of(self._chain)

    @property
    def stored(self) -> StoredChain:
        return StoredChain(self.next_offset, self._chain, self.signed)

    async def catch_up(self) -> None:
        """Reads the log to its present end. Raises `LogGoneError`, `UnavailableError`."""
        fetches = read_fetches(self._settings, self.at, first_offset=self.next_offset)
        async with aclosing(fetches):
            async for fetch in fetches:
                self._chain = extend(self._chain, packed_records(fetch.records))
                self.next_offset = fetch.next_offset
