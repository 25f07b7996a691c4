"""Which memories of a scope are near in meaning: its facts' vectors, held against that of the
query.

A vector is looked for in this process, then in MongoDB, and made where neither has it, so that a
new memory is found at once and a database without vectors is only slower.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final, Self

import numpy as np

from runfold.client.memory import Near
from runfold.embeddings import Embedder
from runfold.embeddings.embedder import Vector
from runfold.embeddings.nearest import Neighbour, nearest
from runfold.query.shared import SharedReader
from runfold.store.edition import Edition
from runfold.store.memories import MemoryVectorName
from runfold_projections.memory import MemoryRecord

_KEPT_MAX: Final = 50_000
"""Vectors in this process: of 384 dimensions some 80 MB."""

_STORED: Final = np.dtype("<f4")

_READ_AT_ONCE: Final = 100
"""Memories, at the least: a filter may leave few of them."""


class StoredSimilarity:
    """A `Similarity`. Use it as an async context manager; what makes vectors is not there before
    the first question, which may raise `ConfigurationError`.
    """

    def __init__(self, shared: SharedReader, make_embedder: Callable[[], Embedder]) -> None:
        self._shared = shared
        self._make_embedder = make_embedder
        self._made_embedder: Embedder | None = None
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
    ) -> list[Near]:
        embedder = await self._embedder()
        asked = asyncio.create_task(embedder.embed([query]))
        try:
            edition, now = (
                await self._shared.edition_of_topic(self._shared.topics.memories),
                datetime.now(UTC),
            )
            if edition is None:
                return []
            described = await edition.memories.vector_names(bank_id, scope, now=now)
            vector = (await asked)[0]
            vectors = await self._vectors(edition, described, dimensions=len(vector), now=now)
            # What has none was deleted meanwhile.
            described = [one for one in described if one.vector in vectors]
            ranked = _ranked(vector, [vectors[one.vector] for one in described])
        finally:
            asked.cancel()
        return await _records(edition, described, ranked, limit=limit, matches=matches, now=now)

    async def _vectors(
        self, edition: Edition, described: Sequence[MemoryVectorName], *, dimensions: int, now: datetime
    ) -> dict[str, Vector]:
        vectors: dict[str, Vector] = {}
        for one in described:
            if one.vector in self._kept:
                self._kept.move_to_end(one.vector)
                vectors[one.vector] = self._kept[one.vector]
        if unknown := [one for one in described if one.vector not in vectors]:
            found = await self._found(edition, unknown, dimensions=dimensions, now=now)
            vectors |= found
            self._keep(found)
        return vectors

    async def _found(
        self, edition: Edition, unknown: Sequence[MemoryVectorName], *, dimensions: int, now: datetime
    ) -> dict[str, Vector]:
        model = (await self._embedder()).model
        stored = await edition.vectors.get(model, sorted({one.vector for one in unknown}))
        # One of another length is not what this model makes, whoever has stored it.
        vectors: dict[str, Vector] = {
            name: np.frombuffer(vector, dtype=_STORED).astype(np.float32)
            for name, vector in stored.items()
            if len(vector) == dimensions * _STORED.itemsize
        }
        missing = {one.vector: one.key for one in unknown if one.vector not in vectors}
        if missing:
            made = await self._made(edition, missing, now=now)
            vectors |= made
            await edition.vectors.save(
                model, {name: vector.astype(_STORED).tobytes() for name, vector in made.items()}
            )
        return vectors

    async def _made(
        self, edition: Edition, missing: Mapping[str, str], *, now: datetime
    ) -> dict[str, Vector]:
        """The vectors of these names, each given with the key of a memory that has the text."""
        records = await edition.memories.get(list(missing.values()), now=now)
        facts = {name: records[key].memory.fact for name, key in missing.items() if key in records}
        made = await (await self._embedder()).embed(list(facts.values()))
        return dict(zip(facts, made, strict=True))

    async def _embedder(self) -> Embedder:
        if self._made_embedder is None:
            self._made_embedder = self._make_embedder()
            await self._stack.enter_async_context(self._made_embedder)
        return self._made_embedder

    def _keep(self, vectors: Mapping[str, Vector]) -> None:
        self._kept.update(vectors)
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)


def _ranked(query: Vector, vectors: Sequence[Vector]) -> list[Neighbour]:
    return nearest(query, np.stack(vectors), limit=len(vectors)) if vectors else []


async def _records(
    edition: Edition,
    described: Sequence[MemoryVectorName],
    ranked: Sequence[Neighbour],
    *,
    limit: int,
    matches: Callable[[MemoryRecord], bool] | None,
    now: datetime,
) -> list[Near]:
    found: list[Near] = []
    at_once = limit if matches is None else max(limit, _READ_AT_ONCE)
    for begin in range(0, len(ranked), at_once):
        part = ranked[begin : begin + at_once]
        records = await edition.memories.get([described[one.row].key for one in part], now=now)
        for one in part:
            record = records.get(described[one.row].key)
            if record is not None and (matches is None or matches(record)):
                found.append(Near(record, one.distance))
        if len(found) >= limit:
            break
    return found[:limit]
