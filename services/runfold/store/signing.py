"""What the signer of evidence keeps: up to where each run is signed, and the chains of the
partitions that it follows itself.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from pymongo import UpdateOne

from runfold.store.database import Database
from runfold.store.run_state import stored_chain
from runfold.store.unavailable import mongo_errors
from runfold.store.writing import upsert_where
from runfold_projections.chain import START
from runfold_schemas.topics import Partition

_FIELDS = {"log_id": 1, "next_offset": 1, "chain": 1}


class UnsignedRun(NamedTuple):
    """A stored run with records behind the last signed head."""

    run_id: str
    log_id: str
    next_offset: int
    chain: bytes | None
    """None if an earlier version has stored the state."""


class StoredChain(NamedTuple):
    """The chain of a partition up to an offset, and the offset that is signed."""

    next_offset: int = 0
    chain: bytes = START
    signed: int = 0


class SigningStore:
    """The positions of one edition's runs. The chains belong to no edition."""

    def __init__(self, database: Database, edition: str) -> None:
        self._runs = database[f"runs.{edition}"]
        self._chains = database["chains"]

    async def unsigned(
        self, partitions: Collection[int], *, has_chain: bool, limit: int
    ) -> list[UnsignedRun]:
        """Runs of these catalog partitions whose last records are not signed. MongoDB looks at all
        runs of the partitions, which takes it a second for a million of them.
        """
        query: dict[str, Any] = {
            "partition": {"$in": list(partitions)},
            "deleted": {"$ne": True},
            "without_log": {"$ne": True},
            "next_offset": {"$gt": 0},
            "chain": {"$exists": has_chain},
            "$expr": {"$ne": ["$next_offset", "$signed"]},
        }
        with mongo_errors():
            return [
                UnsignedRun(
                    document["_id"], document["log_id"], document["next_offset"], stored_chain(document)
                )
                async for document in self._runs.find(query, _FIELDS).limit(limit)
            ]

    async def mark_signed(self, runs: Sequence[UnsignedRun]) -> None:
        operations = [
            UpdateOne({"_id": run.run_id, "log_id": run.log_id}, {"$set": {"signed": run.next_offset}})
            for run in runs
        ]
        if operations:
            with mongo_errors():
                await self._runs.bulk_write(operations, ordered=False)

    async def chains(self, of: Iterable[Partition]) -> dict[Partition, StoredChain]:
        """The stored chain of each partition, the chain of an empty log if there is none."""
        result = dict.fromkeys(of, StoredChain())
        ids = {_id_of(at): at for at in result}
        with mongo_errors():
            async for document in self._chains.find({"_id": {"$in": list(ids)}}):
                stored = StoredChain(document["next_offset"], document["chain"], document.get("signed", 0))
                # A damaged chain is made again from the log.
                if document.get("checksum") == _checksum(document["_id"], stored):
                    result[ids[document["_id"]]] = stored
        return result

    async def save_chain(self, at: Partition, stored: StoredChain) -> None:
        """Saves the chain over one of a lower position."""
        fields = stored._asdict() | {"checksum": _checksum(_id_of(at), stored)}
        lower = {"_id": _id_of(at), "next_offset": {"$not": {"$gt": stored.next_offset}}}
        await upsert_where(self._chains, [UpdateOne(lower, {"$set": fields}, upsert=True)])


def _id_of(at: Partition) -> str:
    return f"{at.topic}-{at.partition}"


def _checksum(id_: str, stored: StoredChain) -> int:
    return crc32(stored.chain, crc32(f"{id_} {stored.next_offset} {stored.signed}".encode()))
