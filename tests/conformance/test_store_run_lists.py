"""Lists of runs with both drivers: each filter and each order finds what it says, page by page, and
reads an index.
"""

import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from runfold.store.listing import microseconds
from runfold.store.run_filter import RunFilter, RunOrder, run_query
from runfold.store.run_state import fold_fields, list_fields_of
from runfold.store.runs import RunState, RunStore
from runfold_projections.activity import RunActivity, ToolStatistics
from runfold_projections.run import RunRecord, TokenTotals
from runfold_projections.usage import ModelUsage, RunUsage
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.runs import ForkedFrom

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STATUSES = ("pending", "running", "paused", "completed", "failed", "canceled")
ORDERS = [
    RunOrder(sort, ascending=ascending)
    for sort in ("started", "updated", "ended", "duration", "tokens")
    for ascending in (False, True)
]
FILTERS: list[dict[str, Any]] = [
    {},
    {"status": "failed"},
    {"status": ("failed", "running")},
    {"status": "open"},
    {"status": ("open", "running")},
    {"status": ("failed", "open")},
    {"status": "running", "is_session": False},
    {"is_session": True},
    {"is_session": False, "status": ("open", "failed")},
    {"user_id": "ann"},
    {"agent_id": "agent-1"},
    {"labels": {"channel": "chat"}},
    {"since": NOON + timedelta(minutes=20), "until": NOON + timedelta(minutes=60)},
    {"ended_since": NOON + timedelta(minutes=30)},
    {"status": "failed", "ended_since": NOON + timedelta(minutes=30)},
    {"updated_since": NOON + timedelta(minutes=40)},
    {"status": ("pending", "running", "paused"), "updated_until": NOON + timedelta(minutes=50)},
    {"text": "TIMED out"},
    {"text": "agent-1 ti"},
    {"text": "nothing-of-this"},
    {"user_id": "ann", "status": "completed", "text": "chat"},
    {"status": ("failed", "open"), "text": "agent-1"},
    {"status": "open", "is_session": True, "text": "agent-1"},
    {"status": ("open", "running"), "text": "agent-1"},
]


def states(seed: int, count: int = 120) -> list[RunState]:
    chance = random.Random(seed)
    return [_state(chance) for _ in range(count)]


def _state(chance: random.Random) -> RunState:
    log_id = uuid4().hex
    is_session = chance.random() < 0.3
    status = chance.choice(STATUSES)
    started = NOON + timedelta(minutes=chance.randrange(90))
    updated = started + timedelta(seconds=chance.randrange(1, 1000))
    record = RunRecord(
        run_id=f"{log_id[:8]}-{log_id[8:12]}-{log_id[12:16]}-{log_id[16:20]}-{log_id[20:]}"
        if is_session
        else f"run-{log_id}",
        agent_id=chance.choice(["agent-1", "agent-2"]),
        user_id=chance.choice([None, "ann", "bob"]),
        status=status,  # type: ignore[arg-type]
        started_at=started,
        updated_at=updated,
        labels=chance.choice([{}, {"channel": "chat"}]),
        error="the tool Timed out" if status == "failed" else None,
        usage=TokenTotals(input_tokens=chance.randrange(5)),
        next_offset=3,
    )
    activity = RunActivity(ended_at=updated if status in STATUSES[3:] else None)
    return RunState(log_id=log_id, partition=0, active=True, record=record, activity=activity)


@pytest.fixture(scope="module")
async def runs(store) -> RunStore:
    stored = RunStore(store, uuid4().hex)
    await stored.create_indexes()
    await stored.add(states(seed=1))
    return stored


async def turned(runs: RunStore, run_filter: RunFilter, order: RunOrder, *, limit: int) -> list[str]:
    ids, cursor = [], None
    while True:
        page, cursor = await runs.list(run_filter, limit=limit, cursor=cursor, order=order)
        ids += [each.run_id for each in page]
        if cursor is None:
            return ids
        assert len(page) == limit


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
async def test_every_filter_finds_what_it_says_in_every_order(runs, wanted):
    everything, _ = await runs.list(RunFilter(), limit=1000)
    run_filter = RunFilter(**wanted)
    matching = [each for each in everything if run_filter.matches(each.record, list_fields_of(each))]
    assert wanted == {"text": "nothing-of-this"} or 0 < len(matching) <= len(everything)

    for order in ORDERS:
        listed = [each for each in matching if order.sort in ("started", "updated") or order.key(each)[0] > 0]
        expected = [each.run_id for each in sorted(listed, key=order.key, reverse=not order.ascending)]
        assert await turned(runs, run_filter, order, limit=7) == expected


async def test_no_list_scans_the_collection(runs):
    for wanted, order in itertools.product(FILTERS, ORDERS):
        query = run_query(RunFilter(**wanted), order)
        plan = await runs._runs.find(query).sort(order.keys).limit(8).explain()

        assert "COLLSCAN" not in str(plan["queryPlanner"]["winningPlan"]), (wanted, order)


async def test_the_orders_by_time_need_no_sorting(runs):
    for wanted, order in (
        ({}, RunOrder("updated")),
        ({"status": ("failed", "running")}, RunOrder("started")),
        ({"status": "running", "is_session": False}, RunOrder("started")),
        ({"status": "failed", "ended_since": NOON}, RunOrder("ended")),
        ({"updated_since": NOON}, RunOrder("updated")),
    ):
        query = run_query(RunFilter(**wanted), order)
        plan = await runs._runs.find(query).sort(order.keys).limit(8).explain()
        assert "'SORT'" not in str(plan["queryPlanner"]["winningPlan"]), (wanted, order)


async def test_a_search_finds_the_beginnings_of_words_in_any_script(store):
    runs = RunStore(store, uuid4().hex)
    (state,) = states(seed=8, count=1)
    error = " ".join(f"e{number}" for number in range(70))
    texts = {"agent_id": "größen_wahn-élan", "error": error, "labels": {"city": "東京 (हिन्दी)"}}
    named = replace(state, record=state.record.model_copy(update=texts))
    await runs.add([named])
    expected = {"GRÖ": True, "éL": True, "हिन्दी": True, "東": True, "e6": True, "größen-wahn": False}
    expected |= {"wahn": False, "lan": False, "京": False, "": True, "-": True, "e6 東京": True}

    for text, is_listed in expected.items():
        wanted = RunFilter(text=text)
        listed, _ = await runs.list(wanted, limit=5)
        assert bool(listed) == wanted.matches(named.record, list_fields_of(named)) == is_listed, text


async def test_a_cursor_belongs_to_its_order(runs):
    _, cursor = await runs.list(RunFilter(), limit=5, order=RunOrder("tokens"))

    for order in (RunOrder("duration"), RunOrder("tokens", ascending=True), RunOrder()):
        with pytest.raises(InvalidEventError):
            await runs.list(RunFilter(), limit=5, cursor=cursor, order=order)


async def test_runs_of_an_earlier_version_are_listed_anew(store):
    runs = RunStore(store, uuid4().hex)
    (state,) = states(seed=2, count=1)
    ended = replace(state, record=state.record.model_copy(update={"status": "failed", "user_id": "ann"}))
    await runs.add([ended])
    await written_by_an_earlier_version(runs)
    assert await runs.list(RunFilter(user_id="ann"), limit=5) == ([], None)

    await runs.list_anew([0])

    for run_filter in (RunFilter(user_id="ann"), RunFilter(ended_since=NOON), RunFilter(text=ended.run_id)):
        found, _ = await runs.list(run_filter, limit=5)
        assert [each.run_id for each in found] == [ended.run_id]
        assert found[0].ended_at == ended.record.updated_at


async def test_one_search_finds_all_runs_of_an_earlier_version(store, monkeypatch):
    runs = RunStore(store, uuid4().hex)
    await runs.add(states(seed=4, count=7))
    await written_by_an_earlier_version(runs)
    find, searches = runs._runs.find, []
    collection = SimpleNamespace(
        find=lambda *query: searches.append(query) or find(*query), bulk_write=runs._runs.bulk_write
    )

    with monkeypatch.context() as patch:
        patch.setattr(runs, "_runs", collection)
        await runs.list_anew([0], portion=2)

    listed = [document async for document in runs._runs.find({})]
    assert len(listed) == 7
    assert all(document["listed"] == document["next_offset"] for document in listed)
    assert len(searches) == 1


async def written_by_an_earlier_version(runs: RunStore) -> None:
    fields = dict.fromkeys(("listed", "user_id", "text", "updated_us", "ended_us", "activity"), "")
    await runs._runs.update_many({}, {"$unset": fields})


def _later(state: RunState, position: int, **fields: Any) -> RunState:
    updated = {"next_offset": position, "status": "running", "updated_at": NOON + timedelta(seconds=position)}
    return replace(state, record=state.record.model_copy(update=updated | fields), last_offset=position - 1)


def _called(state: RunState, position: int) -> RunState:
    tools = (ToolStatistics(name="search", calls=position),)
    usage = RunUsage(models=(ModelUsage(model="m", calls=position, input_tokens=position),))
    counts = {"token_usage": position}
    later = _later(state, position, usage=usage.totals, counts=counts)
    return replace(later, activity=RunActivity(tools=tools), usage=usage)


async def test_a_run_saved_again_has_all_fields_of_its_state(store):
    runs, other = (RunStore(store, name) for name in [uuid4().hex] * 2)
    first = _later(states(seed=4, count=1)[0], 1)
    called = _called(first, 2)
    earlier_version = {"next_offset": 12, "record": _later(called, 12).record.model_dump_json(), "seal": None}
    await runs.add([first])

    for saving, state in (
        (runs, called),
        (runs, _later(called, 3)),
        (runs, _called(called, 4)),
        (other, _called(called, 5)),  # another worker takes the run over
        (runs, _later(_called(called, 5), 6)),  # and the first goes on
        (other, _later(_called(called, 5), 7, error="timed out")),
        (other, _later(_called(called, 5), 8, labels={"channel": "mail"})),
        (runs, _later(_called(called, 9), 9, labels={"channel": "mail"})),
        (runs, _later(_called(called, 9), 10)),
        (runs, earlier_version),
        (runs, _later(_called(called, 9), 13)),
        (runs, _later(_called(called, 9), 14, status="completed")),
    ):
        if isinstance(state, dict):
            await runs._runs.update_one({"_id": first.run_id}, {"$set": state})
            continue
        await saving.save([state])
        assert await runs.get(first.run_id) == replace(state, announced_ms=first.announced_ms)
        document = await runs.document(first.run_id)
        expected = fold_fields(state)
        assert {name: document[name] for name in expected if name != "activity"} == {
            name: value for name, value in expected.items() if name != "activity"
        }
        assert await runs.inconsistent_fields(first.run_id) == []


async def test_the_activity_of_an_earlier_state_does_not_count(store):
    runs = RunStore(store, uuid4().hex)
    first = _called(states(seed=7, count=1)[0], 2)
    later = _later(first, 3)
    await runs.add([first])
    changes = {"next_offset": 3, "record": later.record.model_dump_json(), "seal": None}
    await runs._runs.update_one({"_id": first.run_id}, {"$set": changes})
    assert (await runs.get(first.run_id)).activity is None

    await runs.list_anew([first.partition])

    assert (await runs.get(first.run_id)).activity is None
    await runs.save([_later(later, 4)])
    assert (await runs.get(first.run_id)).activity == first.activity


@pytest.mark.parametrize("damage", [{"tools.0.calls": 3}, {"tools": 7}, {"activity.0": 1}])
async def test_a_damaged_activity_does_not_count(store, damage):
    runs = RunStore(store, uuid4().hex)
    state = _called(states(seed=9, count=1)[0], 2)
    await runs.add([state])
    assert (await runs.get(state.run_id)).activity == state.activity

    await runs._runs.update_one({"_id": state.run_id}, {"$set": damage})

    assert (await runs.get(state.run_id)).activity is None
    assert "tools" in await runs.inconsistent_fields(state.run_id)


async def test_a_state_is_not_saved_over_a_later_one(store):
    runs, other = (RunStore(store, name) for name in [uuid4().hex] * 2)
    first = _later(states(seed=5, count=1)[0], 1)
    await runs.add([first])
    await runs.save([_called(first, 2)])
    await other.save([_called(first, 9)])

    await runs.save([_later(_called(first, 2), 3)])

    assert (await runs.get(first.run_id)).record.next_offset == 9


async def test_a_live_run_keeps_its_place_in_lists_for_some_seconds(store):
    first = _later(states(seed=6, count=1)[0], 1)
    seconds = (1, 2, 9, 10, 11)
    times = [list_fields_of(_later(first, position))["updated_us"] for position in seconds]
    exact = list_fields_of(_later(first, 3, status="completed"))["updated_us"]

    assert times == [microseconds(NOON + timedelta(seconds=shown)) for shown in (10, 10, 10, 10, 20)]
    assert exact == microseconds(NOON + timedelta(seconds=3))
    for tokens, listed in ((0, 0), (15, 15), (17, 18), (1_000, 1_024), (1_025, 1_152)):
        state = _later(first, 1, usage=TokenTotals(input_tokens=tokens))
        assert list_fields_of(state)["tokens"] == listed


async def test_a_fork_is_not_idle_because_its_copies_are_old():
    copied = _later(states(seed=7, count=1)[0], 3)
    source = ForkedFrom(run_id="r-1", log_id="a" * 32, offset=3, events=3)
    started = NOON + timedelta(hours=1)
    fork = copied.record.model_copy(update={"started_at": started, "forked_from": source})

    assert list_fields_of(replace(copied, record=fork))["updated_us"] == microseconds(started)


async def test_nothing_of_a_deleted_run_stays_in_the_fields_for_lists(store):
    runs = RunStore(store, uuid4().hex)
    (state,) = states(seed=3, count=1)
    await runs.add([state])

    await runs.delete([(state.life, 0)])

    document = await runs._runs.find_one({"_id": state.run_id})
    assert document.keys().isdisjoint(list_fields_of(state))


async def test_a_damaged_run_at_the_end_of_a_page_does_not_end_the_list(store):
    damaged = RunStore(store, uuid4().hex)
    await damaged.create_indexes()
    await damaged.add(states(seed=2, count=40))
    await damaged._runs.update_many({}, {"$set": {"record": "{"}})

    for order in ORDERS:
        whole, _ = await damaged.list(RunFilter(), limit=100, order=order)
        expected = [each.run_id for each in whole]
        assert len(expected) > 5
        assert await turned(damaged, RunFilter(), order, limit=3) == expected
