"""Agents of ADK at once on the same sessions: nothing is lost, and who comes second is told."""

import asyncio

import pytest
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from tests import adk_services
from tests.adk_services import USER, change, ids, said, stored
from tests.querying import Projected
from tests.session_verbs import check_rebuild

from runfold.settings import Settings

WRITERS = 4
CHANGES = 4

app, opening, service = adk_services.app, adk_services.opening, adk_services.service


async def test_of_those_who_create_the_same_session_at_once_one_succeeds(
    service: BaseSessionService, app: str
):
    results = await asyncio.gather(
        *(
            service.create_session(app_name=app, user_id=USER, session_id="s", state={"by": number})
            for number in range(10)
        ),
        return_exceptions=True,
    )

    created = [result for result in results if isinstance(result, Session)]
    refused = [result for result in results if isinstance(result, AlreadyExistsError)]
    assert (len(created), len(refused)) == (1, 9)
    assert await stored(service, created[0]) == created[0]


async def test_sessions_created_at_once_share_the_state_of_app_and_user(
    service: BaseSessionService, app: str
):
    numbers = range(10)

    await asyncio.gather(
        *(
            service.create_session(
                app_name=app, user_id=USER, state={f"app:k{number}": number, f"user:k{number}": number}
            )
            for number in numbers
        )
    )

    created = await service.create_session(app_name=app, user_id=USER)
    assert created.state == {f"{scope}:k{number}": number for scope in ("app", "user") for number in numbers}


@pytest.mark.parametrize(
    ("winner", "loser"), [(0.0, 0.0), (0.0, 5.0), (5.0, 5.0), (5.0, 6.0), (6.0, 5.0), (-5.0, 5.0)]
)
async def test_who_appends_to_a_session_that_has_moved_on_is_told(
    service: BaseSessionService, app: str, winner: float, loser: float
):
    session = await service.create_session(app_name=app, user_id=USER)
    base = session.last_update_time
    first, second = await stored(service, session), await stored(service, session)
    event = await service.append_event(first, said(timestamp=base + winner))

    with pytest.raises(StaleSessionError):
        await service.append_event(second, said(timestamp=base + loser))

    assert ids(await stored(service, session)) == [event.id]


@pytest.mark.parametrize("apart", [0.0, 1.0, -1.0])
async def test_one_of_two_writers_who_read_the_same_session_wins(
    service: BaseSessionService, app: str, apart: float
):
    session = await service.create_session(app_name=app, user_id=USER)
    winners: list[str] = []

    for turn in range(5):
        readers = [await stored(service, session) for _ in range(2)]
        base = readers[0].last_update_time + 10
        events = [
            change({f"k{turn}": number, f"app:k{turn}": number}, timestamp=base + apart * number)
            for number in range(2)
        ]
        results = await asyncio.gather(
            *(service.append_event(read, event) for read, event in zip(readers, events, strict=True)),
            return_exceptions=True,
        )
        won = [number for number, result in enumerate(results) if result is events[number]]
        assert [type(result) for result in results if isinstance(result, Exception)] == [StaleSessionError]
        winners.append(events[won[0]].id)
        state = (await stored(service, session)).state
        assert (state[f"k{turn}"], state[f"app:k{turn}"]) == (won[0], won[0])

    assert ids(await stored(service, session)) == winners


async def test_writers_who_read_again_and_retry_lose_nothing(service: BaseSessionService, app: str):
    session = await service.create_session(app_name=app, user_id=USER, state={"count": 0, "app:last": None})

    async def writes(writer: int) -> None:
        for number in range(CHANGES):
            while True:
                read = await stored(service, session, num_recent_events=0)
                delta = {"count": read.state["count"] + 1, f"w{writer}": number, "app:last": writer}
                try:
                    await service.append_event(read, change(delta, author=f"{writer}"))
                    break
                except StaleSessionError:
                    continue

    await asyncio.gather(*(writes(writer) for writer in range(WRITERS)))

    read = await stored(service, session)
    assert read.state["count"] == WRITERS * CHANGES
    assert {key: value for key, value in read.state.items() if key.startswith("w")} == {
        f"w{writer}": CHANGES - 1 for writer in range(WRITERS)
    }
    assert [event.actions.state_delta["count"] for event in read.events] == list(
        range(1, WRITERS * CHANGES + 1)
    )
    for writer in range(WRITERS):
        own = [
            event.actions.state_delta[f"w{writer}"] for event in read.events if event.author == f"{writer}"
        ]
        assert own == list(range(CHANGES))


async def test_branches_of_an_agent_share_one_session(service: BaseSessionService, app: str):
    session = await service.create_session(app_name=app, user_id=USER)
    events = [change({f"k{number}": number, "last": number}) for number in range(20)]

    await asyncio.gather(*(service.append_event(session, event) for event in events))

    assert sorted(ids(session)) == sorted(event.id for event in events)
    assert session.last_update_time == session.events[-1].timestamp
    assert await stored(service, session) == session


async def test_sessions_changing_what_they_share_lose_no_key(service: BaseSessionService, app: str):
    sessions = [
        await service.create_session(app_name=app, user_id=USER, session_id=f"{number}")
        for number in range(8)
    ]

    async def writes(session: Session) -> None:
        for number in range(5):
            key = f"{session.id}.{number}"
            await service.append_event(session, change({f"app:{key}": key, f"user:{key}": key, "own": key}))

    await asyncio.gather(*(writes(session) for session in sessions))

    keys = [f"{session.id}.{number}" for session in sessions for number in range(5)]
    shared = {f"{scope}:{key}": key for scope in ("app", "user") for key in keys}
    for session in sessions:
        assert (await stored(service, session)).state == {**shared, "own": f"{session.id}.4"}
    assert await service.get_user_state(app_name=app, user_id=USER) == {key: key for key in keys}


async def test_what_another_session_changes_makes_no_session_stale(service: BaseSessionService, app: str):
    first = await service.create_session(app_name=app, user_id=USER)
    second = await service.create_session(app_name=app, user_id=USER)

    for number in range(3):
        await service.append_event(first, change({"app:a": number, "user:u": number}))
        await service.append_event(second, change({"app:b": number, "user:v": number}))

    expected = {"app:a": 2, "app:b": 2, "user:u": 2, "user:v": 2}
    assert (await stored(service, first)).state == (await stored(service, second)).state == expected


async def test_who_holds_a_deleted_session_does_not_write_into_its_successor(
    service: BaseSessionService, app: str
):
    deleted = await service.create_session(app_name=app, user_id=USER, session_id="s")
    await service.append_event(deleted, said())
    await service.delete_session(app_name=app, user_id=USER, session_id="s")
    successor = await service.create_session(app_name=app, user_id=USER, session_id="s")

    with pytest.raises((StaleSessionError, SessionNotFoundError)):
        await service.append_event(deleted, said())

    assert (await stored(service, successor)).events == []


async def test_a_session_deleted_under_its_writers_stays_deleted(service: BaseSessionService, app: str):
    session = await service.create_session(app_name=app, user_id=USER, session_id="s")

    appended, deleted = await asyncio.gather(
        service.append_event(await stored(service, session), said()),
        service.delete_session(app_name=app, user_id=USER, session_id="s"),
        return_exceptions=True,
    )

    assert deleted is None
    assert isinstance(appended, Event | SessionNotFoundError)
    assert await service.get_session(app_name=app, user_id=USER, session_id="s") is None
    created = await service.create_session(app_name=app, user_id=USER, session_id="s")
    assert (await stored(service, created)).events == []


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings: Settings, stored: Projected):
    await check_rebuild(settings)
