"""The topic of evidence, as its readers see it.

Each tree names the head of the topic's own chain before it. So a tree that was changed, removed or
inserted afterwards is noticed by the next tree, whoever signed that.
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import NamedTuple

from runfold.evidence.trees import CheckedTree, ForgedTreeError, check
from runfold.log.reader import read
from runfold.log.settings import LogSettings
from runfold.store.page import packed_records
from runfold_projections.chain import START, extend, head_of
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition


class LoggedTree(NamedTuple):
    """A record of the topic of evidence."""

    record: Record
    tree: CheckedTree | None
    """None if the record is no tree that a trusted key has signed."""
    fault: str


def evidence_of(settings: LogSettings) -> Partition:
    """The partition with all trees of a prefix."""
    return Partition(settings.topics.evidence, 0)


async def read_trees(
    settings: LogSettings, trusted: Collection[str], *, first_offset: int = 0
) -> AsyncGenerator[LoggedTree, None]:
    """The trees from `first_offset` on to the present end. Raises `LogGoneError` if nothing was
    ever signed, and `UnavailableError`.
    """
    reading = read(settings, evidence_of(settings).topic, first_offset=first_offset)
    async with aclosing(reading):
        async for records in reading:
            for record in records:
                try:
                    yield LoggedTree(record, check(record.value, prefix=settings.prefix, trusted=trusted), "")
                except ForgedTreeError as error:
                    yield LoggedTree(record, None, str(error))


class Heads:
    """The heads of the topic's own chain, to compare what the trees say of it. Begins at offset
    0.
    """

    def __init__(self) -> None:
        self._chain = START
        self._offsets, self._heads = [0], [head_of(START)]

    def take(self, logged: LoggedTree) -> str | None:
        """Takes the next record. Returns what is wrong with the records before it, None if they are
        what the signer saw.
        """
        fault = None
        if logged.tree is not None:
            before = logged.tree.statement.before
            fault = self._fault(before.offset, before.head)
        self._chain = extend(self._chain, packed_records([logged.record]))
        self._offsets.append(logged.record.offset + 1)
        self._heads.append(head_of(self._chain))
        return fault

    def _fault(self, offset: int, head: str) -> str | None:
        if self._heads[bisect_right(self._offsets, max(offset, 0)) - 1].hex() == head:
            return None
        return f"the trees before offset {offset} are not those that its signer saw"
