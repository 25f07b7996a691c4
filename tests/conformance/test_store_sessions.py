"""Sessions and positions, with both drivers: written over what is older only, listed without gaps
or doubles.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runfold.store.sessions import SessionFilter, SessionStore
from runfold_projections.session import SessionRecord
from runfold_schemas.errors import InvalidEventError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def sessions(store, edition) -> SessionStore:
    """Without the indexes, which change nothing but the time that a list takes."""
    return SessionStore(store, edition)


def session(session_id: str = "s", **fields: Any) -> SessionRecord:
    defaults = {"app": "a", "user": "u", "run_id": "r", "log_id": "l", "created_at": NOON, "changed_at": NOON}
    return SessionRecord(session_id=session_id, **(defaults | fields))


async def save(sessions: SessionStore, *records: SessionRecord, position: int = 1) -> None:
    await sessions.save({one.session_id: one for one in records}, position=position)


async def listed(
    sessions: SessionStore, *, now: datetime = NOON, limit: int = 100, **wanted: Any
) -> list[str]:
    """The ids of all sessions that are wanted, page by page."""
    ids: list[str] = []
    cursor = None
    while True:
        page, cursor = await sessions.list(SessionFilter(**wanted), now=now, limit=limit, cursor=cursor)
        assert len(page) <= limit
        ids += [one.session_id for one in page]
        if cursor is None:
            return ids
        assert len(page) == limit


async def test_a_session_is_read_as_it_was_saved(sessions):
    one = session(
        "sé/1 .$\n",
        app="a.b",
        user="",
        created_at=NOON + MICROSECOND,
        labels={"a.b": "$x", "": "\0", "é": "\U0001f9ea"},
        display_name="\0",
        expires_at=NOON + timedelta(days=300_000),
    )
    await save(sessions, one)

    assert await sessions.get([one.session_id, "none"]) == {one.session_id: one}
    assert await sessions.all() == {one.session_id: one}


async def test_what_is_not_there_is_nothing(sessions):
    await sessions.save({}, position=1)

    assert await sessions.get([]) == await sessions.all() == {}
    assert await sessions.list(SessionFilter(), now=NOON, limit=5) == ([], None)


@pytest.mark.parametrize(("position", "saved"), [(4, False), (5, False), (6, True)])
async def test_a_session_is_saved_only_over_an_older_position(sessions, position, saved):
    before, after = session(app="before"), session(app="after")
    await save(sessions, before, position=5)

    await save(sessions, after, position=position)

    assert await sessions.get(["s"]) == {"s": after if saved else before}


async def test_a_deleted_session_is_gone_and_comes_back_by_nothing_older(sessions):
    await save(sessions, session(expires_at=NOON), position=1)

    await sessions.save({"s": None, "never": None}, position=5)
    await save(sessions, session(), session("never"), position=4)

    assert await sessions.get(["s", "never"]) == await sessions.all() == {}
    assert await listed(sessions) == []
    assert [one async for one in sessions.expired(NOON)] == []
    await save(sessions, session(app="next"), position=6)
    assert (await sessions.get(["s"]))["s"].app == "next"


async def test_concurrent_saves_end_with_the_furthest(sessions):
    await asyncio.gather(
        *(save(sessions, session(app=f"{position}"), position=position) for position in range(20, 0, -1))
    )

    assert (await sessions.get(["s"]))["s"].app == "20"


async def test_sessions_are_listed_newest_first_and_those_of_one_moment_by_id(sessions):
    await save(
        sessions,
        session("old", created_at=NOON - MICROSECOND),
        *[session(name) for name in "bca"],
        session("new", created_at=NOON + MICROSECOND),
    )

    assert await listed(sessions) == ["new", "c", "b", "a", "old"]


@pytest.mark.parametrize("limit", [1, 2, 5, 20, 21])
async def test_pages_of_a_list_have_no_gap_and_no_double_also_at_equal_times(sessions, limit):
    moments = [timedelta(0), MICROSECOND, timedelta(hours=-1)]
    await save(sessions, *[session(f"s-{n:02}", created_at=NOON + moments[n % 3]) for n in range(20)])

    ids = await listed(sessions, limit=limit)

    assert len(ids) == len(set(ids)) == 20
    assert ids == await listed(sessions)


async def test_each_filter_restricts_and_all_of_them_together(sessions):
    labels = {"team": "red", "tier": "1"}
    await save(
        sessions,
        session("all", labels=labels),
        session("app", app="b"),
        session("user", user="v"),
        session("nobody", user=""),
        session("label", labels={"team": "red"}),
    )

    assert await listed(sessions, app="b") == ["app"]
    assert await listed(sessions, user="v") == ["user"]
    assert await listed(sessions, user="") == ["nobody"]
    assert await listed(sessions, labels={"team": "red"}) == ["label", "all"]
    assert await listed(sessions, app="a", user="u", labels=labels) == ["all"]
    assert len(await listed(sessions, labels={})) == 5


async def test_a_session_that_has_expired_is_not_listed(sessions):
    await save(sessions, session("late", expires_at=NOON + MICROSECOND), session("now", expires_at=NOON))
    await save(sessions, session("never"))

    assert await listed(sessions, now=NOON) == ["never", "late"]
    assert await listed(sessions, now=NOON + MICROSECOND) == ["never"]
    assert [one.session_id async for one in sessions.expired(NOON)] == ["now"]
    assert len([one async for one in sessions.expired(NOON + timedelta(days=1))]) == 2


@pytest.mark.parametrize("cursor", ["!", "e30=", "W10=", "é"])
async def test_a_cursor_that_was_not_given_out_is_refused(sessions, cursor):
    with pytest.raises(InvalidEventError) as refusal:
        await sessions.list(SessionFilter(), now=NOON, limit=1, cursor=cursor)

    assert refusal.value.field == "cursor"


async def test_editions_do_not_share_sessions(sessions, store):
    await save(sessions, session())
    other = SessionStore(store, "other")

    assert await other.all() == {}


WANTED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "app": {"app": "a-7"},
    "app and user": {"app": "a-7", "user": "u-7"},
    "user": {"user": "u-7"},
    "label": {"labels": {"team": "7"}},
}


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
async def test_a_list_reads_about_as_many_sessions_as_it_gives(sessions, store, edition, wanted):
    await sessions.create_indexes()
    await save(
        sessions,
        *[
            session(
                f"s-{n:03}",
                created_at=NOON + timedelta(seconds=n // 2),
                app=f"a-{n % 20}",
                user=f"u-{n % 20}",
                labels={"team": f"{n % 20}"},
            )
            for n in range(400)
        ],
    )
    await store.command("profile", 2)
    try:
        matching = len(await listed(sessions, limit=5, **wanted))
    finally:
        await store.command("profile", 0)

    found = store["system.profile"].find({"ns": f"{store.name}.sessions.{edition}", "op": "query"})
    profiles = [one async for one in found]
    assert len(profiles) == -(-matching // 5)
    for profile in profiles:
        assert "COLLSCAN" not in profile["planSummary"]
        assert not profile.get("hasSortStage"), profile["planSummary"]
        assert profile["docsExamined"] <= 2 * 5 + 4, profile["planSummary"]
