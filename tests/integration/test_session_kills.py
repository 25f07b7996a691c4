"""Sessions and their state while projectors are killed, or stopped and continued: nothing is lost,
doubled or mixed up.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.explaining import explained
from tests.killing import FOLDED_SECONDS, PROGRESS_SECONDS, Progress, kill_all
from tests.processes import projector, until
from tests.servers import OwnSettings
from tests.session_stores import all_ways, at_work, only_topics_of, shared_ends, stored
from tests.session_verbs import WAYS, everything

from runfold import PlannerNote, Runfold, RunfoldError
from runfold.client.session import EventSelection, Session, SessionVerbs
from runfold.ids import new_event_id
from runfold.local import Service
from runfold.log.partition_counts import counted
from runfold.log.shared import partitions_of, read_counting
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.editions import Editions
from runfold_schemas.codec import decode
from runfold_schemas.errors import SessionNotFoundError
from runfold_schemas.sessions import StateChanged, app_scope, user_scope

APP = "shop"
USERS = ("ann", "bob", "cleo")
SESSIONS = 12
SCOPES = ("", "user:", "app:")
RAW = "raw"
"""The way of a producer that does not forward what it changes."""
WRITERS = ("log", "stored", "http", RAW) * 2
IDS = 12
LEAST_CREATIONS = 3
NOTES = frozenset({"planner_note"})


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(session_timeout_seconds=6, sweep_seconds=1, wait_timeout_seconds=25)


class Change(NamedTuple):
    """An event that was acknowledged."""

    session: Session
    event_id: str
    delta: dict[str, Any]

    @property
    def scopes(self) -> dict[str, str]:
        """By the beginnings of the keys: the keys in `{prefix}.sessions` by which their order is
        decided.
        """
        record = self.session.record
        return {"app:": app_scope(record.app), "user:": user_scope(record.app, record.user)}


async def test_kills_lose_and_double_no_change_of_state_and_a_rebuild_from_nothing_forwards_none(
    settings: Settings, tmp_path: Path, chance: random.Random
) -> None:
    workers = [projector(settings, tmp_path / f"{name}.log", worker_id=name) for name in ("a", "b")]
    async with (
        at_work(workers),
        explained(settings, *workers),
        all_ways(settings) as ways,
        Runfold.of(settings.log()) as producer,
    ):
        sessions = [
            await ways["log"].create(app=APP, user=USERS[number % 3], session_id=f"s-{number}")
            for number in range(SESSIONS)
        ]
        changes = await written_through_kills(ways, producer, sessions, workers, chance)
        async with stored(settings) as before:
            differences = await before.differences()
            quarantined = await before.stores.quarantine.all()
            seen = await before.seen()
        decided, forwarded = await shared_changes(settings)
        held = {way: await shared_state(verbs) for way, verbs in ways.items()}
        own = {way: await own_state(verbs, sessions) for way, verbs in ways.items() if way != "log"}
        expected_own = {one.session_id: await own_state_of(producer, one) for one in sessions}
        read, ends = await everything(ways["stored"]), await shared_ends(settings)

        await asyncio.gather(*(worker.stop() for worker in workers))
        async with connect(settings.mongo, settings.database) as database:
            await Editions(database).drop_all()
        await asyncio.gather(*(worker.start() for worker in workers))
        async with all_ways(settings) as anew, stored(settings) as after:
            read_anew = await everything(anew["stored"])
            differences_anew, seen_anew = await after.differences(), await after.seen()
            ends_anew = await shared_ends(settings)

    assert differences == differences_anew == []
    assert quarantined == []
    assert forwarded == {(scope, one.event_id) for one in changes for scope in one.scopes.values()}
    assert seen == seen_anew == len(forwarded) + SESSIONS
    assert held == dict.fromkeys(WAYS, decided)
    assert own == dict.fromkeys(own, expected_own)
    check_nothing_is_lost(changes, decided, expected_own)
    assert after.edition != before.edition
    assert read_anew == read
    assert ends_anew == ends


async def written_through_kills(
    ways: dict[str, SessionVerbs],
    producer: Runfold,
    sessions: Sequence[Session],
    workers: Sequence[Service],
    chance: random.Random,
) -> list[Change]:
    """What each writer was acknowledged, in its order."""
    runs = {one.session_id: await producer.get_run(one.record.run_id) for one in sessions}
    progress = Progress()

    async def publish(session: Session, event_id: str, delta: dict[str, Any]) -> None:
        await runs[session.session_id].publish(PlannerNote(note="n"), event_id=event_id, state_delta=delta)

    def appending(way: str) -> Callable[[Session, str, dict[str, Any]], Awaitable[Any]]:
        return publish if way == RAW else partial(append, ways[way])

    writing = [
        asyncio.create_task(write(number, appending(way), sessions, random.Random(chance.random()), progress))
        for number, way in enumerate(WRITERS)
    ]
    try:
        await kill_all(workers, chance, progress)
    finally:
        progress.enough.set()
        written = await asyncio.gather(*writing)
    return [change for changes in written for change in changes]


async def append(verbs: SessionVerbs, session: Session, event_id: str, delta: dict[str, Any]) -> None:
    await verbs.append(session.session_id, PlannerNote(note="n"), event_id=event_id, state_delta=delta)


async def write(
    number: int,
    appended: Callable[[Session, str, dict[str, Any]], Awaitable[Any]],
    sessions: Sequence[Session],
    chance: random.Random,
    progress: Progress,
) -> list[Change]:
    """Sets keys of its own, keys that it sets again and again, and keys that all writers set."""
    changes: list[Change] = []
    while not progress.enough.is_set():
        count = len(changes)
        delta = {
            scope + key: value
            for scope in SCOPES
            for key, value in (
                (f"w{number}-{count}", count),
                (f"latest-{number}", count),
                ("counter", [number, count]),
            )
        }
        change = Change(chance.choice(sessions), new_event_id(), delta)
        await appended(*change)
        changes.append(change)
        progress.steps += 1
        await asyncio.sleep(0.01)
    return changes


def check_nothing_is_lost(
    changes: Sequence[Change], shared: dict[str, dict[str, Any]], own: dict[str, dict[str, Any]]
) -> None:
    """Every key that was set once is there, and what one writer alone sets is what it set last."""
    latest: dict[tuple[str, str], Any] = {}
    for change in changes:
        for key, value in change.delta.items():
            prefix = next(scope for scope in reversed(SCOPES) if key.startswith(scope))
            holder = change.scopes[prefix] if prefix else change.session.session_id
            latest[holder, key] = value
    for (holder, key), value in latest.items():
        found = shared[holder] if holder in shared else own[holder]
        number = int(key.rpartition("latest-")[2]) if "latest-" in key else None
        # What nobody forwards comes in the order of its log, but that of several sessions in any
        # order.
        in_order = number is None or WRITERS[number] != RAW or holder in own
        if not key.endswith("counter") and in_order:
            assert found[key] == value, f"{key} of {holder}"


async def shared_changes(settings: Settings) -> tuple[dict[str, dict[str, Any]], set[tuple[str, str]]]:
    """What each scope holds by the order of the topic that decides it, and each change once, by key
    and event id.
    """
    values: dict[str, dict[str, Any]] = {}
    changes: set[tuple[str, str]] = set()
    log = await counted(settings.log())
    for at in partitions_of(log.topics, log.topics.sessions):
        async for one in read_counting(log, at, ()):
            if isinstance(one.event.data, StateChanged):
                changes.add((one.key, one.event.event_id))
                values.setdefault(one.key, {}).update(one.event.state_delta or {})
    return values, changes


async def shared_state(verbs: SessionVerbs) -> dict[str, dict[str, Any]]:
    users = {user_scope(APP, user): await verbs.user_state(APP, user) for user in USERS}
    return {app_scope(APP): await verbs.app_state(APP), **users}


async def own_state(verbs: SessionVerbs, sessions: Sequence[Session]) -> dict[str, dict[str, Any]]:
    views = [await verbs.view(one.session_id) for one in sessions]
    return {view.session_id: _own(view.state) for view in views}


async def own_state_of(producer: Runfold, session: Session) -> dict[str, Any]:
    """What the session's own keys hold by the order of its log."""
    run = await producer.get_run(session.record.run_id)
    state: dict[str, Any] = {}
    async for event in run.events():
        state.update(_own(event.state_delta or {}))
    return state


def _own(state: Any) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith(("app:", "user:"))}


@dataclass
class Standing:
    """One id, and what was acknowledged of its last creation; nothing while there is none."""

    session_id: str
    creations: int = 0
    session: Session | None = None
    notes: list[str] = field(default_factory=list)


async def test_ids_that_are_created_and_deleted_again_and_again_have_their_last_creation_only(
    settings: Settings, tmp_path: Path, chance: random.Random
) -> None:
    workers = [projector(settings, tmp_path / f"{name}.log", worker_id=name) for name in ("a", "b")]
    ids = [Standing(f"id-{number}") for number in range(IDS)]
    async with (
        at_work(workers),
        explained(settings, *workers),
        all_ways(settings) as ways,
        Runfold.of(settings.log()) as producer,
    ):
        progress = Progress()
        cycling = [
            asyncio.create_task(come_and_go(one, ways, producer, random.Random(chance.random()), progress))
            for one in ids
        ]
        try:
            await kill_all(workers, chance, progress)
            await until(
                lambda: came_often(ids), seconds=PROGRESS_SECONDS, what="several creations of each id"
            )
        finally:
            progress.enough.set()
            await asyncio.gather(*cycling)
        for one in ids:
            await check(one, ways)
        run_ids = {one.session.record.run_id for one in ids if one.session is not None}
        await until(
            lambda: only_topics_of(settings, run_ids),
            seconds=FOLDED_SECONDS,
            what="the end of the deleted runs' topics",
        )
        async with stored(settings) as projections:
            differences = await projections.differences()
            await until(
                lambda: projections.has_only(run_ids),
                seconds=FOLDED_SECONDS,
                what="the end of what the deleted runs had",
            )
    print(f"creations: {[one.creations for one in ids]}")

    assert differences == []


async def come_and_go(
    one: Standing,
    ways: dict[str, SessionVerbs],
    producer: Runfold,
    chance: random.Random,
    progress: Progress,
) -> None:
    """Creates the session, appends to it and deletes it, each time by another who knows of it,
    until it is enough.
    """

    def anyone() -> SessionVerbs:
        return ways[chance.choice(WAYS)]

    while not progress.enough.is_set():
        one.creations += 1
        mark = f"{one.creations}"
        one.session = await anyone().create(app=APP, session_id=one.session_id, state={"mark": mark})
        one.notes = []
        run = await producer.get_run(one.session.record.run_id)
        for number in range(chance.randint(0, 5)):
            note = PlannerNote(note=f"{mark}/{number}")
            delta = {"noted": note.note, "app:noted": mark}
            verbs = anyone()
            try:
                await verbs.append(one.session_id, note, state_delta=delta)
            except SessionNotFoundError:
                # Who holds the creation before learns by this that it is gone.
                await verbs.append(one.session_id, note, state_delta=delta)
            one.notes.append(note.note)
            progress.steps += 1
        if progress.enough.is_set() and chance.random() < 0.5:
            return
        straggler = PlannerNote(note=f"{mark}/straggler")
        # Whoever holds the log goes on as long as there is one.
        late = asyncio.create_task(run.publish(straggler, state_delta={"noted": "late", "late": mark}))
        await anyone().delete(one.session_id)
        one.session = None
        progress.steps += 1
        late.cancel()
        await asyncio.wait([late])
        if not late.cancelled():
            assert isinstance(late.exception(), RunfoldError | None)


async def check(one: Standing, ways: dict[str, SessionVerbs]) -> None:
    for verbs in ways.values():
        if one.session is None:
            with pytest.raises(SessionNotFoundError):
                await verbs.view(one.session_id)
            continue
        view = await verbs.view(one.session_id, EventSelection(types=NOTES))
        assert view.record.run_id == one.session.record.run_id
        assert [decode(event.value).data.note for event in view.events] == one.notes
        noted = {"noted": one.notes[-1]} if one.notes else {}
        assert _own(view.state) == {"mark": f"{one.creations}", **noted}


async def came_often(ids: Sequence[Standing]) -> bool:
    return all(one.creations >= LEAST_CREATIONS for one in ids)
