"""What becomes of a scope's memories when facts are learned: decisions, and the one question to the
model among them.

1. A fact that a memory holds already, letter by letter, updates that memory and leaves its text.
2. What is left goes to the model with the memories that are near to it. A decision counts only if it names new facts and a memory
   that were shown, and is the first about that memory.
3. Facts that no decision names, and all where there is no model, update the memory that is nearest, if that may be the same
   fact in other words; otherwise they are new.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from runfold.client.memory import Near
from runfold.generation.facts import Learned, are_same_fact, distinct, normalised
from runfold.generation.model import Action, MemoryModel
from runfold.generation.options import NewFact
from runfold_projections.memory import MemoryRecord

FACT_LENGTH_MAX: Final = 2_000
"""Of a text that a model made; what people give directly may be longer."""

_SHOWN_MAX: Final = 40
"""Memories that the model is shown, the nearest ones."""

_ACTIONS_MAX: Final = 200

_log = logging.getLogger(__name__)

Nearby = Callable[[str], Awaitable[Sequence[Near]]]
"""The memories of the scope that are nearest to a text and may be consolidated with, the nearest
first.
"""


@dataclass(slots=True)
class Decision:
    """What becomes of one memory, and the facts that it follows from. A new memory has no `before`,
    a deleted one no `text`.
    """

    kind: Literal["create", "update", "delete"]
    text: str
    sources: tuple[NewFact, ...]
    before: MemoryRecord | None = None


async def consolidate(
    facts: Sequence[NewFact], *, nearby: Nearby | None, model: MemoryModel | None
) -> list[Decision]:
    """The decisions that follow from the facts, at most one about each memory. Without `nearby`
    each fact is a new memory, also one that was told twice. Raises what `nearby` and the model
    raise.
    """
    if nearby is None:
        return [Decision("create", fact.text, (fact,)) for fact in facts]
    learned = distinct(facts)
    deciding = _Deciding(learned, [await nearby(one.text) for one in learned])
    deciding.repeat_known()
    if model is not None:
        await deciding.ask(model)
    deciding.settle()
    return deciding.decisions


class _Deciding:
    def __init__(self, learned: Sequence[Learned], near: Sequence[Sequence[Near]]) -> None:
        self.decisions: list[Decision] = []
        self._about: dict[str, Decision] = {}
        self._learned = learned
        self._near = near
        self._open = dict(enumerate(learned))
        """What nobody has decided about, by its place."""

    def repeat_known(self) -> None:
        """Facts that a memory holds already."""
        for place, one in list(self._open.items()):
            same = (near.record for near in self._near[place] if _holds(near.record, one.text))
            if record := next(same, None):
                self._decide(Decision("update", record.memory.fact, one.sources, record))
                del self._open[place]

    async def ask(self, model: MemoryModel) -> None:
        """What the model makes of the facts that are left, where there is something that it could
        make them a part of.
        """
        shown, facts = self._shown(), list(self._open.items())
        if not shown or not facts:
            return
        answer = await model.consolidate(
            [one.text for _, one in facts], [record.memory.fact for record in shown]
        )
        for action in answer[:_ACTIONS_MAX]:
            places = [facts[number][0] for number in action.facts if 0 <= number < len(facts)]
            decision = self._checked(action, places, shown)
            if decision is None:
                _log.warning(
                    "a decision of the model is left out: it names or says what it may not (%s)", action.kind
                )
                continue
            self._decide(decision)
            for place in places:
                self._open.pop(place, None)

    def settle(self) -> None:
        """Facts that nobody has decided about: each is a known one in other words, or a new one."""
        for place, one in self._open.items():
            record = self._same(place, one)
            if record is None:
                self._decide(Decision("create", one.text, one.sources))
            elif standing := self._about.get(record.memory_id):
                standing.text = one.text
                standing.sources += one.sources
            else:
                self._decide(Decision("update", one.text, one.sources, record))
        self._open.clear()

    def _shown(self) -> list[MemoryRecord]:
        """The memories near to facts that are left, the nearest first, but for those that are
        decided about.
        """
        near = sorted((near for place in self._open for near in self._near[place]), key=_distance)
        records = {near.record.memory_id: near.record for near in near if self._is_free(near.record)}
        return list(records.values())[:_SHOWN_MAX]

    def _checked(
        self, action: Action, places: Sequence[int], shown: Sequence[MemoryRecord]
    ) -> Decision | None:
        """The decision that the model's action is; None for one that is not allowed."""
        sources = tuple(source for place in dict.fromkeys(places) for source in self._learned[place].sources)
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

    def _same(self, place: int, one: Learned) -> MemoryRecord | None:
        """The known memory that says the same in other words."""
        for near in self._near[place]:
            standing = self._about.get(near.record.memory_id)
            if standing is not None and standing.kind != "update":
                continue
            if are_same_fact(one.text, near.record.memory.fact, distance=near.distance):
                return near.record
        return None

    def _decide(self, decision: Decision) -> None:
        self.decisions.append(decision)
        if decision.before is not None:
            self._about[decision.before.memory_id] = decision

    def _is_free(self, record: MemoryRecord) -> bool:
        return record.memory_id not in self._about


def _holds(record: MemoryRecord, text: str) -> bool:
    return normalised(record.memory.fact) == normalised(text)


def _distance(near: Near) -> float:
    return near.distance
