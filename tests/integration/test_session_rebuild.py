"""Sessions read through a rebuild under load: no error, and nothing older than what was seen or
acknowledged before.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.processes import projector, until
from tests.servers import OwnSettings
from tests.session_stores import shared_ends, stored
from tests.session_verbs import everything, opened

from runfold import PlannerNote, RunfoldError
from runfold.client.session import EventSelection, SessionVerbs
from runfold.projector import rebuild as rebuilding
from runfold.settings import Settings
from runfold_schemas.codec import decode
from runfold_schemas.errors import SessionNotFoundError

AnswerT = TypeVar("AnswerT")

APP = "shop"
USER = "ann"
SESSIONS = 6
BACKLOG = 200
"""Notes of each session before the rebuild."""

PAUSE_SECONDS = 0.05
"""Between two looks of one reader, at the least: the projector is to get on too."""

NOTES_MAX, SHORT_MAX = 100, 150
"""The load beside a rebuild, notes of each session and sessions that come and go. It ends, so that
the rebuild catches up on any machine.
"""

READS_MIN = 31

NOTES = frozenset({"planner_note"})


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(retire_seconds=20, wait_timeout_seconds=25)


class Acknowledged:
    """What has been acknowledged so far, which is what everybody may rely on."""

    def __init__(self) -> None:
        self.notes: Counter[str] = Counter()
        """The last note of each session that stays, counted from 1."""
        self.standing: set[str] = set()
        """Sessions that nobody has begun to delete."""
        self.deleted: set[str] = set()
        self.enough = asyncio.Event()


class Watcher:
    """Reads sessions in every way, and keeps what it must never see: an error, or something
    older.
    """

    def __init__(self, sessions: SessionVerbs, acknowledged: Acknowledged) -> None:
        self._sessions = sessions
        self._acknowledged = acknowledged
        self._seen: Counter[str] = Counter()
        self.enough = asyncio.Event()
        self.faults: list[str] = []
        self.reads = 0

    async def watch(self) -> None:
        """Until it is enough."""
        while not self.enough.is_set():
            for session_id in list(self._acknowledged.notes):
                await self._look(session_id)
                await asyncio.sleep(PAUSE_SECONDS)
            await self._look_at_the_list()
            await self._look_at_those_that_come_and_go()
            await self._look_at_shared_state()

    async def _look(self, session_id: str) -> None:
        notes = self._acknowledged.notes[session_id]
        session = await self._read(self._sessions.view(session_id, EventSelection(types=NOTES)))
        if session is None:
            return
        said = [int(decode(one.value).data.note) for one in session.events]
        if said != list(range(1, session.state["n"] + 1)):
            self.faults.append(f"{session_id} with n={session.state['n']}: {said}")
        self._compare(f"n of {session_id}", session.state["n"], notes)
        self._compare_shared(session.state, {session_id: notes})

    async def _look_at_the_list(self) -> None:
        notes, standing = dict(self._acknowledged.notes), set(self._acknowledged.standing)
        deleted = set(self._acknowledged.deleted)
        answer = await self._read(self._sessions.list(app=APP, limit=1000))
        if answer is None:
            return
        listed = {session.session_id: session.state for session in answer[0]}
        if missing := (standing & self._acknowledged.standing) - listed.keys():
            self.faults.append(f"not in the list: {missing}")
        if over := deleted & listed.keys():
            self.faults.append(f"in the list after their end: {over}")
        for session_id in notes.keys() & listed.keys():
            self._compare(f"n of {session_id}", listed[session_id]["n"], notes[session_id])
            self._compare_shared(listed[session_id], {session_id: notes[session_id]})

    async def _look_at_those_that_come_and_go(self) -> None:
        for session_id in sorted(self._acknowledged.standing - self._acknowledged.notes.keys()):
            try:
                await self._sessions.view(session_id)
            except SessionNotFoundError:
                if session_id in self._acknowledged.standing:
                    self.faults.append(f"not found: {session_id}")
            except RunfoldError as error:
                if session_id in self._acknowledged.standing:
                    self.faults.append(f"{session_id}: {error!r}")
        for session_id in sorted(self._acknowledged.deleted)[-3:]:
            with suppress(SessionNotFoundError):
                await self._sessions.view(session_id)
                self.faults.append(f"found after its end: {session_id}")

    async def _look_at_shared_state(self) -> None:
        notes = dict(self._acknowledged.notes)
        for reading in (lambda: self._sessions.app_state(APP), lambda: self._sessions.user_state(APP, USER)):
            if (state := await self._read(reading())) is not None:
                self._compare_shared(state, notes)

    async def _read(self, reading: Awaitable[AnswerT]) -> AnswerT | None:
        self.reads += 1
        try:
            return await reading
        except RunfoldError as error:
            self.faults.append(repr(error))
            return None

    def _compare_shared(self, state: Mapping[str, Any], notes: Mapping[str, int]) -> None:
        for session_id, acknowledged in notes.items():
            for key in (f"app:{session_id}", f"user:{session_id}"):
                if any(name.startswith(key[:4]) for name in state):
                    self._compare(key, state.get(key, 0), acknowledged)

    def _compare(self, what: str, value: int, acknowledged: int) -> None:
        if value < (least := max(acknowledged, self._seen[what])):
            self.faults.append(f"{what}: {value} after {least}")
        self._seen[what] = max(value, self._seen[what])


async def test_who_reads_sessions_through_a_rebuild_under_load_sees_no_error_and_nothing_older(
    settings: Settings, tmp_path: Path
) -> None:
    service = projector(settings, tmp_path / "projector.log")
    acknowledged = Acknowledged()
    async with opened("log", settings) as writing, opened("stored", settings) as reading:
        await service.start()
        try:
            for number in range(SESSIONS):
                await writing.create(app=APP, user=USER, session_id=f"s-{number}", state={"n": 0})
                acknowledged.standing.add(f"s-{number}")
            ids = sorted(acknowledged.standing)
            await asyncio.gather(*(fill(writing, one, acknowledged) for one in ids))
            loading = [
                *(asyncio.create_task(note(writing, one, acknowledged)) for one in ids),
                asyncio.create_task(come_and_go(reading, acknowledged)),
            ]
            watchers = [Watcher(reading, acknowledged) for _ in range(2)]
            watching = [asyncio.create_task(one.watch()) for one in watchers]
            async with stored(settings) as before:
                await rebuilding.rebuild(settings, report=ignore, switched=ignore)
                await until(lambda: have_read(watchers), what="the reads of a busy machine")
                acknowledged.enough.set()
                await asyncio.gather(*loading)
            for one in watchers:
                one.enough.set()
            await asyncio.gather(*watching)
            read, ends = await everything(reading), await shared_ends(settings)
            async with stored(settings) as after:
                differences = await after.differences()

            await rebuilding.rebuild(settings, report=ignore, switched=ignore)
            read_anew, ends_anew = await everything(reading), await shared_ends(settings)
        finally:
            acknowledged.enough.set()
            await service.stop()

    print(f"reads: {[one.reads for one in watchers]}; notes: {acknowledged.notes}")
    assert after.edition != before.edition
    assert [fault for one in watchers for fault in one.faults] == []
    assert len(acknowledged.deleted) > 1
    assert differences == []
    assert read_anew == read
    assert ends_anew == ends


def ignore(*_: object) -> None:
    pass


async def have_read(watchers: list[Watcher]) -> bool:
    return all(one.reads >= READS_MIN for one in watchers)


def noted(session_id: str, number: int) -> dict[str, Any]:
    return {"n": number, f"app:{session_id}": number, f"user:{session_id}": number}


async def fill(sessions: SessionVerbs, session_id: str, acknowledged: Acknowledged) -> None:
    """Many notes at once, of which the last one alone says how many there are."""
    run_notes = [PlannerNote(note=f"{number}") for number in range(1, BACKLOG)]
    await sessions.append_batch(session_id, run_notes)
    await sessions.append(session_id, PlannerNote(note=f"{BACKLOG}"), state_delta=noted(session_id, BACKLOG))
    acknowledged.notes[session_id] = BACKLOG


async def note(sessions: SessionVerbs, session_id: str, acknowledged: Acknowledged) -> None:
    """Some notes a second, each acknowledged before the next."""
    for number in range(BACKLOG + 1, BACKLOG + NOTES_MAX + 1):
        if acknowledged.enough.is_set():
            return
        await sessions.append(
            session_id, PlannerNote(note=f"{number}"), state_delta=noted(session_id, number)
        )
        acknowledged.notes[session_id] = number
        await asyncio.sleep(0.2)


async def come_and_go(sessions: SessionVerbs, acknowledged: Acknowledged) -> None:
    for number in range(SHORT_MAX):
        if acknowledged.enough.is_set():
            return
        session_id = f"short-{number:04d}"
        await sessions.create(app=APP, user=USER, session_id=session_id, state={"n": 0})
        acknowledged.standing.add(session_id)
        await sessions.append(session_id, PlannerNote(note="1"))
        if number % 4:
            await asyncio.sleep(0.05)
        acknowledged.standing.discard(session_id)
        await sessions.delete(session_id)
        acknowledged.deleted.add(session_id)
