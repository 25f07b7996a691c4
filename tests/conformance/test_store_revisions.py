"""Revisions: inserted once, newest first, and expiring with a deleted memory until it is rolled
back.
"""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.builders import EPOCH, event_id

from runfold.store.revisions import RevisionStore
from runfold_projections.memory import ExpiryChange, Revision
from runfold_schemas.memories import RESTORABLE, Memory, memory_key

KEY, OTHER = memory_key("b", "m"), memory_key("b", "n")
NOW = EPOCH + timedelta(days=36_500)
"""Far ahead, so that MongoDB itself removes nothing while it is looked at."""
FAR = NOW + timedelta(days=300)
DELETED = NOW
UNTIL = DELETED + RESTORABLE


@pytest.fixture
async def revisions(store, edition) -> RevisionStore:
    opened = RevisionStore(store, edition)
    await opened.create_indexes()
    return opened


def revision(offset: int, **fields: Any) -> Revision:
    defaults = {
        "bank_id": "b",
        "memory_id": "m",
        "revision_id": event_id(offset),
        "action": "updated",
        "offset": offset,
        "run_id": "-",
        "created_at": EPOCH + timedelta(microseconds=offset),
        "expires_at": FAR,
        "memory": Memory(fact=f"fact {offset}", scope={"user": "ann"}),
    }
    return Revision(**(defaults | fields))


async def listed(revisions: RevisionStore, **options: Any) -> list[int]:
    defaults: dict[str, Any] = {"since": 0, "labels": {}, "now": NOW, "before": None, "limit": 100}
    return [one.offset for one in await revisions.list(KEY, **(defaults | options))]


async def test_revisions_are_listed_newest_first_and_from_a_place_on(revisions):
    await revisions.save([(KEY, revision(offset)) for offset in (4, 1, 3, 2)])
    await revisions.save([(OTHER, revision(9))])

    assert await listed(revisions) == [4, 3, 2, 1]
    assert await listed(revisions, limit=2) == [4, 3]
    assert await listed(revisions, before=3) == [2, 1]
    assert await listed(revisions, since=2, before=4) == [3, 2]


async def test_a_revision_is_read_as_it_was_saved_under_its_own_memory_only(revisions):
    whole = revision(1, labels={"a": "b"}, rolled_back_to=event_id(0))
    await revisions.save([(KEY, whole)])

    assert await revisions.get(KEY, 1, now=NOW) == whole
    assert await revisions.get(OTHER, 1, now=NOW) is None
    assert await revisions.get(KEY, 2, now=NOW) is None
    assert await revisions.all(now=NOW) == {(KEY, whole.revision_id): whole}


async def test_a_revision_is_inserted_once(revisions):
    await revisions.save([(KEY, revision(1))])
    await revisions.save([(KEY, revision(1, labels={"late": "owner"})), (KEY, revision(2))])

    assert await listed(revisions) == [2, 1]
    assert (await revisions.get(KEY, 1, now=NOW)).labels == {}


async def test_revisions_are_filtered_by_labels(revisions):
    await revisions.save(
        [
            (KEY, revision(1, labels={"by": "me", "x": "1"})),
            (KEY, revision(2, labels={"by": "you"})),
            (KEY, revision(3)),
        ]
    )

    assert await listed(revisions, labels={"by": "me"}) == [1]
    assert await listed(revisions, labels={"by": "me", "x": "1"}) == [1]
    assert await listed(revisions, labels={"by": "me", "x": "2"}) == []


async def test_what_has_expired_is_in_no_read(revisions):
    await revisions.save([(KEY, revision(1, expires_at=NOW)), (KEY, revision(2))])

    assert await listed(revisions) == [2]
    assert await revisions.get(KEY, 1, now=NOW) is None


async def test_the_revisions_of_a_deleted_memory_expire_with_it(revisions):
    soon = NOW + timedelta(hours=1)
    await revisions.save([(KEY, revision(1)), (KEY, revision(2, expires_at=soon)), (OTHER, revision(3))])

    await revisions.end([(KEY, ExpiryChange(DELETED, 2, undone=False))])

    kept = {
        one.offset: one.expires_at
        for one in await revisions.list(KEY, since=0, labels={}, now=NOW, before=None, limit=9)
    }
    assert kept == {1: UNTIL, 2: soon}
    assert await listed(revisions, now=UNTIL) == []
    assert (await revisions.get(OTHER, 3, now=UNTIL)).expires_at == FAR


async def test_rolling_back_lets_them_live_as_long_as_before(revisions):
    await revisions.save([(KEY, revision(1)), (KEY, revision(2))])
    await revisions.end([(KEY, ExpiryChange(DELETED, 2, undone=False))])

    await revisions.save([(KEY, revision(3))])
    await revisions.end([(KEY, ExpiryChange(DELETED, 3, undone=True))])

    assert await listed(revisions, now=UNTIL) == [3, 2, 1]
    assert await revisions.get(KEY, 1, now=NOW) == revision(1)


async def test_what_a_deletion_has_ended_is_there_for_a_rollback_that_is_folded_late(
    store, edition, revisions
):
    """As in a rebuild long afterwards, where MongoDB could remove it before the rollback is
    read.
    """
    now = datetime.now(UTC)
    deleted_at = now - timedelta(days=30)
    await revisions.save([(KEY, revision(1))])
    await revisions.end([(KEY, ExpiryChange(deleted_at, 2, undone=False))])

    assert await listed(revisions, now=now) == []
    [stored] = await store[f"revisions.{edition}"].find().to_list(None)
    assert stored["expires"] > now + timedelta(days=6)
    await revisions.end([(KEY, ExpiryChange(deleted_at, 3, undone=True))])

    assert await listed(revisions, now=now) == [1]


async def test_what_was_deleted_before_a_new_life_ends_all_the_same(revisions):
    await revisions.save([(KEY, revision(1))])
    later = DELETED + timedelta(hours=1)
    await revisions.end([(KEY, ExpiryChange(DELETED, 2, undone=False))])
    await revisions.save([(KEY, revision(3))])
    await revisions.end([(KEY, ExpiryChange(later, 4, undone=False))])
    await revisions.end([(KEY, ExpiryChange(later, 5, undone=True))])

    assert await listed(revisions, now=later + RESTORABLE) == [3]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_a_late_owner_changes_nothing(revisions, order):
    """Whatever it repeats of what another one has done further."""
    await revisions.save([(KEY, revision(1))])
    endings = [
        (KEY, ExpiryChange(DELETED, 2, undone=False)),
        (KEY, ExpiryChange(DELETED, 3, undone=True)),
        (KEY, ExpiryChange(DELETED + timedelta(hours=1), 4, undone=False)),
    ]
    await revisions.end(endings)
    before = await revisions.all(now=NOW)

    await revisions.end([endings[index] for index in order])

    assert await revisions.all(now=NOW) == before
