"""The bounds of searches by words, with a MongoDB of the tests that answers when it is told to."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest
from pymongo.errors import ExecutionTimeout

from runfold.store.runs import RunFilter, RunStore
from runfold_schemas.errors import InvalidEventError, UnavailableError

BY_WORDS = RunFilter(text="zzz")


class Runs:
    """A collection. Each list of it waits for `may_end`, and then fails if `is_slow`."""

    def __init__(self) -> None:
        self.limits_ms: list[int] = []
        self.may_end = asyncio.Event()
        self.is_slow = False

    def find(self, *_: Any) -> Self:
        return self

    def sort(self, _: Any) -> Self:
        return self

    def limit(self, _: int) -> Self:
        return self

    async def max_time_ms(self, limit_ms: int) -> AsyncIterator[dict[str, Any]]:
        self.limits_ms.append(limit_ms)
        await self.may_end.wait()
        if self.is_slow:
            raise ExecutionTimeout("operation exceeded time limit", 50)
        for document in ():
            yield document


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def store(runs: Runs) -> RunStore:
    database: Any = {"runs.1": runs}
    return RunStore(database, "1")


async def test_a_search_has_less_time_than_other_lists(store: RunStore, runs: Runs):
    runs.may_end.set()

    await store.list(BY_WORDS, limit=10)
    await store.list(RunFilter(agent_id="zzz"), limit=10)

    assert runs.limits_ms == [5_000, 25_000]


async def test_a_search_that_takes_too_long_says_what_helps(store: RunStore, runs: Runs):
    runs.is_slow = True
    runs.may_end.set()

    with pytest.raises(InvalidEventError, match=r"longer than 5 s.*`since`") as refused:
        await store.list(BY_WORDS, limit=10)
    with pytest.raises(UnavailableError):
        await store.list(RunFilter(agent_id="zzz"), limit=10)

    assert refused.value.field == "text"


async def test_few_searches_go_on_at_once(store: RunStore, runs: Runs):
    searches = [asyncio.create_task(store.list(BY_WORDS, limit=10)) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="4 searches"):
        await store.list(BY_WORDS, limit=10)
    others = asyncio.create_task(store.list(RunFilter(agent_id="zzz"), limit=10))

    runs.may_end.set()
    await asyncio.gather(*searches, others)

    assert await store.list(BY_WORDS, limit=10) == ([], None)
