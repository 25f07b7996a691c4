"""The answer to a trigger: what a generation makes of memories, as one event in the run whose log
has the trigger.

The answer's id follows from the trigger's. So of two answers the log takes the first, and whoever
comes second goes on with that one. Its changes are forwarded under the answer's id, where each
counts once, however often it is forwarded.
"""

import asyncio
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from pydantic import TypeAdapter, ValidationError

from runfold.client.memories import Memories
from runfold.client.memory import Near
from runfold.client.run import Run
from runfold.generation.changes import Change, change_of
from runfold.generation.consolidation import Nearby, consolidate
from runfold.generation.model import MemoryModel
from runfold.generation.options import ChangedMemory, GenerationOptions, NewFact, SessionSource
from runfold_projections.memory import BankRecord, MemoryRecord, Refused
from runfold_schemas.codec import first_fault, new_data
from runfold_schemas.errors import BankNotFoundError, InvalidEventError, MemoryChangedError
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import (
    GenerationRequested,
    MemoriesGenerated,
    MemoryCreated,
    MemoryDeleted,
    MemoryUpdated,
)

_IDS: Final = uuid.UUID("9d1f6a52-6a0e-5b0e-9a55-0b6f5f3f7c11")
"""The namespace of ids that are the same whoever makes them."""

_RUN: Final = "memories-"
_RUN_ID: Final = re.compile(rf"{_RUN}[0-9a-f]{{8}}-(?:[0-9a-f]{{4}}-){{3}}[0-9a-f]{{12}}")

_ROUNDS_MAX: Final = 5
"""In which memories are consolidated that others change at the same time."""

_NEARBY_MAX: Final = 5
"""Memories that each fact is compared with."""

_OPTIONS: Final = TypeAdapter(GenerationOptions)
_FACTS: Final = TypeAdapter(list[NewFact])
_SESSION: Final = TypeAdapter(SessionSource)

CheckedT = TypeVar("CheckedT")

Outcomes = Sequence[tuple[Change, Refused | None]]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A `GenerationRequested` in the log of a run."""

    run: Run
    event: AnyEvent
    offset: int
    """Before its answer, and no later than the trigger itself."""

    @property
    def data(self) -> GenerationRequested:
        assert isinstance(self.event.data, GenerationRequested)
        return self.event.data

    @property
    def options(self) -> GenerationOptions:
        """Raises `InvalidEventError`, as `facts`: anybody may have written the event."""
        return _checked(_OPTIONS, self.data.options.get("options", {}))

    @property
    def facts(self) -> list[NewFact] | None:
        """Those that were given with it; None where they are to be extracted."""
        given = self.data.options.get("facts")
        return None if given is None else _checked(_FACTS, given)

    @property
    def session(self) -> SessionSource | None:
        """Where they are to be extracted from a session."""
        given = self.data.options.get("session")
        return None if given is None else _checked(_SESSION, given)

    @property
    def bank_created_by(self) -> str | None:
        """The event that made the bank which was meant; None where any of that id is."""
        given = self.data.options.get("bank_created_by")
        return None if given is None else str(given)


def derived_id(*parts: str) -> str:
    """An event's id that is the same for the same parts."""
    return str(uuid.uuid5(_IDS, "\n".join(parts)))


def answer_id(trigger: AnyEvent) -> str:
    """The id of the event that answers the trigger."""
    return derived_id("answer", trigger.event_id)


def log_run_id(*parts: str) -> str:
    """The id of the run that is the log of a generation, the same for the same parts."""
    return _RUN + derived_id("run", *parts)


def is_log(run_id: str) -> bool:
    """Whether the run is the log of a generation, by its id: its completion is not remembered."""
    return _RUN_ID.fullmatch(run_id) is not None


def stored(
    options: GenerationOptions,
    *,
    facts: Sequence[NewFact] | None = None,
    session: SessionSource | None = None,
    run_id: str | None = None,
    bank_created_by: str | None = None,
) -> dict[str, Any]:
    """What a trigger says of what is wanted, and of where to find it: by default, in its own log.
    With `bank_created_by` it has no answer any more when the bank is another one than that event
    has made.
    """
    said = {
        "options": _OPTIONS.dump_python(options, mode="json", exclude_unset=True),
        "facts": None if facts is None else _FACTS.dump_python(list(facts), mode="json", exclude_unset=True),
        "session": None if session is None else _SESSION.dump_python(session, mode="json"),
        "run_id": run_id,
        "bank_created_by": bank_created_by,
    }
    return {name: value for name, value in said.items() if value is not None}


class Answers:
    """Consolidates facts with the memories of their scope, and makes what follows from them true.

    Raises what `Memories.change_all` and the model raise, and `MemoryChangedError` where others
    kept changing the same memories.
    """

    def __init__(self, memories: Memories, model: MemoryModel | None) -> None:
        self._memories = memories
        self._model = model
        self._scopes: WeakValueDictionary[object, asyncio.Lock] = WeakValueDictionary()

    async def bank(self, trigger: Trigger) -> BankRecord:
        """The bank that the trigger means. Raises `BankNotFoundError`, also where one was created
        anew with its id.
        """
        bank = await self._memories.bank(trigger.data.bank_id)
        if trigger.bank_created_by not in (None, bank.created_by):
            raise BankNotFoundError(bank.bank_id)
        return bank

    async def make(
        self, bank_id: str, scope: Mapping[str, str], facts: Sequence[NewFact], options: GenerationOptions
    ) -> list[ChangedMemory]:
        """Of facts that nobody has to be asked about: their changes are events of no run."""
        done: list[ChangedMemory] = []
        async with self._alone(bank_id, scope):
            for _ in range(_ROUNDS_MAX):
                bank = await self._memories.bank(bank_id)
                changes = await self._changes(bank, scope, facts, options, model=None)
                refusals = await self._memories.change_all(changes)
                outcomes = list(zip(changes, refusals, strict=True))
                done += _generated(outcomes)
                if not (facts := _left(outcomes, facts)):
                    return done
        raise MemoryChangedError(bank_id, _refused(outcomes))

    async def answer(self, trigger: Trigger, facts: Sequence[NewFact]) -> list[ChangedMemory]:
        """Of a trigger in a log, which has the answer when this returns."""
        data, done = trigger.data, []
        async with self._alone(data.bank_id, data.scope):
            for _ in range(_ROUNDS_MAX):
                bank = await self.bank(trigger)
                changes = await self._changes(bank, data.scope, facts, trigger.options, model=self._model)
                outcomes = await self._logged(trigger, changes)
                done += _generated(outcomes)
                if not (facts := _left(outcomes, facts)):
                    return done
                trigger = await _asked_again(trigger, facts)
        raise MemoryChangedError(data.bank_id, _refused(outcomes))

    async def finish(self, trigger: Trigger) -> None:
        """Tries again what was refused of the answer in the log, where whoever has answered did not
        live to do so.
        """
        data, bank = trigger.data, await self.bank(trigger)
        async with self._alone(bank.bank_id, data.scope):
            standing = await _in_log(trigger, end=None)
            assert standing is not None
            outcomes = await self._made(trigger, standing)
            if all(refused is None for _, refused in outcomes):
                return
            facts = _left(outcomes, trigger.facts or ())
            again = await _asked_again(trigger, facts) if facts else None
        if again is not None:
            await self.answer(again, facts)

    async def _changes(
        self,
        bank: BankRecord,
        scope: Mapping[str, str],
        facts: Sequence[NewFact],
        options: GenerationOptions,
        *,
        model: MemoryModel | None,
    ) -> list[Change]:
        nearby = None if options.disable_consolidation else self._nearby(bank.bank_id, scope, options)
        decisions = await consolidate(facts, nearby=nearby, model=model)
        now = datetime.now(UTC)
        return [change_of(one, bank=bank, scope=scope, options=options, now=now) for one in decisions]

    def _nearby(self, bank_id: str, scope: Mapping[str, str], options: GenerationOptions) -> Nearby:
        exact = options.metadata or {} if options.metadata_merge == "REQUIRE_EXACT_MATCH" else None

        def matches(record: MemoryRecord) -> bool:
            return exact is None or record.memory.metadata == exact

        async def nearby(text: str) -> Sequence[Near]:
            return await self._memories.nearest(bank_id, scope, text, limit=_NEARBY_MAX, matches=matches)

        return nearby

    async def _logged(self, trigger: Trigger, changes: Sequence[Change]) -> Outcomes:
        """What the answer that stands has made of memories, which is another one if somebody was
        faster.
        """
        return await self._made(trigger, await _standing(trigger, _answer(trigger, changes)))

    async def _made(self, trigger: Trigger, standing: MemoriesGenerated) -> Outcomes:
        agreed = list(standing.changes())
        refusals = await self._memories.change_all(
            agreed, event_id=answer_id(trigger.event), run_id=trigger.run.run_id
        )
        return list(zip(agreed, refusals, strict=True))

    def _alone(self, bank_id: str, scope: Mapping[str, str]) -> asyncio.Lock:
        """One generation at a time for each scope, or two that learn the same would both create it.
        Other processes may.
        """
        key = (bank_id, frozenset(scope.items()))
        return self._scopes.setdefault(key, asyncio.Lock())


async def give_up(trigger: Trigger, error: Exception) -> None:
    """Says in the log that the trigger has no answer, and why."""
    failed = new_data(
        MemoriesGenerated,
        bank_id=trigger.data.bank_id,
        trigger=trigger.event.event_id,
        error=str(error)[:1000],
    )
    await trigger.run.publish(failed, event_id=answer_id(trigger.event), late=True)


def _checked(kind: TypeAdapter[CheckedT], given: Any) -> CheckedT:
    try:
        return kind.validate_python(given)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error


def _answer(trigger: Trigger, changes: Sequence[Change]) -> MemoriesGenerated:
    return new_data(
        MemoriesGenerated,
        bank_id=trigger.data.bank_id,
        trigger=trigger.event.event_id,
        created=tuple(one for one in changes if isinstance(one, MemoryCreated)),
        updated=tuple(one for one in changes if isinstance(one, MemoryUpdated)),
        deleted=tuple(one for one in changes if isinstance(one, MemoryDeleted)),
    )


async def _standing(trigger: Trigger, answer: MemoriesGenerated) -> MemoriesGenerated:
    """Publishes the answer, and gives the one that the log took."""
    position = await trigger.run.publish(answer, event_id=answer_id(trigger.event), late=True)
    if position.offset == trigger.offset + 1:
        return answer
    return await _in_log(trigger, end=position.offset + 1) or answer


async def _in_log(trigger: Trigger, *, end: int | None) -> MemoriesGenerated | None:
    wanted = answer_id(trigger.event)
    async for one in trigger.run.history(first_offset=trigger.offset, end=end):
        if one.counts and one.event is not None and one.event.event_id == wanted:
            assert isinstance(one.event.data, MemoriesGenerated)
            return one.event.data
    return None


async def _asked_again(trigger: Trigger, facts: Sequence[NewFact]) -> Trigger:
    """A trigger for what could not be done, because a memory was changed meanwhile."""
    wanted = stored(trigger.options, facts=facts, bank_created_by=trigger.bank_created_by)
    asked = trigger.data.model_copy(update={"options": wanted})
    event = trigger.run.event(asked, event_id=derived_id("again", trigger.event.event_id))
    await trigger.run.publish(event, late=True)
    # Somebody else may have asked the same before, and answered: so not the offset of this one,
    # which may count for nothing.
    return Trigger(trigger.run, event, trigger.offset)


def _generated(outcomes: Outcomes) -> list[ChangedMemory]:
    return [_of(change) for change, refused in outcomes if refused is None]


def _of(change: Change) -> ChangedMemory:
    match change:
        case MemoryCreated():
            return ChangedMemory(change.memory_id, "CREATED")
        case MemoryUpdated():
            return ChangedMemory(change.memory_id, "UPDATED", change.based_on)
        case MemoryDeleted():
            return ChangedMemory(change.memory_id, "DELETED", change.based_on)


def _left(outcomes: Outcomes, facts: Sequence[NewFact]) -> list[NewFact]:
    """The facts behind changes that were refused. What was to be deleted and is gone already needs
    nothing more.
    """
    return [
        fact
        for change, refused in outcomes
        if refused is not None and not (isinstance(change, MemoryDeleted) and refused.kind == "gone")
        for fact in _behind(change, facts)
    ]


def _behind(change: Change, facts: Sequence[NewFact]) -> list[NewFact]:
    """Those of the facts that the change follows from. If another answer stands, it may follow from
    others, of whose topics only a new memory tells.
    """
    texts = dict.fromkeys(one.fact for one in change.extracted)
    known = [fact for fact in facts if fact.text in texts]
    told = change.memory.topics if isinstance(change, MemoryCreated) else ()
    found = {fact.text for fact in known}
    return known + [NewFact(text=text, topics=told) for text in texts if text not in found]


def _refused(outcomes: Outcomes) -> str:
    return next(change.memory_id for change, refused in outcomes if refused is not None)
