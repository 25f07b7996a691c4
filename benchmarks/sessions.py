"""Measures the sessions of an ADK agent, compared with ADK's own DatabaseSessionService on a SQLite
file in the same run.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.session import Session
from google.genai import types
from query import Figures, Process, serving, timed_get
from texts import text

from runfold.access.direct import direct_sessions
from runfold.adk import RunfoldSessionService
from runfold.adk.events import framework_event
from runfold.settings import Settings
from runfold_schemas.sessions import joined

APP = "shop"
USER = "ann"

ONE_BY_ONE_SECONDS = 4.0
TOGETHER = 50
TOGETHER_SECONDS = 6.0
READ_EVENTS = 3_000
SHORT_EVENTS = 100
LONG_EVENTS = 100_000
BATCH = 500
NEWEST = 10
READINGS = 15


class Rate(NamedTuple):
    """Appends per second, and the processor time of this process for an append, in seconds."""

    per_second: float
    cpu: float


async def sessions(settings: Settings) -> Figures:
    """Appends and reads with both services in turns, so that other load affects both."""
    async with (
        serving(settings, "projector"),
        serving(settings, "api") as api,
        RunfoldSessionService(**_given(settings)) as ours,
        _database() as theirs,
    ):
        figures = await _appending(ours, theirs)
        figures += await _reading(ours, theirs, api)
        return figures + await _newest(ours, settings)


async def _appending(ours: BaseSessionService, theirs: BaseSessionService) -> Figures:
    one_by_one = [await _alternately(ours, theirs, _one_by_one) for _ in range(3)]
    together = [await _alternately(ours, theirs, _together) for _ in range(2)]
    return [
        _rates("durable appends to one session, one after the other", "≥ 6 times", one_by_one),
        _rates(f"durable appends to {TOGETHER} sessions at once", "≥ 16 times", together),
        _costs(f"processor time of the process that appends to {TOGETHER} sessions, an append", together),
    ]


async def _reading(ours: BaseSessionService, theirs: BaseSessionService, api: Process) -> Figures:
    mine, its = await _filled(ours, READ_EVENTS), await _filled(theirs, READ_EVENTS)
    through_adk: list[float] = []
    of_theirs: list[float] = []
    over_http: list[float] = []
    own_id = quote(joined(APP, USER, mine.id), safe="")
    for _ in range(READINGS):
        through_adk.append(await _timed(lambda: _get(ours, mine)))
        of_theirs.append(await _timed(lambda: _get(theirs, its)))
        over_http.append(timed_get(api, f"/v1/sessions/{own_id}?include=events"))
    base = statistics.median(of_theirs)
    what = f"get of a {READ_EVENTS:,}-event session"
    return [
        (f"{what} through ADK", "≤ 0.55 of theirs", _share(through_adk, base)),
        (f"{what} as JSON over HTTP", "≤ 0.1 of theirs", _share(over_http, base)),
    ]


async def _newest(ours: BaseSessionService, settings: Settings) -> Figures:
    short, long = await _filled(ours, SHORT_EVENTS), await _filled_at_once(ours, settings, LONG_EVENTS)
    config = GetSessionConfig(num_recent_events=NEWEST)
    of_short, of_long = [], []
    for _ in range(3 * READINGS):
        of_short.append(await _timed(lambda: _get(ours, short, config)))
        of_long.append(await _timed(lambda: _get(ours, long, config)))
    ratio = statistics.median(of_long) / statistics.median(of_short)
    return [
        (
            f"newest {NEWEST} of {LONG_EVENTS:,} events beside the same of {SHORT_EVENTS}",
            "≤ 2 times",
            f"{ratio:.2f} ({_ms(of_long)} and {_ms(of_short)})",
        )
    ]


async def _alternately(
    ours: BaseSessionService,
    theirs: BaseSessionService,
    rate: Callable[[BaseSessionService], Awaitable[Rate]],
) -> tuple[Rate, Rate]:
    return await rate(ours), await rate(theirs)


async def _one_by_one(service: BaseSessionService) -> Rate:
    return await _measured([await _created(service)], service, ONE_BY_ONE_SECONDS)


async def _together(service: BaseSessionService) -> Rate:
    return await _measured([await _created(service) for _ in range(TOGETHER)], service, TOGETHER_SECONDS)


async def _measured(sessions: Sequence[Session], service: BaseSessionService, seconds: float) -> Rate:
    cpu = time.process_time()
    rate = sum(await asyncio.gather(*(_rate(service, session, seconds) for session in sessions)))
    return Rate(rate, (time.process_time() - cpu) / (rate * seconds))


async def _rate(service: BaseSessionService, session: Session, seconds: float) -> float:
    """The number of appends per second, measured for `seconds`."""
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        await service.append_event(session, _event(count))
        count += 1
    return count / elapsed


async def _filled(service: BaseSessionService, events: int) -> Session:
    session = await _created(service)
    for number in range(events):
        await service.append_event(session, _event(number))
    return session


async def _filled_at_once(service: BaseSessionService, settings: Settings, events: int) -> Session:
    """The same as `_filled`, but in batches. One by one, 100,000 events take minutes."""
    session = await _created(service)
    async with direct_sessions(settings) as verbs:
        for begin in range(0, events, BATCH):
            batch = [framework_event(_event(number), {}) for number in range(begin, begin + BATCH)]
            await verbs.append_batch(joined(APP, USER, session.id), batch)
    return session


async def _created(service: BaseSessionService) -> Session:
    return await service.create_session(app_name=APP, user_id=USER)


async def _get(service: BaseSessionService, session: Session, config: GetSessionConfig | None = None) -> Any:
    return await service.get_session(app_name=APP, user_id=USER, session_id=session.id, config=config)


def _event(number: int) -> Event:
    """A question of the user, or an answer of the model with its usage, sometimes with a change of
    state.
    """
    if number % 2 == 0:
        content = types.Content(role="user", parts=[types.Part(text=text(200))])
        return Event(author="user", invocation_id=f"i-{number}", content=content)
    content = types.Content(role="model", parts=[types.Part(text=text(400))])
    usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=1200, candidates_token_count=100)
    event = Event(author="agent", invocation_id=f"i-{number}", content=content, usage_metadata=usage)
    event.actions.state_delta["turn"] = number
    return event


async def _timed(call: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


def _costs(what: str, pairs: list[tuple[Rate, Rate]]) -> tuple[str, str, str]:
    ours = statistics.median(ours.cpu for ours, _ in pairs)
    theirs = statistics.median(theirs.cpu for _, theirs in pairs)
    return (what, "", f"{1e6 * ours:.0f} us (DatabaseSessionService {1e6 * theirs:.0f} us)")


def _rates(what: str, target: str, pairs: list[tuple[Rate, Rate]]) -> tuple[str, str, str]:
    ours = statistics.median(ours.per_second for ours, _ in pairs)
    theirs = statistics.median(theirs.per_second for _, theirs in pairs)
    ratio = statistics.median(ours.per_second / theirs.per_second for ours, theirs in pairs)
    return (what, target, f"{ratio:.1f} times ({ours:,.0f}/s, DatabaseSessionService {theirs:,.0f}/s)")


def _share(seconds: list[float], base: float) -> str:
    return f"{statistics.median(seconds) / base:.2f} ({_ms(seconds)} of {base * 1000:.0f} ms)"


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.1f} ms"


def _given(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.model_fields_set}


@asynccontextmanager
async def _database() -> AsyncIterator[BaseSessionService]:
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as folder:
        service = DatabaseSessionService(
            f"sqlite+aiosqlite:///{Path(folder)}/sessions.db", connect_args={"timeout": 60}
        )
        try:
            yield service
        finally:
            await service.close()
