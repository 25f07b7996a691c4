"""State, with both drivers: exact for any key and value, and saved over what was set before
only.
"""

import asyncio

import pytest

from runfold.store.state import Entry, StateStore, own_scope
from runfold_projections.state import Value
from runfold_schemas.sessions import app_scope, user_scope

VALUES = {
    "a.b": 1,
    "$set": {"$set": {"a.b": [None]}},
    "nul\0": "nul\0",
    "😀": "😀",
    "": "",
    "_id": {"_id": 1},
    "null": None,
    "big": 2**200,
    "small": -(2**63) - 1,
    "float": 1.0,
    "k" * 5000: "v" * 5000,
}


@pytest.fixture
def values(store, edition) -> StateStore:
    """Without the index, which changes nothing but the time that a read takes."""
    return StateStore(store, edition)


def entry(value: object = 1, *, offset: int = 0, scope: str = "app:a", key: str = "k") -> Entry:
    return Entry(scope, key, Value(value, offset))


async def test_values_are_exact_for_any_key(values):
    await values.save([entry(value, key=key) for key, value in VALUES.items()])

    held = (await values.read(["app:a"]))["app:a"]

    assert repr({key: held[key].value for key in VALUES}) == repr(VALUES)


async def test_a_scope_that_holds_nothing_is_empty(values):
    assert await values.read([]) == {}
    assert await values.read(["app:a", "app:b"]) == {"app:a": {}, "app:b": {}}
    await values.save([])
    assert await values.all() == []


@pytest.mark.parametrize(("offset", "saved"), [(4, False), (5, False), (6, True)])
async def test_a_value_is_saved_only_over_one_that_was_set_before(values, offset, saved):
    await values.save([entry("before", offset=5)])

    await values.save([entry("after", offset=offset), entry("other", key="new", offset=offset)])

    held = (await values.read(["app:a"]))["app:a"]
    assert held == {
        "k": Value("after", offset) if saved else Value("before", 5),
        "new": Value("other", offset),
    }


async def test_concurrent_saves_end_with_the_last(values):
    await asyncio.gather(*(values.save([entry(offset, offset=offset)]) for offset in range(20, -1, -1)))

    assert await values.all() == [entry(20, offset=20)]


async def test_of_one_key_in_one_save_the_last_stands(values):
    await values.save([entry(offset, offset=offset) for offset in range(5)])

    assert await values.all() == [entry(4, offset=4)]


async def test_scopes_and_keys_that_join_to_one_text_are_kept_apart(values):
    entries = [
        entry("1", scope="app:a", key="bc"),
        entry("2", scope="app:ab", key="c"),
        entry("3", scope="app:abc", key=""),
    ]
    await values.save(entries)

    held = await values.read([one.scope for one in entries])

    assert held == {one.scope: {one.key: one.value} for one in entries}
    assert sorted(await values.all()) == sorted(entries)


async def test_deleting_a_scope_leaves_the_others(values):
    own, other = own_scope("log-1"), own_scope("log-2")
    await values.save([entry(scope=own), entry(scope=other), entry(scope=user_scope("a", "u"))])

    await values.delete([own, app_scope("nobody")])

    assert await values.read([own, other]) == {own: {}, other: {"k": Value(1, 0)}}
    assert len(await values.all()) == 2


async def test_editions_do_not_share_state(values, store):
    await values.save([entry()])

    assert await StateStore(store, "other").all() == []


async def test_a_scope_is_read_by_an_index(values, store, edition):
    await values.create_indexes()
    await values.save([entry(scope=f"app:{number % 20}", key=f"{number}") for number in range(200)])

    plan = await store[f"values.{edition}"].find({"scope": {"$in": ["app:7"]}}).explain()

    assert plan["executionStats"]["totalDocsExamined"] == 10
