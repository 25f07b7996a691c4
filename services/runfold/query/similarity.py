"""The memories of a scope that are nearest in meaning to a query: the vectors of their facts are
compared with the vector of the query.

A vector is looked up in this process, then in MongoDB, and computed if neither has it. So a new
memory is found at once, and a database without vectors only makes the search slower.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final, Self

import numpy as np

from runfold.client.memory import NearestMemory
from runfold.embeddings import Embedder
from runfold.embeddings.embedder import Vector
from runfold.embeddings.nearest import Neighbour, nearest
from runfold.encryption.fields import ERASED, PLACEHOLDER
from runfold.query.cache_room import CacheRoom
from runfold.query.shared import SharedReader
from runfold.store.edition import Edition
from runfold.store.memories import MemoryVectorName, vector_name
from runfold_projections.memory import MemoryRecord

_KEPT_MAX: Final = 50_000
"""Vectors that this process keeps. With 512 dimensions they take some 110 MB."""

_SEALED: Final = "sealed:"
"""The beginning of the names of vectors that are not stored."""

SEALED_VECTOR: Final = vector_name(PLACEHOLDER)

_STORED: Final = np.dtype("<f4")

_READ_AT_ONCE: Final = 100
"""The least number of memories that are read at once, because a filter may drop many of them."""


class StoredSimilarity:
    """A `Similarity`. Use it as an async context manager. The first search loads the embedder, so
    it may raise `ConfigurationError`. With `beside`, the embedder is that of another one, which has
    to be entered before.
    """

    def __init__(
        self,
        shared: SharedReader,
        make_embedder: Callable[[], Embedder],
        *,
        beside: "StoredSimilarity | None" = None,
        room: CacheRoom | None = None,
    ) -> None:
        self._shared = shared
        self._make_embedder = make_embedder
        self._beside = beside
        self._loaded_embedder: Embedder | None = None
        self._stack = AsyncExitStack()
        self._kept: OrderedDict[str, Vector] = OrderedDict()
        self._room = room or CacheRoom()
        self._room.join(self)
        self._epoch: object = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def nearest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        query: str,
        *,
        limit: int,
        matches: Callable[[MemoryRecord], bool] | None,
    ) -> list[NearestMemory]:
        embedder = await self.embedder()
        embedding = asyncio.create_task(embedder.embed([query]))
        try:
            edition, now = (
                await self._shared.edition_of_topic(self._shared.names.memories),
                datetime.now(UTC),
            )
            if edition is None:
                return []
            names = await edition.memories.vector_names(bank_id, scope, now=now)
            sealed = await self._sealed_vectors(edition, names, now=now)
            names = [name for name in names if name.vector != SEALED_VECTOR]
            wanted = (await embedding)[0]
            vectors = await self._vectors(edition, names, dimensions=len(wanted), now=now)
            names += sealed
            vectors |= {name.vector: vector for name, vector in sealed.items()}
            # A memory without a vector was deleted meanwhile.
            names = [name for name in names if name.vector in vectors]
            ranked = _rank(wanted, [vectors[name.vector] for name in names])
        finally:
            embedding.cancel()
        return await self._read_nearest(edition, names, ranked, limit=limit, matches=matches, now=now)

    async def _sealed_vectors(
        self, edition: Edition, names: Sequence[MemoryVectorName], *, now: datetime
    ) -> dict[MemoryVectorName, Vector]:
        """The vectors of sealed facts, which this process alone keeps: a stored vector would tell
        of its fact after the fact's key is destroyed.
        """
        keys = [name.key for name in names if name.vector == SEALED_VECTOR]
        if not keys or (sealing := self._shared.sealing) is None:
            return {}
        if (epoch := sealing.keys.epoch) != self._epoch:
            self._epoch = epoch
            self._kept = OrderedDict((n, v) for n, v in self._kept.items() if not n.startswith(_SEALED))
        records = await edition.memories.get(keys, now=now)
        vectors: dict[MemoryVectorName, Vector] = {}
        facts: dict[MemoryVectorName, str] = {}
        for key, record in records.items():
            clear = await sealing.reveal_memory(record)
            if clear is record or clear.memory.fact == ERASED:
                continue
            name = MemoryVectorName(key, f"{_SEALED}{key}:{record.revision_id}")
            if (kept := self._kept.get(name.vector)) is not None:
                self._kept.move_to_end(name.vector)
                vectors[name] = kept
            else:
                facts[name] = clear.memory.fact
        if facts:
            computed = await (await self.embedder()).embed(list(facts.values()))
            vectors |= zip(facts, computed, strict=True)
            self._keep({name.vector: vectors[name] for name in facts})
        return vectors

    async def _read_nearest(
        self,
        edition: Edition,
        names: Sequence[MemoryVectorName],
        ranked: Sequence[Neighbour],
        *,
        limit: int,
        matches: Callable[[MemoryRecord], bool] | None,
        now: datetime,
    ) -> list[NearestMemory]:
        nearest_memories: list[NearestMemory] = []
        at_once = limit if matches is None else max(limit, _READ_AT_ONCE)
        for begin in range(0, len(ranked), at_once):
            page = ranked[begin : begin + at_once]
            records = await edition.memories.get([names[neighbour.row].key for neighbour in page], now=now)
            for neighbour in page:
                record = records.get(names[neighbour.row].key)
                if record is not None and record.memory.fact == PLACEHOLDER:
                    record = await self._shared.revealed_memory(record)
                if record is not None and (matches is None or matches(record)):
                    nearest_memories.append(NearestMemory(record, neighbour.distance))
            if len(nearest_memories) >= limit:
                break
        return nearest_memories[:limit]

    async def _vectors(
        self, edition: Edition, names: Sequence[MemoryVectorName], *, dimensions: int, now: datetime
    ) -> dict[str, Vector]:
        vectors: dict[str, Vector] = {}
        for name in names:
            if name.vector in self._kept:
                self._kept.move_to_end(name.vector)
                vectors[name.vector] = self._kept[name.vector]
        if unknown := [name for name in names if name.vector not in vectors]:
            loaded = await self._load(edition, unknown, dimensions=dimensions, now=now)
            vectors |= loaded
            self._keep(loaded)
        return vectors

    async def _load(
        self, edition: Edition, unknown: Sequence[MemoryVectorName], *, dimensions: int, now: datetime
    ) -> dict[str, Vector]:
        model = (await self.embedder()).model
        stored = await edition.vectors.get(model, sorted({name.vector for name in unknown}))
        # A vector of another length is not of this model.
        vectors: dict[str, Vector] = {
            name: np.frombuffer(vector, dtype=_STORED).astype(np.float32)
            for name, vector in stored.items()
            if len(vector) == dimensions * _STORED.itemsize
        }
        missing = {name.vector: name.key for name in unknown if name.vector not in vectors}
        if missing:
            computed = await self._compute(edition, missing, now=now)
            vectors |= computed
            await edition.vectors.save(
                model, {name: vector.astype(_STORED).tobytes() for name, vector in computed.items()}
            )
        return vectors

    async def _compute(
        self, edition: Edition, missing: Mapping[str, str], *, now: datetime
    ) -> dict[str, Vector]:
        """Computes the vectors of these names. Each name comes with the key of a memory that has
        the text.
        """
        records = await edition.memories.get(list(missing.values()), now=now)
        facts = {name: records[key].memory.fact for name, key in missing.items() if key in records}
        vectors = await (await self.embedder()).embed(list(facts.values()))
        return dict(zip(facts, vectors, strict=True))

    async def embedder(self) -> Embedder:
        """Raises `ConfigurationError`."""
        if self._beside is not None:
            return await self._beside.embedder()
        if self._loaded_embedder is None:
            self._loaded_embedder = self._make_embedder()
            await self._stack.enter_async_context(self._loaded_embedder)
        return self._loaded_embedder

    def _keep(self, vectors: Mapping[str, Vector]) -> None:
        self._kept.update(vectors)
        while len(self._kept) > _KEPT_MAX:
            self.drop_oldest()
        self._room.make_room()

    @property
    def size(self) -> int:
        """In bytes. All vectors have one length."""
        return len(self._kept) * next(iter(self._kept.values())).nbytes if self._kept else 0

    def drop_oldest(self) -> None:
        self._kept.popitem(last=False)


def _rank(query: Vector, vectors: Sequence[Vector]) -> list[Neighbour]:
    return nearest(query, np.stack(vectors), limit=len(vectors)) if vectors else []
