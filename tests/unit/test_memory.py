"""Memories and banks, folded from one partition: what each change does, and that batches and
redelivery change nothing.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import EPOCH, event, event_id
from tests.records import modest, portions, record

from runfold_projections.memory import (
    BankRecord,
    Changed,
    Head,
    HeadAt,
    MemoryFold,
    MemoryRecord,
    Refused,
    Revision,
    apply,
    apply_to_bank,
    bank_event,
    expire_with_memory,
    memory_event,
)
from runfold_projections.state import forwards
from runfold_schemas.codec import check_new, encode
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import AnyEvent, PlannerNote
from runfold_schemas.memories import (
    RESTORABLE,
    REVISION_TTL,
    BankConfig,
    BankCreated,
    BankDeleted,
    BankUpdated,
    ExtractedMemory,
    MemoriesGenerated,
    Memory,
    MemoryChange,
    MemoryCreated,
    MemoryDeleted,
    MemoryRolledBack,
    MemoryUpdated,
    bank_key,
    memory_key,
)
from runfold_schemas.outline import VALUES_MAX
from runfold_schemas.topics import RECORD_BYTES_MAX

KEY = memory_key("b", "m")
SCOPE = {"user": "ann"}


def memory(fact: str = "likes tea", **fields: Any) -> Memory:
    return Memory(**{"fact": fact, "scope": SCOPE, **fields})


def change(kind: type[MemoryChange], **fields: Any) -> MemoryChange:
    return kind(**{"bank_id": "b", "memory_id": "m", **fields})


def created(**fields: Any) -> MemoryChange:
    return change(MemoryCreated, **{"memory": memory(), **fields})


def updated(fact: str = "likes coffee", **fields: Any) -> MemoryChange:
    return change(MemoryUpdated, **{"memory": memory(fact), **fields})


def deleted(**fields: Any) -> MemoryChange:
    return change(MemoryDeleted, **fields)


def rolled_back(**fields: Any) -> MemoryChange:
    return change(MemoryRolledBack, **{"memory": memory(), "revision_id": event_id(0), **fields})


class History:
    """What changes come to, one after the other, each an hour after the one before."""

    def __init__(self, *changes: MemoryChange | AnyEvent, every: timedelta = timedelta(hours=1)) -> None:
        self.fold = MemoryFold({})
        self.events: list[AnyEvent] = []
        for offset, one in enumerate(changes):
            said = one
            if isinstance(one, MemoryChange):
                said = event(one, event_id=event_id(offset), timestamp=EPOCH + offset * every)
            self.events.append(said)
            self.fold.take(KEY, said, offset)

    @property
    def record(self) -> MemoryRecord | None:
        return self.fold.records().get(KEY)

    @property
    def refusals(self) -> list[tuple[str, str]]:
        """The ids of what was refused, each with its kind."""
        return [(id_, refused.kind) for _, id_, refused in self.fold.refused]

    @property
    def revisions(self) -> list[Revision]:
        return [revision for _, revision in self.fold.revisions]


def test_a_memory_is_what_its_creation_says():
    history = History(created())

    assert history.record == MemoryRecord(
        bank_id="b",
        memory_id="m",
        memory=memory(),
        revision_id=event_id(0),
        created_at=EPOCH,
        updated_at=EPOCH,
    )


def test_each_change_leaves_a_revision_with_what_the_memory_holds_since():
    history = History(created(), updated(), deleted(), rolled_back())

    assert [(one.action, one.fact, one.offset) for one in history.revisions] == [
        ("created", "likes tea", 0),
        ("updated", "likes coffee", 1),
        ("deleted", "", 2),
        ("rolled_back", "likes tea", 3),
    ]
    assert [one.revision_id for one in history.revisions] == [one.event_id for one in history.events]


def test_a_revision_says_what_its_change_says_of_it():
    found = ExtractedMemory(fact="the user drinks tea", context="at breakfast")
    until = EPOCH + timedelta(days=3)
    history = History(
        created(revision_labels={"by": "me"}, revision_expires_at=until, extracted=(found,)), updated()
    )

    first, second = history.revisions
    assert (first.labels, first.expires_at, first.extracted) == ({"by": "me"}, until, (found,))
    assert second.expires_at == second.created_at + REVISION_TTL
    assert first.run_id == history.events[0].run_id


def test_a_change_without_a_revision_changes_all_the_same():
    history = History(created(leaves_revision=False), updated(leaves_revision=False))

    assert history.record is not None
    assert history.record.memory.fact == "likes coffee"
    assert history.record.revision_id == event_id(1)
    assert history.revisions == []


def test_an_update_keeps_when_the_memory_was_created():
    history = History(created(), updated())

    assert history.record is not None
    assert (history.record.created_at, history.record.updated_at) == (EPOCH, EPOCH + timedelta(hours=1))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ([updated()], "gone"),
        ([deleted()], "gone"),
        ([rolled_back()], "gone"),
        ([created(), created()], "exists"),
        ([created(), deleted(), updated()], "gone"),
        ([created(), deleted(), deleted()], "gone"),
        ([created(), updated(based_on=event_id(7))], "changed"),
        ([created(), deleted(based_on=event_id(7))], "changed"),
        ([created(), rolled_back(based_on=event_id(7))], "changed"),
        ([created(), updated(memory=memory(scope={"user": "ben"}))], "scope"),
        ([created(), rolled_back(memory=memory(scope={**SCOPE, "app": "x"}))], "scope"),
    ],
)
def test_what_is_not_allowed_changes_nothing_and_leaves_no_revision(changes, kind):
    before, after = History(*changes[:-1]), History(*changes)

    assert after.refusals == [*before.refusals, (event_id(len(changes) - 1), kind)]
    assert after.record == before.record
    assert after.revisions == before.revisions
    assert after.fold.heads == before.fold.heads


def test_a_change_based_on_the_last_one_counts():
    history = History(created(), updated(based_on=event_id(0)), deleted(based_on=event_id(1)))

    assert history.refusals == []
    assert history.record is None


def test_of_two_changes_based_on_the_same_the_first_in_the_log_counts():
    history = History(
        created(), updated("first", based_on=event_id(0)), updated("second", based_on=event_id(0))
    )

    assert history.record is not None
    assert history.record.memory.fact == "first"
    assert history.refusals == [(event_id(2), "changed")]


def test_creating_revives_with_nothing_of_the_life_before():
    other = memory("likes juice", scope={"user": "ben"})
    history = History(created(), deleted(), created(memory=other))

    assert history.record is not None
    assert history.record.memory == other
    assert history.record.created_at == EPOCH + timedelta(hours=2)
    assert [(end.offset, end.undone) for _, end in history.fold.endings] == [(1, False)]


def test_rolling_back_revives_with_the_revisions_of_before():
    history = History(created(), deleted(), rolled_back())

    assert history.record is not None
    assert history.record.created_at == EPOCH
    assert [(end.deleted_at, end.undone) for _, end in history.fold.endings] == [
        (EPOCH + timedelta(hours=1), False),
        (EPOCH + timedelta(hours=1), True),
    ]


def test_a_deleted_memory_can_be_rolled_back_for_48_hours():
    def after(wait: timedelta) -> Changed | Refused:
        head = History(created(), deleted()).fold.heads[KEY].head
        at = EPOCH + timedelta(hours=1) + wait
        return apply(head, event(rolled_back(), timestamp=at), 2)

    assert isinstance(after(RESTORABLE - timedelta(microseconds=1)), Changed)
    assert isinstance(after(RESTORABLE), Refused)


def test_the_revisions_of_a_deleted_memory_expire_with_it_unless_they_do_before():
    late, soon = (
        History(created(), created(revision_expires_at=EPOCH + timedelta(hours=9))).revisions[0],
        None,
    )
    soon = History(created(revision_expires_at=EPOCH + timedelta(hours=9))).revisions[0]

    assert expire_with_memory(late, EPOCH).expires_at == EPOCH + RESTORABLE
    assert expire_with_memory(soon, EPOCH) == soon
    assert expire_with_memory(late, None) is late


def test_an_expired_memory_is_not_there_for_changes_after_its_expiry():
    expiring = created(memory=memory(expires_at=EPOCH + timedelta(minutes=90)))

    assert History(expiring, updated()).refusals == []
    assert History(expiring, deleted(leaves_revision=False), created()).refusals == []
    late = History(expiring, event(updated(), timestamp=EPOCH + timedelta(minutes=90)))
    assert [kind for _, kind in late.refusals] == ["gone"]
    again = History(expiring, event(created(), timestamp=EPOCH + timedelta(minutes=90)))
    assert again.refusals == []
    assert again.record is not None
    assert again.record.created_at == EPOCH + timedelta(minutes=90)


def test_an_expired_memory_can_be_rolled_back():
    expiring = created(memory=memory(expires_at=EPOCH + timedelta(minutes=30)))

    history = History(expiring, rolled_back())

    assert history.refusals == []
    assert history.record is not None
    assert history.record.memory.expires_at is None


def test_a_change_under_a_key_that_is_not_its_own_cannot_be_decoded():
    good = record(event(created()), 0, key=KEY.encode())
    assert memory_event(good)[0] == KEY

    for key in (b"memory:b/other", b"", None, b"\xff", b"memory:b/m/", bank_key("b").encode()):
        with pytest.raises(UndecodableError):
            memory_event(record(event(created()), 0, key=key))
    with pytest.raises(UndecodableError):
        memory_event(record(event(PlannerNote(note="n")), 0, key=KEY.encode()))
    with pytest.raises(UndecodableError):
        bank_event(record(event(created()), 0, key=KEY.encode()))


def test_no_two_memories_have_one_key():
    assert memory_key("a/b", "c") != memory_key("a", "b/c")
    assert memory_key("a%2Fb", "c") != memory_key("a/b", "c")


def test_changes_on_a_runs_log_are_forwarded_under_their_keys_with_the_same_id():
    said = event(created(), run_id="r")

    [forward] = forwards(said, app="a", user=None)

    assert forward.key == KEY
    assert (forward.event.event_id, forward.event.run_id, forward.event.data) == (
        said.event_id,
        "r",
        said.data,
    )


def test_what_was_generated_is_forwarded_change_by_change():
    generated = MemoriesGenerated(
        bank_id="b",
        created=(created(memory_id="new"),),
        updated=(updated(),),
        deleted=(deleted(memory_id="old"),),
    )
    said = event(generated)

    found = forwards(said, app="a", user="u")

    assert [(one.key, one.event.type) for one in found] == [
        (memory_key("b", "new"), "memory_created"),
        (memory_key("b", "m"), "memory_updated"),
        (memory_key("b", "old"), "memory_deleted"),
    ]
    assert {one.event.event_id for one in found} == {said.event_id}


def test_a_bank_is_what_its_last_fact_says():
    def after(*facts: Any) -> BankRecord | None:
        bank = None
        for fact in facts:
            bank = apply_to_bank(bank, event(fact))
        return bank

    first, second = BankConfig(display_name="one"), BankConfig(display_name="two")
    made = BankCreated(bank_id="b", config=first)
    assert after(made) is not None
    assert after(made, BankCreated(bank_id="b", config=second)).config == first
    assert after(made, BankUpdated(bank_id="b", config=second)).config == second
    assert after(made, BankDeleted(bank_id="b")) is None
    assert after(BankUpdated(bank_id="b", config=first)) is None
    at_last = BankUpdated(bank_id="b", config=first, based_on=after(made).changed_by)
    assert after(made, at_last).config == first
    assert after(made, BankUpdated(bank_id="b", config=second), at_last).config == second
    assert after(made, BankDeleted(bank_id="b"), BankCreated(bank_id="b", config=second)).config == second


Stored = tuple[dict[str, HeadAt], dict[str, Any], dict[Any, Revision], list[Any]]


def stored_after(parts: Sequence[Sequence[tuple[str, AnyEvent, int]]]) -> Stored:
    """What is stored when each of these parts is folded over what was stored before."""
    heads: dict[str, HeadAt] = {}
    records: dict[str, Any] = {}
    revisions: dict[Any, Revision] = {}
    refused: dict[Any, Any] = {}
    for part in parts:
        fold = MemoryFold(heads)
        for one in part:
            fold.take(*one)
        for key, revision in fold.revisions:
            revisions.setdefault((key, revision.revision_id), revision)
        refused |= {(key, id_): kind for key, id_, kind in fold.refused}
        records |= fold.records()
        heads |= fold.heads
    return heads, records, revisions, sorted(refused.items())


CHANGES = st.one_of(
    st.just(created),
    st.just(updated),
    st.just(deleted),
    st.just(rolled_back),
)


@st.composite
def histories(draw: Any) -> list[tuple[str, AnyEvent, int]]:
    """Changes of two memories, some based on a change that may be the last one."""
    log: list[tuple[str, AnyEvent, int]] = []
    for offset, (make, name) in enumerate(
        draw(st.lists(st.tuples(CHANGES, st.sampled_from(("m", "n"))), max_size=14))
    ):
        fields: dict[str, Any] = {"memory_id": name}
        if make is not created and draw(st.booleans()):
            fields["based_on"] = event_id(draw(st.integers(0, max(0, offset - 1))))
        at = EPOCH + timedelta(hours=draw(st.integers(0, 100)))
        said = event(make(**fields), event_id=event_id(offset), timestamp=at)
        log.append((memory_key("b", name), said, offset))
    return log


@given(histories(), st.data())
@modest
def test_any_batching_and_any_redelivery_give_what_the_plain_fold_gives(log, data):
    once = stored_after([log])

    parts = data.draw(portions(log))
    assert stored_after(parts) == once
    # A crash before the position was saved has the last parts come once more.
    again = [part for part in parts for _ in range(data.draw(st.integers(1, 2)))]
    assert stored_after(again) == once


@given(histories())
@modest
def test_what_counts_of_a_memory_is_one_chain_of_changes(log):
    heads, records, revisions, _ = stored_after([log])

    for key, decided in heads.items():
        chain = sorted((one for (of, _), one in revisions.items() if of == key), key=lambda one: one.offset)
        assert chain[0].action == "created"
        assert chain[-1].revision_id == decided.head.changed_by
        assert (records[key] is None) == (decided.head.deleted_at is not None)
        for before, after in pairwise(chain):
            assert not (before.action == "deleted" and after.action in ("updated", "deleted"))


def test_a_head_stands_until_it_expires_or_was_deleted():
    def head(**fields: datetime) -> Head:
        return Head(
            bank_id="b",
            memory_id="m",
            scope=SCOPE,
            changed_by=event_id(0),
            began=0,
            created_at=EPOCH,
            changed_at=EPOCH,
            **fields,
        )

    assert head().exists_at(EPOCH)
    assert not head(deleted_at=EPOCH).exists_at(EPOCH)
    assert head(expires_at=EPOCH + timedelta(seconds=1)).exists_at(EPOCH)
    assert not head(expires_at=EPOCH).exists_at(EPOCH)


def test_a_revision_is_never_older_than_the_one_before():
    changes = [created(), updated(), updated("likes milk"), deleted()]
    late = [EPOCH, EPOCH - timedelta(milliseconds=1), EPOCH - timedelta(hours=1), EPOCH]
    fold = MemoryFold({})

    for offset, (one, at) in enumerate(zip(changes, late, strict=True)):
        fold.take(KEY, event(one, event_id=event_id(offset), timestamp=at), offset)

    assert [revision.created_at for _, revision in fold.revisions] == [EPOCH] * 4
    assert fold.heads[KEY].head.changed_at == EPOCH
    assert not fold.refused


def test_the_largest_bank_fits_into_a_document_of_mongodb():
    # A customization takes two bytes and two values, and 45 bytes with fields that it leaves out.
    bank = BankCreated(bank_id="b", config=config([{}] * (VALUES_MAX // 2 - 100)))
    value = encode(event(bank))
    check_new(value)

    grown = len(bank.__pydantic_serializer__.to_json(bank)) - len(value)

    assert RECORD_BYTES_MAX + grown < 15 * 1024 * 1024


def config(customizations: list[dict[str, Any]]) -> BankConfig:
    return BankConfig.model_validate({"customizations": customizations})
