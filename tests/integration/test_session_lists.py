"""Lists of sessions, page by page, while sessions come and go. What holds for one way holds for
all.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.session_verbs import comparable

from runfold import InvalidEventError, PlannerNote


async def test_sessions_that_come_and_go_between_two_pages_shift_nothing(sessions, app):
    created = [(await sessions.create(app=app)).session_id for _ in range(5)]
    first, cursor = await sessions.list(app=app, limit=2)

    for _ in range(3):
        await sessions.create(app=app)
    await sessions.delete(first[-1].session_id)
    second, cursor = await sessions.list(app=app, limit=2, cursor=cursor)
    third, end = await sessions.list(app=app, limit=2, cursor=cursor)

    shown = [session.session_id for session in (*first, *second, *third)]
    assert shown == list(reversed(created))
    assert end is None


async def test_a_page_that_is_exactly_full_is_the_last(sessions, app):
    for _ in range(2):
        await sessions.create(app=app)

    page, cursor = await sessions.list(app=app, limit=2)

    assert (len(page), cursor) == (2, None)


async def test_a_list_leaves_out_states_if_asked(sessions, app):
    for number in range(3):
        session = await sessions.create(app=app, state={"own": number, "app:shared": True})
        await sessions.append(session.session_id, PlannerNote(note="n"), state_delta={"own": "later"})

    whole, _ = await sessions.list(app=app)
    bare, _ = await sessions.list(app=app, with_state=False)

    assert [each.state for each in whole] == [{"own": "later", "app:shared": True}] * 3
    assert [each.state for each in bare] == [{}] * 3
    assert [comparable(replace(each, state={})) for each in whole] == [comparable(each) for each in bare]


@pytest.mark.parametrize("cursor", ["2", "", "nonsense", "2026-01-01T00:00:00 s-1", "é"])
async def test_a_foreign_cursor_is_refused(sessions, app, cursor):
    with pytest.raises(InvalidEventError) as refused:
        await sessions.list(app=app, cursor=cursor)

    assert refused.value.field == "cursor"


async def test_a_session_expires_at_the_time_that_it_was_created_or_changed_with(sessions, app):
    soon, later = (datetime.now(UTC) + timedelta(hours=hours) for hours in (1, 2))

    created = await sessions.create(app=app, expires_at=soon)
    updated = await sessions.update(created.session_id, expires_at=later)

    assert (created.record.expires_at, updated.record.expires_at) == (soon, later)
    assert (await sessions.view(created.session_id)).record.expires_at == later


async def test_a_time_to_live_comes_before_a_time_of_expiry(sessions, app):
    later = datetime.now(UTC) + timedelta(hours=9)

    created = await sessions.create(app=app, ttl=timedelta(hours=1), expires_at=later)

    assert created.record.expires_at - created.record.created_at == timedelta(hours=1)


async def test_a_time_without_a_zone_is_refused(sessions, app):
    with pytest.raises(InvalidEventError) as refused:
        await sessions.create(app=app, expires_at=datetime(2030, 1, 1))  # noqa: DTZ001

    assert refused.value.field == "expires_at"


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_of_no_sessions_is_refused(sessions, app, limit):
    await sessions.create(app=app)

    with pytest.raises(InvalidEventError) as refused:
        await sessions.list(app=app, limit=limit)

    assert refused.value.field == "limit"
