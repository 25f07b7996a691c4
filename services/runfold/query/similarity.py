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
from runfold.query.shared import SharedReader
from runfold.store.edition import Edition
from runfold.store.memories import MemoryVectorName
from runfold_projections.memory import MemoryRecord

_KEPT_MAX: Final = 50_000
"""Vectors that this process keeps. With 384 dimensions they take some 80 MB."""

_STORED: Final = np.dtype("<f4")

_READ_AT_ONCE: Final = 100
"""The least number of memories that are read at once, because a filter may drop many of them."""


class StoredSimilarity:
    """A `Similarity`. Use it as an async context manager. The first search loads the embedder, so
    it may raise `ConfigurationError`.
    """

    def __init__(self, shared: SharedReader, make_embedder: Callable[[], Embedder]) -> None:
        self._shared = shared
        self._make_embedder = make_embedder
        self._loaded_embedder: Embedder | None = None
        self._stack = AsyncExitStack()
        self._kept: OrderedDict[str, Vector] = OrderedDict()

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
        embedder = await self._embedder()
        embedding = asyncio.create_task(embedder.embed([query]))
        try:
            edition, now = (
                await self._shared.edition_of_topic(self._shared.topics.memories),
                datetime.now(UTC),
            )
            if edition is None:
                return []
            names = await edition.memories.vector_names(bank_id, scope, now=now)
            vector = (await embedding)[0]
            vectors = await self._vectors(edition, names, dimensions=len(vector), now=now)
            # A memory without a vector was deleted meanwhile.
            names = [name for name in names if name.vector in vectors]
            ranked = _rank(vector, [vectors[name.vector] for name in names])
        finally:
            embedding.cancel()
        return await _read_nearest(edition, names, ranked, limit=limit, matches=matches, now=now)

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
        model = (await self._embedder()).model
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
        vectors = await (await self._embedder()).embed(list(facts.values()))
        return dict(zip(facts, vectors, strict=True))

    async def _embedder(self) -> Embedder:
        if self._loaded_embedder is None:
            self._loaded_embedder = self._make_embedder()
            await self._stack.enter_async_context(self._loaded_embedder)
        return self._loaded_embedder

    def _keep(self, vectors: Mapping[str, Vector]) -> None:
        self._kept.update(vectors)
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)


def _rank(query: Vector, vectors: Sequence[Vector]) -> list[Neighbour]:
    return nearest(query, np.stack(vectors), limit=len(vectors)) if vectors else []


async def _read_nearest(
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
            if record is not None and (matches is None or matches(record)):
                nearest_memories.append(NearestMemory(record, neighbour.distance))
        if len(nearest_memories) >= limit:
            break
    return nearest_memories[:limit]
