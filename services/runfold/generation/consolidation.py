"""Decides how new facts change the memories of a scope, with one question to the model.

1. A fact that is equal to a memory's text updates that memory, whose text stays as it is.
2. The other facts are shown to the model, with the memories nearest to them. A decision of the
   model counts only if it names facts and a memory that were shown, and if it is the first decision
   about that memory.
3. Facts that no decision names, and without a model all other facts, become new memories: nearness
   alone retires no fact.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from runfold.client.memory import NearestMemory
from runfold.generation.facts import DistinctFact, distinct, normalised
from runfold.generation.model import Action, MemoryModel
from runfold.generation.options import NewFact
from runfold_projections.memory import MemoryRecord

FACT_LENGTH_MAX: Final = 2_000
"""The longest text of a model that is accepted. Direct facts may be longer."""

_SHOWN_MAX: Final = 40
"""How many memories the model is shown at most, the nearest first."""

_ACTIONS_MAX: Final = 200

_log = logging.getLogger(__name__)

FindNearby = Callable[[str], Awaitable[Sequence[NearestMemory]]]
"""Finds the memories of the scope that are nearest to a text and may be changed, the nearest first.
"""


@dataclass(slots=True)
class Decision:
    """A change of one memory, and the facts that it follows from. `before` is None for a new
    memory, and `text` is empty for a deletion.
    """

    kind: Literal["create", "update", "delete"]
    text: str
    sources: tuple[NewFact, ...]
    before: MemoryRecord | None = None


async def consolidate(
    facts: Sequence[NewFact], *, find_nearby: FindNearby | None, model: MemoryModel | None
) -> list[Decision]:
    """The decisions that follow from the facts, at most one about each memory. Without
    `find_nearby` each fact becomes a new memory, also if it is repeated. Raises the errors of
    `find_nearby` and of the model.
    """
    if find_nearby is None:
        return [Decision("create", fact.text, (fact,)) for fact in facts]
    distinct_facts = distinct(facts)
    consolidation = _Consolidation(distinct_facts, [await find_nearby(fact.text) for fact in distinct_facts])
    consolidation.update_equal_memories()
    if model is not None:
        await consolidation.ask(model)
    consolidation.decide_the_rest()
    return consolidation.decisions


class _Consolidation:
    def __init__(self, facts: Sequence[DistinctFact], near: Sequence[Sequence[NearestMemory]]) -> None:
        self.decisions: list[Decision] = []
        self._decided: set[str] = set()
        """The ids of the memories about which there is a decision."""
        self._facts = facts
        self._near = near
        self._undecided = dict(enumerate(facts))
        """The facts without a decision, by their index."""

    def update_equal_memories(self) -> None:
        """Decides about facts that are equal to the text of a memory."""
        for index, fact in list(self._undecided.items()):
            equal = (near.record for near in self._near[index] if _has_text(near.record, fact.text))
            if record := next(equal, None):
                self._decide(Decision("update", record.memory.fact, fact.sources, record))
                del self._undecided[index]

    async def ask(self, model: MemoryModel) -> None:
        """Asks the model about the undecided facts, if they are near to any memories."""
        shown, facts = self._memories_to_show(), list(self._undecided.items())
        if not shown or not facts:
            return
        actions = await model.consolidate(
            [fact.text for _, fact in facts], [record.memory.fact for record in shown]
        )
        for action in actions[:_ACTIONS_MAX]:
            indexes = [facts[number][0] for number in action.facts if 0 <= number < len(facts)]
            decision = self._decision_from(action, indexes, shown)
            if decision is None:
                _log.warning("the model's decision to %s a memory is not allowed: ignored", action.kind)
                continue
            self._decide(decision)
            for index in indexes:
                self._undecided.pop(index, None)

    def decide_the_rest(self) -> None:
        """Makes each undecided fact a new memory."""
        for fact in self._undecided.values():
            self._decide(Decision("create", fact.text, fact.sources))
        self._undecided.clear()

    def _memories_to_show(self) -> list[MemoryRecord]:
        """The memories near to undecided facts that have no decision yet, the nearest first."""
        near = sorted((near for index in self._undecided for near in self._near[index]), key=_distance)
        records = {near.record.memory_id: near.record for near in near if self._is_free(near.record)}
        return list(records.values())[:_SHOWN_MAX]

    def _decision_from(
        self, action: Action, indexes: Sequence[int], shown: Sequence[MemoryRecord]
    ) -> Decision | None:
        """The decision that the model's action stands for; None if the action is not allowed."""
        sources = tuple(source for index in dict.fromkeys(indexes) for source in self._facts[index].sources)
        text = (action.text or "").strip()
        if not sources or len(text) > FACT_LENGTH_MAX or (not text and action.kind != "delete"):
            return None
        if action.kind == "create":
            return Decision("create", text, sources)
        if action.memory is None or not 0 <= action.memory < len(shown):
            return None
        record = shown[action.memory]
        if not self._is_free(record):
            return None
        return Decision(action.kind, "" if action.kind == "delete" else text, sources, record)

    def _decide(self, decision: Decision) -> None:
        self.decisions.append(decision)
        if decision.before is not None:
            self._decided.add(decision.before.memory_id)

    def _is_free(self, record: MemoryRecord) -> bool:
        return record.memory_id not in self._decided


def _has_text(record: MemoryRecord, text: str) -> bool:
    return normalised(record.memory.fact) == normalised(text)


def _distance(near: NearestMemory) -> float:
    return near.distance
