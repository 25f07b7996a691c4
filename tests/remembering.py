"""Generation without servers: memories in a dict, as their verbs would have them, and a model that
says what a test has it say.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

from tests.builders import EPOCH, event_id

from runfold.client.memory import NearestMemory
from runfold.generation.model import Action, Found
from runfold.generation.options import NewFact
from runfold_projections.memory import BankRecord, MemoryRecord, Refused
from runfold_schemas.memories import (
    BankConfig,
    Memory,
    MemoryChange,
    MemoryDeleted,
    MemoryTopic,
    MemoryUpdated,
)

SCOPE = {"user": "ann"}

_numbers = count(1)


def bank(**config: Any) -> BankRecord:
    return BankRecord(
        bank_id="bank",
        config=BankConfig(**config),
        created_by=event_id(0),
        changed_by=event_id(0),
        created_at=EPOCH,
        updated_at=EPOCH,
    )


def record(fact: str, *, memory_id: str | None = None, **memory: Any) -> MemoryRecord:
    number = next(_numbers)
    return MemoryRecord(
        bank_id="bank",
        memory_id=memory_id or f"m-{number}",
        memory=Memory(**{"fact": fact, "scope": SCOPE, **memory}),
        revision_id=event_id(number),
        created_at=EPOCH,
        updated_at=EPOCH,
    )


def fact(text: str, *topics: str) -> NewFact:
    return NewFact(text=text, topics=tuple(MemoryTopic(custom=topic) for topic in topics))


class ScriptedModel:
    """A `MemoryModel` that has its answers, and remembers what it was asked."""

    def __init__(self, *, found: Sequence[Found] = (), actions: Sequence[Action] = ()) -> None:
        self.found, self.actions = found, actions
        self.read: list[tuple[str, str]] = []
        self.asked: list[tuple[list[str], list[str]]] = []
        self.failure: Exception | None = None

    async def extract(self, conversation: str, *, instructions: str) -> Sequence[Found]:
        self.read.append((conversation, instructions))
        if self.failure is not None:
            raise self.failure
        return self.found

    async def consolidate(self, facts: Sequence[str], known: Sequence[str]) -> Sequence[Action]:
        self.asked.append((list(facts), list(known)))
        if self.failure is not None:
            raise self.failure
        return self.actions


class RememberedMemories:
    """What of `Memories` a generation uses. Two texts are as far from each other as `distance`
    says.
    """

    def __init__(
        self, *known: MemoryRecord, distance: Callable[[str, str], float] | None = None, **config: Any
    ) -> None:
        self.config = bank(**config)
        self.records = {one.memory_id: one for one in known}
        self.changes: list[MemoryChange] = []
        self.distance = distance or (lambda one, other: 0.0 if one == other else 0.3)
        self.before_change: Callable[[], None] = lambda: None

    @property
    def facts(self) -> list[str]:
        return [one.memory.fact for one in self.records.values()]

    async def bank(self, bank_id: str) -> BankRecord:
        return self.config

    async def nearest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        query: str,
        *,
        limit: int,
        matches: Callable[[MemoryRecord], bool],
    ) -> Sequence[NearestMemory]:
        near = [
            NearestMemory(one, self.distance(query, one.memory.fact))
            for one in self.records.values()
            if one.memory.scope == scope and matches(one)
        ]
        return sorted(near, key=lambda one: one.distance)[:limit]

    async def change_all(
        self, changes: Sequence[MemoryChange], *, event_id: str | None = None, run_id: str = "-"
    ) -> Sequence[Refused | None]:
        self.before_change()
        self.changes += changes
        return [self._change(change) for change in changes]

    def _change(self, change: MemoryChange) -> Refused | None:
        standing = self.records.get(change.memory_id)
        if isinstance(change, MemoryUpdated | MemoryDeleted):
            if standing is None:
                return Refused("gone", "the memory is not there")
            if change.based_on != standing.revision_id:
                return Refused("changed", "somebody else has changed the memory meanwhile")
        if isinstance(change, MemoryDeleted):
            del self.records[change.memory_id]
        else:
            self.records[change.memory_id] = record(
                change.memory.fact, memory_id=change.memory_id
            ).model_copy(update={"memory": change.memory, "updated_at": datetime.now(UTC)})
        return None
