"""A proof that one record is in its log: a JSON document that `docs/check_proof.py` checks without
Runfold.
"""

from collections.abc import Collection
from contextlib import aclosing
from typing import Final

from pydantic import BaseModel

from runfold.evidence.log import LoggedTree, evidence_of, read_trees
from runfold.evidence.trees import Leaf
from runfold.log.reader import LogGoneError, offset_at, read
from runfold.log.settings import LogSettings
from runfold.store.page import packed_records
from runfold_projections.chain import START, digest_of, extend, extend_by_digests, head_of
from runfold_projections.merkle import path_of
from runfold_schemas.errors import RunfoldError
from runfold_schemas.topics import Partition

_CLOCKS_MS: Final = 5 * 60 * 1000
"""By how much the clocks of two brokers may differ."""


class NoProofError(RunfoldError):
    """There is no proof of a record."""


class Proof(BaseModel):
    """What shows that a record is in its log, all bytes in hexadecimal digits."""

    format: str = "runfold-proof-1"
    record: str
    """The record's bytes: MessagePack of offset, time, key, headers and value."""
    chain: str
    """The chain of the log before the record."""
    later: list[str]
    """The digests of the records behind it, up to the signed head."""
    leaf: str
    index: int
    path: list[str]
    """The hashes that lead from the leaf to the root of its tree."""
    statement: str
    signature: str


async def prove(settings: LogSettings, trusted: Collection[str], *, at: Partition, offset: int) -> Proof:
    """The proof of the record at an offset, by the first tree that includes it. Raises
    `NoProofError`, `LogGoneError`, `UnavailableError`.
    """
    log_time = await _time_of(settings, at, offset)
    logged, leaf = await _first_tree(settings, trusted, at=at, offset=offset, since_ms=log_time)
    before, records = START, list[bytes]()
    reading = read(settings, at.topic, partition=at.partition, end=leaf.next_offset)
    async with aclosing(reading):
        async for fetched in reading:
            before = extend(before, packed_records(each for each in fetched if each.offset < offset))
            records += packed_records(each for each in fetched if each.offset >= offset)
    later = [digest_of(record) for record in records[1:]]
    if head_of(extend_by_digests(extend(before, records[:1]), later)) != leaf.head:
        raise NoProofError(
            f"the records of {at.topic} before offset {leaf.next_offset} are not those that were signed:"
            " `runfold verify --chain` names what was changed"
        )
    assert logged.tree is not None
    tree = logged.tree.tree
    index = tree.leaves.index(leaf.text)
    return Proof(
        record=records[0].hex(),
        chain=before.hex(),
        later=[digest.hex() for digest in later],
        leaf=leaf.text,
        index=index,
        path=[node.hex() for node in path_of([text.encode() for text in tree.leaves], index)],
        statement=tree.statement,
        signature=tree.signature,
    )


async def _time_of(settings: LogSettings, at: Partition, offset: int) -> int:
    reading = read(settings, at.topic, partition=at.partition, first_offset=offset, end=offset + 1)
    async with aclosing(reading):
        async for fetched in reading:
            for record in fetched:
                return record.log_time
    raise NoProofError(f"{at.topic} has no record at offset {offset}")


async def _first_tree(
    settings: LogSettings, trusted: Collection[str], *, at: Partition, offset: int, since_ms: int
) -> tuple[LoggedTree, Leaf]:
    """The first tree with a head of the log behind the offset, and its leaf."""
    evidence = evidence_of(settings)
    unsigned = NoProofError(
        f"the record at offset {offset} of {at.topic} is in no signed tree: a projector with"
        " RUNFOLD_SIGNING_KEYS signs every RUNFOLD_SIGNING_SECONDS"
    )
    try:
        begin = await offset_at(settings, evidence, since_ms - _CLOCKS_MS)
        trees = read_trees(settings, trusted, first_offset=begin)
        async with aclosing(trees):
            async for logged in trees:
                for leaf in logged.tree.leaves if logged.tree else ():
                    if leaf.at == at and leaf.next_offset > offset:
                        return logged, leaf
    except LogGoneError as error:
        raise unsigned from error
    raise unsigned
