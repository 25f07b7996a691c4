"""Answers triggers: an answer is one event, in the same log as the trigger, with the changes of
memories.

The answer's id is derived from the trigger's. So if two processes answer, the log accepts the first
answer, and the second process continues with that one. The changes are forwarded under the answer's
id, so each counts once, however often it is forwarded.
"""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from pydantic import TypeAdapter, ValidationError

from runfold.client.appender import Appender
from runfold.client.memories import Memories
from runfold.client.memory import NearestMemory
from runfold.encryption.subjects import subject_of_scope
from runfold.generation.changes import Change, change_of
from runfold.generation.consolidation import FindNearby, consolidate
from runfold.generation.model import MemoryModel
from runfold.generation.options import ChangedMemory, GenerationOptions, NewFact, SessionSource
from runfold_projections.memory import BankRecord, MemoryRecord, Refused
from runfold_schemas.codec import first_fault, new_data
from runfold_schemas.errors import BankNotFoundError, InvalidEventError, MemoryChangedError
from runfold_schemas.events import AnyEvent
from runfold_schemas.memories import (
    GENERATION_LOG_PREFIX,
    GenerationRequested,
    MemoriesGenerated,
    MemoryCreated,
    MemoryDeleted,
    MemoryUpdated,
)

_IDS: Final = uuid.UUID("9d1f6a52-6a0e-5b0e-9a55-0b6f5f3f7c11")
"""The namespace of derived ids, which are the same in every process."""

_ROUNDS_MAX: Final = 5
"""How often facts are consolidated, if others keep changing the same memories meanwhile."""

_NEARBY_MAX: Final = 5
"""How many memories each fact is compared with."""

_OPTIONS: Final = TypeAdapter(GenerationOptions)
_FACTS: Final = TypeAdapter(list[NewFact])
_SESSION: Final = TypeAdapter(SessionSource)

CheckedT = TypeVar("CheckedT")

Outcomes = Sequence[tuple[Change, Refused | None]]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A `GenerationRequested` event in the log of a run."""

    appender: Appender
    event: AnyEvent
    offset: int
    """An offset at or before the trigger, from which its answer is searched."""

    @property
    def data(self) -> GenerationRequested:
        assert isinstance(self.event.data, GenerationRequested)
        return self.event.data

    @property
    def options(self) -> GenerationOptions:
        """The options of the generation. Raises `InvalidEventError`, as `facts` does, because any
        program may have written the event.
        """
        return _checked(_OPTIONS, self.data.options.get("options", {}))

    @property
    def facts(self) -> list[NewFact] | None:
        """The facts that were given directly; None if facts have to be extracted."""
        facts = self.data.options.get("facts")
        return None if facts is None else _checked(_FACTS, facts)

    @property
    def session(self) -> SessionSource | None:
        """The session that facts have to be extracted from, if the source is a session."""
        session = self.data.options.get("session")
        return None if session is None else _checked(_SESSION, session)

    @property
    def bank_created_by(self) -> str | None:
        """The event that created the bank; None: any bank with that id is meant."""
        event_id = self.data.options.get("bank_created_by")
        return None if event_id is None else str(event_id)


def derived_id(*parts: str) -> str:
    """An event id that is the same for the same parts."""
    return str(uuid.uuid5(_IDS, "\n".join(parts)))


def answer_id(trigger: AnyEvent) -> str:
    """The id of the event that answers the trigger."""
    return derived_id("answer", trigger.event_id)


def log_run_id(*parts: str) -> str:
    """The id of a run that is the log of a generation; the same for the same parts."""
    return GENERATION_LOG_PREFIX + derived_id("run", *parts)


def trigger_options(
    options: GenerationOptions,
    *,
    facts: Sequence[NewFact] | None = None,
    session: SessionSource | None = None,
    run_id: str | None = None,
    bank_created_by: str | None = None,
) -> dict[str, Any]:
    """The `options` of a `GenerationRequested` event. Without facts, session and run, the source is
    the trigger's own log. With `bank_created_by`, the trigger has no answer any more if that bank
    was deleted, even if another one was created with its id.
    """
    options_by_name = {
        "options": _OPTIONS.dump_python(options, mode="json", exclude_unset=True),
        "facts": None if facts is None else _FACTS.dump_python(list(facts), mode="json", exclude_unset=True),
        "session": None if session is None else _SESSION.dump_python(session, mode="json"),
        "run_id": run_id,
        "bank_created_by": bank_created_by,
    }
    return {name: value for name, value in options_by_name.items() if value is not None}


class Answers:
    """Consolidates facts with the memories of their scope, and changes the memories.

    Raises the errors of `Memories.change_all` and of the model, and `MemoryChangedError` if others
    kept changing the same memories.
    """

    def __init__(self, memories: Memories, model: MemoryModel | None) -> None:
        self._memories = memories
        self._model = model
        self._scopes: WeakValueDictionary[object, asyncio.Lock] = WeakValueDictionary()

    async def bank(self, trigger: Trigger) -> BankRecord:
        """The bank of the trigger. Raises `BankNotFoundError`, also if the bank was deleted and
        another one created with its id.
        """
        bank = await self._memories.bank(trigger.data.bank_id)
        if trigger.bank_created_by not in (None, bank.created_by):
            raise BankNotFoundError(bank.bank_id)
        return bank

    async def change_memories(
        self, bank_id: str, scope: Mapping[str, str], facts: Sequence[NewFact], options: GenerationOptions
    ) -> list[ChangedMemory]:
        """Changes memories without a model and without a log: the changes are events of no run."""
        done = _Done(facts)
        async with self._lock(bank_id, scope):
            for _ in range(_ROUNDS_MAX):
                bank = await self._memories.bank(bank_id)
                changes = await self._changes(bank, scope, facts, options, model=None)
                refusals = await self._memories.change_all(changes)
                outcomes = list(zip(changes, refusals, strict=True))
                done.add(outcomes)
                if not (facts := _refused_facts(outcomes, facts)):
                    return done.in_order()
        raise MemoryChangedError(bank_id, _refused_memory_id(outcomes))

    async def answer(self, trigger: Trigger, facts: Sequence[NewFact]) -> list[ChangedMemory]:
        """Answers a trigger. When this returns, the answer is in the trigger's log."""
        data, done = trigger.data, _Done(facts)
        async with self._lock(data.bank_id, data.scope):
            for _ in range(_ROUNDS_MAX):
                bank = await self.bank(trigger)
                changes = await self._changes(bank, data.scope, facts, trigger.options, model=self._model)
                outcomes = await self._forward(trigger, await _publish_answer(trigger, changes))
                done.add(outcomes)
                if not (facts := _refused_facts(outcomes, facts)):
                    return done.in_order()
                trigger = await _publish_retry(trigger, facts)
        raise MemoryChangedError(data.bank_id, _refused_memory_id(outcomes))

    async def finish(self, trigger: Trigger) -> None:
        """Forwards the answer in the log, and consolidates facts again whose changes are refused.
        For the case that the process that published the answer died before it did so.
        """
        data, bank = trigger.data, await self.bank(trigger)
        async with self._lock(bank.bank_id, data.scope):
            answer = await _read_answer(trigger, end=None)
            assert answer is not None
            outcomes = await self._forward(trigger, answer)
            if all(refused is None for _, refused in outcomes):
                return
            facts = _refused_facts(outcomes, trigger.facts or ())
            retry = await _publish_retry(trigger, facts) if facts else None
        if retry is not None:
            await self.answer(retry, facts)

    async def _changes(
        self,
        bank: BankRecord,
        scope: Mapping[str, str],
        facts: Sequence[NewFact],
        options: GenerationOptions,
        *,
        model: MemoryModel | None,
    ) -> list[Change]:
        find_nearby = (
            None if options.disable_consolidation else self._find_nearby(bank.bank_id, scope, options)
        )
        decisions = await consolidate(facts, find_nearby=find_nearby, model=model)
        now = datetime.now(UTC)
        return [
            change_of(decision, bank=bank, scope=scope, options=options, now=now) for decision in decisions
        ]

    def _find_nearby(self, bank_id: str, scope: Mapping[str, str], options: GenerationOptions) -> FindNearby:
        exact = options.metadata or {} if options.metadata_merge == "REQUIRE_EXACT_MATCH" else None

        def matches(record: MemoryRecord) -> bool:
            return exact is None or record.memory.metadata == exact

        async def find_nearby(text: str) -> Sequence[NearestMemory]:
            return await self._memories.nearest(bank_id, scope, text, limit=_NEARBY_MAX, matches=matches)

        return find_nearby

    async def _forward(self, trigger: Trigger, answer: MemoriesGenerated) -> Outcomes:
        """Makes the changes of an answer, which may be made already."""
        changes = list(answer.changes())
        refusals = await self._memories.change_all(
            changes, event_id=answer_id(trigger.event), run_id=trigger.appender.run_id
        )
        return list(zip(changes, refusals, strict=True))

    def _lock(self, bank_id: str, scope: Mapping[str, str]) -> asyncio.Lock:
        """A lock for the scope: two generations at the same time that find the same fact would both
        create a memory of it. Generations in different processes can still do so.
        """
        key = (bank_id, frozenset(scope.items()))
        return self._scopes.setdefault(key, asyncio.Lock())


async def give_up(trigger: Trigger, error: Exception) -> None:
    """Publishes as the answer to the trigger that there is none, and why."""
    failed = new_data(
        MemoriesGenerated,
        bank_id=trigger.data.bank_id,
        trigger=trigger.event.event_id,
        error=str(error)[:1000],
    )
    subject = subject_of_scope(trigger.data.bank_id, trigger.data.scope)
    await trigger.appender.append(failed, event_id=answer_id(trigger.event), late=True, subject=subject)


def _checked(kind: TypeAdapter[CheckedT], value: Any) -> CheckedT:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error


async def _publish_answer(trigger: Trigger, changes: Sequence[Change]) -> MemoriesGenerated:
    """Publishes an answer with these changes. Returns the answer that the log accepted, which is
    another one if another process was faster.
    """
    answer = new_data(
        MemoriesGenerated,
        bank_id=trigger.data.bank_id,
        trigger=trigger.event.event_id,
        created=tuple(change for change in changes if isinstance(change, MemoryCreated)),
        updated=tuple(change for change in changes if isinstance(change, MemoryUpdated)),
        deleted=tuple(change for change in changes if isinstance(change, MemoryDeleted)),
    )
    position = await trigger.appender.append(answer, event_id=answer_id(trigger.event), late=True)
    if position.offset == trigger.offset + 1:
        return answer
    return await _read_answer(trigger, end=position.offset + 1) or answer


async def _read_answer(trigger: Trigger, *, end: int | None) -> MemoriesGenerated | None:
    event_id = answer_id(trigger.event)
    async with aclosing(trigger.appender.log.history(first_offset=trigger.offset, end=end)) as history:
        async for admitted in history:
            event = admitted.event
            if admitted.counts and event is not None and event.event_id == event_id:
                assert isinstance(event.data, MemoriesGenerated)
                return event.data
    return None


async def _publish_retry(trigger: Trigger, facts: Sequence[NewFact]) -> Trigger:
    """Publishes a trigger for facts whose changes were refused, because a memory was changed
    meanwhile.
    """
    options = trigger_options(trigger.options, facts=facts, bank_created_by=trigger.bank_created_by)
    request = trigger.data.model_copy(update={"options": options})
    event = trigger.appender.event(request, event_id=derived_id("again", trigger.event.event_id))
    await trigger.appender.append(event, late=True)
    # Another process may have published the same trigger before, and answered it. The answer is
    # then before this record, so the search for it begins at the offset of the first trigger.
    return Trigger(trigger.appender, event, trigger.offset)


class _Done:
    """The accepted changes of a generation. Their order is that of the facts that they follow
    from.
    """

    def __init__(self, facts: Sequence[NewFact]) -> None:
        self._indexes = {fact.text: index for index, fact in reversed(list(enumerate(facts)))}
        self._changes: list[tuple[int, ChangedMemory]] = []

    def add(self, outcomes: Outcomes) -> None:
        self._changes += [
            (self._index(change), _changed_memory(change)) for change, refused in outcomes if refused is None
        ]

    def in_order(self) -> list[ChangedMemory]:
        return [change for _, change in sorted(self._changes, key=itemgetter(0))]

    def _index(self, change: Change) -> int:
        last = len(self._indexes)
        return min((self._indexes.get(each.fact, last) for each in change.extracted), default=last)


def _changed_memory(change: Change) -> ChangedMemory:
    match change:
        case MemoryCreated():
            return ChangedMemory(change.memory_id, "CREATED")
        case MemoryUpdated():
            return ChangedMemory(change.memory_id, "UPDATED", change.based_on)
        case MemoryDeleted():
            return ChangedMemory(change.memory_id, "DELETED", change.based_on)


def _refused_facts(outcomes: Outcomes, facts: Sequence[NewFact]) -> list[NewFact]:
    """The facts whose changes were refused. A deletion that was refused because the memory does not
    exist any more needs no further change.
    """
    return [
        fact
        for change, refused in outcomes
        if refused is not None and not (isinstance(change, MemoryDeleted) and refused.kind == "gone")
        for fact in _sources_of(change, facts)
    ]


def _sources_of(change: Change, facts: Sequence[NewFact]) -> list[NewFact]:
    """The facts that the change follows from. If another process's answer was accepted, it may
    follow from other facts than these; their topics are known only from a new memory.
    """
    texts = dict.fromkeys(extracted.fact for extracted in change.extracted)
    own = [fact for fact in facts if fact.text in texts]
    topics = change.memory.topics if isinstance(change, MemoryCreated) else ()
    own_texts = {fact.text for fact in own}
    return own + [NewFact(text=text, topics=topics) for text in texts if text not in own_texts]


def _refused_memory_id(outcomes: Outcomes) -> str:
    return next(change.memory_id for change, refused in outcomes if refused is not None)
