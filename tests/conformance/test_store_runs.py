"""Run states, with both drivers: saved over lower positions only, and listed without gaps or
doubles.
"""

import asyncio
import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from runfold.store.runs import RunFilter, RunState, RunStore
from runfold_projections.run import RunRecord, TokenTotals
from runfold_schemas.errors import InvalidEventError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def runs(store, edition) -> RunStore:
    """Without the indexes, which change nothing but the time that a list takes."""
    return RunStore(store, edition)


def state(
    run_id: str = "run-1", *, log_id: str = "life-1", partition: int = 0, active: bool = True, **record
) -> RunState:
    return RunState(
        log_id=log_id, partition=partition, active=active, record=RunRecord(run_id=run_id, **record)
    )


def started(run_id: str, after: timedelta = timedelta(), **record) -> RunState:
    """A run that started so long after noon."""
    return state(run_id, started_at=NOON + after, next_offset=1, **record)


async def listed(runs: RunStore, *, limit: int = 100, **wanted) -> list[str]:
    """The ids of all runs that are wanted; the filter itself finds the same."""
    ids = await turned(runs, limit=limit, **wanted)
    everything, _ = await runs.list(RunFilter(), limit=1000)
    assert set(ids) == {one.run_id for one in everything if RunFilter(**wanted).matches(one.record)}
    return ids


async def turned(runs: RunStore, *, limit: int, **wanted) -> list[str]:
    """The ids of all runs that are wanted, page by page."""
    ids, cursor = [], None
    while True:
        states, cursor = await runs.list(RunFilter(**wanted), limit=limit, cursor=cursor)
        assert len(states) <= limit
        ids += [one.run_id for one in states]
        if cursor is None:
            return ids
        assert len(states) == limit


async def test_a_run_that_was_added_is_read_as_it_is(runs):
    one = replace(
        state(
            "päris/1 .$\n",
            agent_id="a",
            session_id="s",
            turn_id="t",
            status="failed",
            phase="failed",
            started_at=NOON + MICROSECOND,
            updated_at=NOON,
            labels={"a.b": "$x", "": "\0", "é": "\U0001f9ea"},
            error="\0",
            usage=TokenTotals(input_tokens=2**70),
            counts={"run_opened": 1},
            exceptions={"late": 2},
            illegal_transitions=3,
            next_offset=2**62,
        ),
        opened=True,
        ended=True,
        last_offset=2**62 - 1,
    )

    assert await runs.add([one]) == [one]
    assert await runs.get(one.run_id) == one
    assert await runs.get_many([one.run_id, "none"]) == {one.run_id: one}


async def test_what_is_not_there_is_none(runs):
    assert await runs.get("none") is None
    assert await runs.get_many([]) == {}
    assert await runs.list(RunFilter(), limit=5) == ([], None)
    assert await runs.active([0]) == []


async def test_a_run_is_added_only_once(runs):
    first, second = state(log_id="life-1", next_offset=5), state(log_id="life-2")

    assert await runs.add([first]) == [first]
    assert await runs.add([second, state("run-2")]) == [state("run-2")]
    assert await runs.add([]) == []
    assert await runs.get("run-1") == first


async def test_of_many_that_add_a_run_at_once_one_does(runs):
    lives = [state(log_id=f"life-{number}") for number in range(12)]

    answers = await asyncio.gather(*(runs.add([life]) for life in lives))

    (winner,) = [life for added in answers for life in added]
    assert await runs.get("run-1") == winner


@pytest.mark.parametrize(("position", "saved"), [(4, False), (5, False), (6, True)])
async def test_a_state_is_saved_only_over_a_lower_position(runs, position, saved):
    before = state(next_offset=5, agent_id="before")
    after = replace(state(next_offset=position, agent_id="after"), opened=True, ended=True, last_offset=3)
    await runs.add([before])

    await runs.save([after])

    assert await runs.get("run-1") == (after if saved else before)


async def test_a_state_of_another_life_is_not_saved(runs):
    before = state(log_id="life-2", next_offset=5)
    await runs.add([before])

    await runs.save([state(log_id="life-1", next_offset=50)])

    assert await runs.get("run-1") == before


async def test_saving_neither_adds_a_run_nor_wakes_or_moves_it(runs):
    await runs.add([state("asleep", active=False, partition=3)])

    await runs.save([])
    await runs.save([state("asleep", active=True, partition=9, next_offset=1), state("none", next_offset=1)])

    assert await runs.get("none") is None
    assert await runs.get("asleep") == state("asleep", active=False, partition=3, next_offset=1)


async def test_concurrent_saves_end_with_the_furthest(runs):
    await runs.add([state()])

    await asyncio.gather(*(runs.save([state(next_offset=position)]) for position in range(20, 0, -1)))

    assert await runs.get("run-1") == state(next_offset=20)


async def test_runs_are_parked_and_woken(runs):
    await runs.add([state("a", partition=1), state("b", partition=2), state("c", partition=2, next_offset=7)])

    await runs.set_active(["c", "none"], active=False)

    assert [one.run_id for one in await runs.active([1, 2])] == ["a", "b"]
    assert [one.run_id for one in await runs.active([1])] == ["a"]
    assert await runs.active([]) == []
    assert await runs.ends([2, 3]) == {"b": ("life-1", 0), "c": ("life-1", 7)}
    assert await runs.ends([3]) == {}
    assert await runs.ends_of(["c", "none"]) == {"c": ("life-1", 7)}

    await runs.set_active(["c"], active=True)

    assert await runs.get("c") == state("c", partition=2, next_offset=7)
    assert await runs.ends([1]) == {"a": ("life-1", 0)}


async def test_progress_tells_every_run_with_its_position(runs):
    await runs.add([state("a", next_offset=3), state("b", active=False)])

    assert sorted([one async for one in runs.progress()]) == [("a", 3), ("b", 0)]


async def test_editions_do_not_share_runs(runs, store):
    await runs.add([state()])

    assert await RunStore(store, "other").get("run-1") is None


async def test_runs_are_listed_newest_first_and_those_of_one_moment_by_id(runs):
    await runs.add(
        [
            started("old", -MICROSECOND),
            state("never"),
            *[started(name) for name in "bca"],
            started("new", MICROSECOND),
        ]
    )

    assert await listed(runs) == ["new", "c", "b", "a", "old", "never"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 24, 25])
async def test_pages_of_a_list_have_no_gap_and_no_double_also_at_equal_times(runs, limit):
    moments = [timedelta(0), MICROSECOND, timedelta(hours=-1)]
    await runs.add([started(f"run-{number:02}", moments[number % 3]) for number in range(21)])
    await runs.add([state(f"pending-{number}") for number in range(3)])

    ids = await listed(runs, limit=limit)

    assert len(ids) == len(set(ids)) == 24
    assert ids == await listed(runs)


async def test_runs_that_start_while_somebody_turns_pages_do_not_shift_them(runs):
    await runs.add([started(f"run-{number}", timedelta(seconds=number)) for number in range(6)])

    first, cursor = await runs.list(RunFilter(), limit=3)
    await runs.add([started("newer", timedelta(hours=1))])
    second, end = await runs.list(RunFilter(), limit=3, cursor=cursor)

    assert [one.run_id for one in [*first, *second]] == [f"run-{number}" for number in range(5, -1, -1)]
    assert end is None


async def test_runs_before_1970_are_listed_too(runs):
    await runs.add(
        [state(f"{year}", started_at=datetime(year, 1, 1, tzinfo=UTC)) for year in (1, 1969, 9999)]
    )

    assert await listed(runs, limit=1) == ["9999", "1969", "1"]


async def test_each_filter_restricts_and_all_of_them_together(runs):
    labels = {"team": "red", "tier": "1"}
    await runs.add(
        [
            started("all", agent_id="a", session_id="s", status="paused", labels=labels),
            started("agent", agent_id="a"),
            started("session", session_id="s"),
            started("status", status="paused"),
            started("label", labels={"team": "red"}),
            started("later", timedelta(hours=1)),
        ]
    )

    assert await listed(runs, agent_id="a") == ["all", "agent"]
    assert await listed(runs, session_id="s") == ["session", "all"]
    assert await listed(runs, status="paused") == ["status", "all"]
    assert await listed(runs, labels={"team": "red"}) == ["label", "all"]
    assert await listed(runs, labels=labels) == ["all"]
    assert await listed(runs, since=NOON + MICROSECOND) == ["later"]
    assert await listed(runs, until=NOON + MICROSECOND, limit=2) == [
        "status",
        "session",
        "label",
        "all",
        "agent",
    ]
    assert await listed(
        runs,
        agent_id="a",
        session_id="s",
        status="paused",
        labels=labels,
        since=NOON,
        until=NOON + MICROSECOND,
    ) == ["all"]
    assert await listed(runs, agent_id="a", status="completed") == []
    assert len(await listed(runs, labels={})) == 6


async def test_until_is_exclusive_and_since_is_not(runs):
    await runs.add([started("noon")])

    assert await listed(runs, since=NOON) == ["noon"]
    assert await listed(runs, until=NOON) == []


@pytest.mark.parametrize(
    "labels",
    [
        {"a.b": "c"},
        {"$where": "1"},
        {"": ""},
        {"\0": "\0"},
        {'a": "b': "c"},
        {"é": "\U0001f9ea"},
        {"k" * 5000: "v" * 5000},
    ],
    ids=lambda labels: ascii(next(iter(labels)))[:12],
)
async def test_labels_of_any_characters_find_their_run_and_no_other(runs, labels):
    ((key, value),) = labels.items()
    await runs.add(
        [
            started("it", labels=labels),
            started("swapped", labels={value: key} if key != value else {"x": "y"}),
        ]
    )
    await runs.save([state("it", started_at=NOON, labels={**labels, "more": "1"}, next_offset=2)])

    assert await listed(runs, labels=labels) == ["it"]
    assert await listed(runs, labels={key: value + "x"}) == []


@pytest.mark.parametrize(
    "content",
    ["", "x", "5", "null", "[]", '["x", "y"]', "[null, null]", "[1e400, 1]", "[1, 2, 3]", '[1, "\\ud800"]',
     f'[{10**30}, "x"]', "[" * 100_000, '{"a": 1, "b": 2}'],
    ids=lambda content: content[:14],
)  # fmt: skip
async def test_a_cursor_that_was_not_given_out_is_refused(runs, content):
    cursor = base64.urlsafe_b64encode(content.encode()).decode()

    with pytest.raises(InvalidEventError, match="cursor") as refusal:
        await runs.list(RunFilter(), limit=1, cursor=cursor)

    assert refusal.value.field == "cursor"


@pytest.mark.parametrize("cursor", ["!", "é", "\ud800", "aaaaa"])
async def test_a_cursor_that_is_no_base64_is_refused(runs, cursor):
    with pytest.raises(InvalidEventError, match="cursor"):
        await runs.list(RunFilter(), limit=1, cursor=cursor)


async def test_a_cursor_can_stand_in_an_address(runs):
    await runs.add([started("~?/é+&=\n"), started("a")])

    _, cursor = await runs.list(RunFilter(), limit=1)

    assert cursor.replace("-", "").replace("_", "").replace("=", "").isalnum()
    assert [one.run_id for one in (await runs.list(RunFilter(), limit=1, cursor=cursor))[0]] == ["a"]


WANTED = {
    "nothing": {},
    "agent": {"agent_id": "agent-7"},
    "session": {"session_id": "session-7"},
    "status": {"status": "paused"},
    "label": {"labels": {"team": "7"}},
    "times": {"since": NOON + timedelta(seconds=100), "until": NOON + timedelta(seconds=150)},
    "agent and times": {"agent_id": "agent-7", "since": NOON + timedelta(seconds=30)},
}


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
async def test_a_list_reads_about_as_many_runs_as_it_gives_wherever_it_begins(runs, store, edition, wanted):
    await runs.create_indexes()
    await runs.add(
        [
            started(
                f"run-{number:03}",
                timedelta(seconds=number // 2),
                agent_id=f"agent-{number % 20}",
                session_id=f"session-{number % 20}",
                status="paused" if number % 20 == 7 else "running",
                labels={"team": f"{number % 20}", "tier": "1"},
            )
            for number in range(400)
        ]
    )
    matching = len(await listed(runs, **wanted))
    await store.command("profile", 2)
    try:
        assert len(await turned(runs, limit=5, **wanted)) == matching
    finally:
        await store.command("profile", 0)

    found = store["system.profile"].find({"ns": f"{store.name}.runs.{edition}", "op": "query"})
    profiles = [one async for one in found]
    assert len(profiles) == -(-matching // 5)
    for profile in profiles:
        assert "IXSCAN" in profile["planSummary"], profile
        assert "COLLSCAN" not in profile["planSummary"]
        assert not profile.get("hasSortStage")
        assert profile["docsExamined"] <= 2 * 5 + 4, json.dumps(profile["planSummary"])


async def test_the_runs_to_tail_are_found_by_an_index(runs, store, edition):
    await runs.create_indexes()
    await runs.add(
        [state(f"run-{number}", partition=number % 12, active=number == 1) for number in range(60)]
    )
    collection = store[f"runs.{edition}"]

    plan = await collection.find({"partition": {"$in": [1, 2]}, "active": True}).explain()

    assert plan["executionStats"]["totalDocsExamined"] == 1
