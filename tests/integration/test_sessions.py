"""Sessions in each of their ways: from the log alone, from MongoDB, and over HTTP. What holds for
one holds for all.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from tests.processes import until
from tests.session_verbs import NOON, comparable, everything, noted, opened, said, settled

from runfold import (
    AssistantMessage,
    InvalidEventError,
    InvalidIdError,
    PlannerNote,
    RejectedError,
    ToolResult,
    UserMessage,
)
from runfold.client.session import EventSelection, Session, SessionVerbs
from runfold.ids import new_event_id
from runfold.log.ends import LogEnds
from runfold.settings import Settings
from runfold_schemas.codec import decode
from runfold_schemas.errors import SessionConflictError, SessionEndedError, SessionNotFoundError

VALUES: dict[str, Any] = {
    "a.b": 1,
    "$set": {"$": [None]},
    "nul\0": "nul\0",
    "😀": "😀",
    "": "empty",
    "__proto__": {"x": 1},
    "null": None,
    "big": 2**200,
    "negative": -(2**63) - 1,
    "float": 0.1,
    "one": 1.0,
    "true": True,
    "deep": {"a": [{"b": [1, "2", None, 3.5]}]},
}


async def test_a_created_session_is_what_it_was_created_as(sessions, others, app):
    created = await sessions.create(
        app=app,
        user="ann/1 é",
        session_id=f"{app}/../s %2F?#é",
        state={"k": 1},
        labels={"team": "red"},
        display_name="A talk",
        ttl=timedelta(hours=1),
    )

    record = created.record
    assert (record.app, record.user, record.session_id) == (app, "ann/1 é", f"{app}/../s %2F?#é")
    assert (record.labels, record.display_name, created.ended) == ({"team": "red"}, "A talk", False)
    assert record.expires_at - record.created_at == timedelta(hours=1)
    assert (created.state, created.next_offset, list(created.events)) == ({"k": 1}, 1, [])
    assert comparable(await others.view(record.session_id)) == comparable(created)
    assert [comparable(one) for one in (await others.list(app=app))[0]] == [comparable(created)]


@pytest.mark.parametrize("session_id", [".", "..", "a/events", "a?b=c", "a%2Fb", " ", "é" * 500])
async def test_a_session_may_have_any_id(sessions, app, session_id):
    with_app = session_id if session_id in (".", "..", " ") else f"{session_id[:-8]}{app[-8:]}"
    await sessions.create(app=app, session_id=with_app, state={"k": 1})

    assert (await sessions.view(with_app)).state == {"k": 1}

    await sessions.delete(with_app)


async def test_an_id_is_given_where_none_is_and_one_that_is_taken_is_refused(sessions, others, app):
    first, second = await sessions.create(app=app), await sessions.create(app=app)
    assert first.session_id != second.session_id

    with pytest.raises(SessionConflictError) as refusal:
        await others.create(app="other", session_id=first.session_id)

    assert refusal.value.session_id == first.session_id
    assert (await sessions.view(first.session_id)).record.app == app


async def test_of_ten_that_create_one_id_at_once_one_does(sessions, others, app):
    creating = [
        verbs.create(app=app, session_id=app, state={"n": number})
        for number, verbs in enumerate([sessions, others] * 5)
    ]

    answers = await asyncio.gather(*creating, return_exceptions=True)

    (winner,) = [one for one in answers if isinstance(one, Session)]
    assert sum(isinstance(one, SessionConflictError) for one in answers) == 9
    assert comparable(await others.view(app)) == comparable(winner)


async def test_state_is_of_the_session_the_user_or_the_app_by_its_key(sessions, others, app):
    one = await sessions.create(app=app, user="ann", state={"own": 1, "app:a": 1, "user:u": 1, "temp:t": 1})
    two = await others.create(app=app, user="ann", state={"own": 2})
    other = await others.create(app=app, user="bob")
    stranger = await others.create(app=f"{app}x", user="ann")

    await others.append(two.session_id, PlannerNote(note="n"), state_delta={"app:b": 2, "user:u": 2})
    await sessions.append_batch(one.session_id, [PlannerNote(note="n")])

    shared = {"app:a": 1, "app:b": 2}
    assert (await sessions.view(one.session_id)).state == {"own": 1, "user:u": 2, **shared}
    assert (await sessions.view(two.session_id)).state == {"own": 2, "user:u": 2, **shared}
    assert (await sessions.view(other.session_id)).state == shared
    assert (await sessions.view(stranger.session_id)).state == {}
    assert await sessions.app_state(app) == shared
    assert await sessions.user_state(app, "ann") == {"user:u": 2}
    assert await sessions.user_state(app, "bob") == {} == await sessions.app_state("nobody's")


async def test_sessions_without_a_user_share_a_state_as_well(sessions, app):
    await sessions.create(app=app, state={"user:k": 1})

    assert (await sessions.create(app=app)).state == {"user:k": 1} == await sessions.user_state(app, "")


async def test_state_is_exact_for_any_key_and_value_in_every_scope(sessions, others, app):
    scoped = {beginning + key: value for beginning in ("", "user:", "app:") for key, value in VALUES.items()}
    one = await sessions.create(app=app, user="a/b%", state=scoped)
    two = await sessions.create(app=app, user="other")

    await sessions.append(two.session_id, PlannerNote(note="n"), state_delta=scoped)

    for session_id in (one.session_id, two.session_id):
        state = (await others.view(session_id)).state
        assert repr(sorted(state.items())) == repr(sorted(scoped.items()))


async def test_null_is_a_value_and_a_later_value_replaces_one_before(sessions, app):
    session = await sessions.create(app=app, state={"k": {"a": 1}, "app:k": 1})

    await sessions.append(session.session_id, PlannerNote(note="n"), state_delta={"k": None, "app:k": None})

    assert (await sessions.view(session.session_id)).state == {"k": None, "app:k": None}


async def test_events_are_the_bytes_of_the_log(sessions, app, runfold):
    session = await sessions.create(app=app)
    result = ToolResult(tool_call_id="1", result={**VALUES, "x": [1e22, -0.0, 1e-7]})
    position = await sessions.append(session.session_id, result, turn_id="t", labels={"a": "b"})

    (logged,) = (await sessions.view(session.session_id, EventSelection())).events

    run = await runfold.get_run(session.record.run_id)
    (admitted,) = [one async for one in run.history(first_offset=1)]
    assert (logged.offset, logged.value) == (position.offset, admitted.record.value)
    assert (logged.log_time, logged.outcome) == (admitted.record.log_time, "accepted")
    assert repr(decode(logged.value).data.result) == repr(result.result)


async def test_events_are_restricted_by_place_time_kind_and_number(sessions, app):
    session = await noted(sessions, app, 6)
    await sessions.append(session.session_id, UserMessage(message="hi"), timestamp=NOON)
    found = sessions, session.session_id

    notes = frozenset({"planner_note"})
    assert await said(*found, types=notes) == ["0", "1", "2", "3", "4", "5"]
    assert await said(*found, types=notes, newest=2) == ["4", "5"]
    assert await said(*found, newest=0) == []
    assert len((await sessions.view(session.session_id, EventSelection(newest=99))).events) == 7
    assert await said(*found, first_offset=3, end_offset=5) == ["2", "3"]
    assert await said(*found, since=NOON + timedelta(seconds=4)) == ["4", "5"]
    assert await said(*found, since=NOON + timedelta(seconds=2), newest=1) == ["5"]
    assert await said(*found, end_offset=5, newest=2) == ["2", "3"]
    assert await said(*found, first_offset=6, types=notes, newest=5) == ["5"]
    assert await said(*found, limit=2) == ["0", "1"]
    assert await said(*found, types=notes, newest=3, limit=1) == ["3"]
    assert await said(*found, limit=0) == []
    assert await said(*found, first_offset=99) == []


async def test_a_session_is_viewed_as_it_was_at_an_earlier_moment(sessions, app):
    session = await sessions.create(app=app, user="ann", state={"step": 0, "user:name": "Ann"})
    notes = [("t-1", {"step": 1}), (None, {"app:x": 1}), ("t-2", {"step": 2}), (None, {"more": True})]
    for number, (turn_id, delta) in enumerate(notes):
        note = PlannerNote(note=f"{number}")
        await sessions.append(session.session_id, note, turn_id=turn_id, state_delta=delta)

    async def viewed(**moment: Any) -> tuple[Any, ...]:
        seen = await sessions.view(session.session_id, EventSelection(), **moment)
        events = [decode(each.value).data.note for each in seen.events]
        return events, dict(seen.state), seen.next_offset, seen.last_offset

    first = (["0"], {"step": 1}, 2, 1)
    turn = (["0", "1"], {"step": 1}, 3, 2)
    shared = {"user:name": "Ann", "app:x": 1}
    assert await viewed(as_of_offset=1) == first
    assert await viewed(as_of_turn="t-1") == turn == await viewed(before_turn="t-2")
    assert await viewed(before_turn="t-1") == ([], {"step": 0}, 1, 0)
    assert await viewed(as_of_time=datetime.now(UTC) + timedelta(hours=1)) == (
        ["0", "1", "2", "3"],
        {"step": 2, "more": True},
        5,
        4,
    )
    assert (await sessions.view(session.session_id)).state == {"step": 2, "more": True, **shared}
    newest = EventSelection(newest=1, end_offset=4)
    seen = await sessions.view(session.session_id, newest, as_of_offset=2)
    assert [each.offset for each in seen.events] == [2]
    for moment, field in (
        ({"as_of_offset": 5}, "as_of_offset"),
        ({"before_turn": "t-9"}, "before_turn"),
        ({"as_of_offset": 1, "before_turn": "t-1"}, "before_turn"),
    ):
        with pytest.raises(InvalidEventError) as refused:
            await sessions.view(session.session_id, **moment)
        assert refused.value.field == field


async def test_what_happened_to_the_run_is_shown_only_where_it_is_named(sessions, app):
    session = await sessions.create(app=app)
    await sessions.end(session.session_id)

    assert list((await sessions.view(session.session_id, EventSelection())).events) == []
    named = await sessions.view(session.session_id, EventSelection(types=frozenset({"run_opened"})))
    assert [one.offset for one in named.events] == [0]


async def test_a_batch_is_appended_whole_or_not_at_all(sessions, app):
    session = await sessions.create(app=app)

    positions = await sessions.append_batch(
        session.session_id, [PlannerNote(note="a"), PlannerNote(note="b")]
    )
    with pytest.raises(InvalidEventError) as refusal:
        await sessions.append_batch(
            session.session_id, [PlannerNote(note="c"), ToolResult(tool_call_id="1", result=float("nan"))]
        )

    assert refusal.value.index == 1
    assert [one.offset for one in positions] == [1, 2]
    assert await said(sessions, session.session_id) == ["a", "b"]
    assert list(await sessions.append_batch(session.session_id, [])) == []


async def test_of_two_that_expect_the_same_end_one_is_rejected_with_its_offset(sessions, others, app):
    session = await sessions.create(app=app)
    await sessions.append(session.session_id, PlannerNote(note="first"), expected_offset=0)

    with pytest.raises(RejectedError) as refusal:
        await others.append(
            session.session_id, PlannerNote(note="lost"), expected_offset=0, state_delta={"k": 1}
        )

    assert (refusal.value.run_id, refusal.value.offset) == (session.record.run_id, 2)
    assert "expected_offset" in refusal.value.reason
    found = await sessions.view(session.session_id)
    assert (found.state, found.next_offset) == ({}, 3)
    assert await said(sessions, session.session_id) == ["first"]


async def test_an_event_that_comes_again_counts_once(sessions, others, app):
    session = await sessions.create(app=app, user="ann")
    repeated = {"event_id": new_event_id(), "timestamp": NOON}
    first = {"k": 1, "app:k": 1, "user:k": 1}
    second = {"k": 2, "app:k": 2, "user:k": 2}

    await sessions.append(session.session_id, PlannerNote(note="1"), state_delta=first, **repeated)
    await others.append(session.session_id, PlannerNote(note="2"), state_delta=second)
    await others.append(session.session_id, PlannerNote(note="1"), state_delta=first, **repeated)

    assert (await sessions.view(session.session_id)).state == second
    assert await said(sessions, session.session_id) == ["1", "2"]


async def test_a_change_of_shared_state_that_nobody_forwarded_is_forwarded(sessions, app, runfold):
    session = await sessions.create(app=app, user="ann")
    run = await runfold.get_run(session.record.run_id)

    await run.publish(PlannerNote(note="n"), state_delta={"user:x": 1, "app:x": 2, "x": 3})

    async def is_seen() -> bool:
        return (await sessions.view(session.session_id)).state == {"user:x": 1, "app:x": 2, "x": 3}

    await until(is_seen, what="the change of shared state")
    assert await sessions.user_state(app, "ann") == {"user:x": 1}


async def test_an_update_merges_labels_and_leaves_what_is_not_given(sessions, others, app):
    session = await sessions.create(app=app, labels={"a": "1", "b": "1"}, display_name="before")
    other = await sessions.create(app=app, labels={"a": "1"})

    await others.update(session.session_id, labels={"b": "2"})
    updated = await others.update(session.session_id, display_name="after")

    assert (updated.record.labels, updated.record.display_name) == ({"a": "1", "b": "2"}, "after")
    assert updated.updated_at > updated.record.created_at
    assert comparable(await sessions.view(session.session_id)) == comparable(updated)
    listed = [one.session_id for one in (await sessions.list(app=app, labels={"a": "1"}))[0]]
    assert listed == [other.session_id, session.session_id]
    assert [one.session_id for one in (await sessions.list(app=app, labels={"b": "2"}))[0]] == [
        session.session_id
    ]


async def test_lists_have_each_session_once_the_newest_first_page_by_page(sessions, others, app):
    created = [(await sessions.create(app=app, user=f"u{n % 2}")).session_id for n in range(5)]

    first, cursor = await others.list(app=app, limit=2)
    second, cursor = await others.list(app=app, limit=2, cursor=cursor)
    third, end = await others.list(app=app, limit=2, cursor=cursor)

    assert [one.session_id for one in [*first, *second, *third]] == created[::-1]
    assert end is None
    assert [one.session_id for one in (await sessions.list(app=app, user="u1"))[0]] == [
        created[3],
        created[1],
    ]
    with pytest.raises(InvalidEventError) as refusal:
        await sessions.list(cursor="!")
    assert refusal.value.field == "cursor"


async def test_an_ended_session_is_read_and_not_written(sessions, others, app):
    session = await sessions.create(app=app, state={"k": 1})
    await others.append(session.session_id, PlannerNote(note="n"))

    ended = await sessions.end(session.session_id)

    assert ended.ended
    assert (await others.view(session.session_id)).ended
    assert await said(sessions, session.session_id) == ["n"]
    for refused in (
        sessions.append(session.session_id, PlannerNote(note="n")),
        sessions.append_batch(session.session_id, [PlannerNote(note="n")]),
        sessions.update(session.session_id, display_name="x"),
        sessions.end(session.session_id),
        others.end(session.session_id),
    ):
        with pytest.raises(SessionEndedError) as refusal:
            await refused
        assert refusal.value.session_id == session.session_id


async def test_an_expired_session_is_gone_and_its_id_can_be_taken_again(sessions, others, app):
    session = await sessions.create(app=app, session_id=app, state={"k": 1, "app:k": 1})
    await sessions.append(app, PlannerNote(note="n"))

    with suppress(SessionNotFoundError):  # a busy machine may answer too late
        await others.update(app, ttl=timedelta(milliseconds=100))
    await until(lambda: is_gone(sessions, app), what="the end of the session's time")

    assert (await others.list(app=app))[0] == []
    await check_missing(others, app)
    again = await others.create(app=app, session_id=app)
    assert (again.state, again.next_offset) == ({"app:k": 1}, 1)
    assert again.record.run_id != session.record.run_id


async def test_a_deleted_session_is_gone_at_once_and_its_topic_soon(sessions, others, app, settings):
    session = await sessions.create(app=app, session_id=app, state={"k": 1, "user:k": 1, "app:k": 1})
    await others.append(app, PlannerNote(note="n"))

    await sessions.delete(app)

    await check_missing(sessions, app)
    await check_missing(others, app)
    assert (await others.list(app=app))[0] == []
    await until(lambda: is_removed(settings, session.record.run_id), what="the end of the session's topic")
    again = await others.create(app=app, session_id=app)
    assert (again.state, list((await sessions.view(app, EventSelection())).events)) == (
        {"user:k": 1, "app:k": 1},
        [],
    )


async def test_who_goes_on_with_a_deleted_session_is_refused_and_never_in_the_next_one(sessions, others, app):
    await sessions.create(app=app, session_id=app)
    for verbs in (sessions, others):
        await verbs.append(app, PlannerNote(note="before"))

    async def go_on() -> list[int]:
        offsets = []
        while True:
            offsets.append((await others.append(app, PlannerNote(note="old"), expected_offset=2)).offset)

    going_on = asyncio.create_task(go_on())
    await sessions.delete(app)
    with pytest.raises((SessionNotFoundError, RejectedError)):
        await going_on
    with pytest.raises((SessionNotFoundError, RejectedError)):
        await others.append(app, PlannerNote(note="old"), expected_offset=3)
    await sessions.create(app=app, session_id=app)
    await others.append(app, PlannerNote(note="new"))

    assert await said(sessions, app) == await said(others, app) == ["new"]
    assert (await others.update(app, display_name="of the new one")).record.display_name == "of the new one"


async def test_what_is_appended_once_a_session_is_deleted_is_never_acknowledged(sessions, others, app):
    await sessions.create(app=app, session_id=app)
    await others.append(app, PlannerNote(note="before"))

    await sessions.delete(app)

    with pytest.raises(SessionNotFoundError):
        await others.append(app, PlannerNote(note="late"))
    with pytest.raises(SessionNotFoundError):
        await others.append_batch(app, [PlannerNote(note="late")] * 2)
    await sessions.create(app=app, session_id=app)
    await others.append(app, PlannerNote(note="new"))
    assert await said(sessions, app) == ["new"]


async def test_what_is_wrong_is_refused_with_its_name(sessions, app):
    session = await sessions.create(app=app)
    for value in (float("nan"), (1, 2), {1: 2}, b"x", {1, 2}):
        with pytest.raises(InvalidEventError) as refusal:
            await sessions.append(session.session_id, PlannerNote(note="n"), state_delta={"k": value})
        assert refusal.value.field == "state_delta.k"
        with pytest.raises(InvalidEventError):
            await sessions.create(app=app, state={"user:k": value})
    with pytest.raises(InvalidEventError) as refusal:
        await sessions.append(session.session_id, AssistantMessage(message="a"), turn_id="t" * 201)
    assert refusal.value.field == "turn_id"
    with pytest.raises(InvalidEventError):
        await sessions.create(app=app, labels={"k" * 65: "v"})
    for wrong in ("", "a\0b", "x" * 1001):
        with pytest.raises(InvalidIdError) as refused:
            await sessions.view(wrong)
        assert refused.value.name == "session_id"
        with pytest.raises(InvalidIdError):
            await sessions.create(app=wrong)


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings, app, projector):
    async with opened("stored", settings) as stored, opened("http", settings) as over_http:
        await noted(stored, app, 3)
        assert await projector.differences() == []  # all is folded
        before = await everything(stored)
        assert before

        await projector.rebuild()

        assert await projector.differences() == []
        for sessions in (stored, over_http):
            assert await settled(partial(everything, sessions), before) == before


async def is_gone(sessions: SessionVerbs, session_id: str) -> bool:
    try:
        await sessions.view(session_id)
    except SessionNotFoundError:
        return True
    return False


async def check_missing(sessions: SessionVerbs, session_id: str) -> None:
    for refused in (
        sessions.view(session_id),
        sessions.view(session_id, EventSelection()),
        sessions.append(session_id, PlannerNote(note="n")),
        sessions.append_batch(session_id, [PlannerNote(note="n")]),
        sessions.update(session_id, display_name="x"),
        sessions.end(session_id),
        sessions.delete(session_id),
    ):
        with pytest.raises(SessionNotFoundError) as refusal:
            await refused
        assert refusal.value.session_id == session_id


async def is_removed(settings: Settings, run_id: str) -> bool:
    async with LogEnds.connect(settings.log()) as ends:
        return all(topic.run_id != run_id for topic in (await ends.run_topics()).values())
