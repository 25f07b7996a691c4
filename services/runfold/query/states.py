"""A run's own state, now or at an earlier moment, and the history of a key of state."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from runfold.http.answers import JSON
from runfold.http.problems import Responses
from runfold.query.as_of import prefix_of
from runfold.query.history import History, Slice
from runfold.query.parameters import CutOff, FirstOffset, From, Limit, MinOffset, RunId, StateKey
from runfold.query.reading import Reading
from runfold.query.sources import with_source
from runfold_projections.admission import Admitted
from runfold_projections.state import Value, own_changes, without_temporary
from runfold_schemas.codec import decode_again


class OwnState(BaseModel):
    """The run's own state. Keys that it shares with others are not part of it."""

    run_id: str
    next_offset: int = Field(description="The first offset that the state does not include.")
    state: dict[str, Any]
    offsets: dict[str, int] = Field(description="The offset of the event that set each key.")


class StateChange(BaseModel):
    """A change of one key."""

    offset: int
    log_time: int = Field(description="When the event was appended to the log, in milliseconds since 1970.")
    event_id: str
    type: str
    value: Any


class StateHistory(BaseModel):
    """The changes of one key by events of this run, the first one first."""

    run_id: str
    key: str
    changes: list[StateChange]
    next_offset: int = Field(description="`first_offset` of the next page; at the end of the run, its end.")


def add_states(routes: APIRouter, reading: Callable[[], Reading], *, problems: Responses) -> None:
    """Adds the routes. `reading` returns what is read of the tenant of the current request."""

    @routes.get(
        "/runs/{run_id}/state",
        tags=["runs"],
        summary="Read a run's state",
        response_model=OwnState,
        responses=problems,
    )
    async def read_state(
        *, run_id: RunId, cut_off: CutOff, min_offset: MinOffset = None, source: From = "snapshot"
    ) -> Response:
        """Read the run's own state as it is now, or was at an earlier moment. `app:` and `user:`
        keys are not part of it, because other runs change them too.
        """
        history, end = await prefix_of(reading().runs, run_id, cut_off, min_offset=min_offset, source=source)
        state = await state_as_of(history, end=end)
        return with_source(history.source, Response(state, media_type=JSON))

    @routes.get(
        "/runs/{run_id}/state/{key}",
        tags=["runs"],
        summary="Read the history of a key of state",
        response_model=StateHistory,
        responses=problems,
    )
    async def read_state_history(
        *,
        run_id: RunId,
        key: StateKey,
        cut_off: CutOff,
        first_offset: FirstOffset = 0,
        limit: Limit = 100,
        min_offset: MinOffset = None,
        source: From = "snapshot",
    ) -> Response:
        """Read which events of the run set a key, in their order. To continue, send `next_offset`
        as `first_offset`. For a shared key, the changes by other runs are missing.
        """
        history, end = await prefix_of(reading().runs, run_id, cut_off, min_offset=min_offset, source=source)
        page = await state_history(history, key, first_offset=first_offset, end=end, limit=limit)
        return with_source(history.source, Response(page, media_type=JSON))


async def state_as_of(history: History, *, end: int) -> bytes:
    """The answer with the run's own state after the first `end` offsets."""
    values: dict[str, Value] = {}
    async for admitted in _changing(history, 0, end):
        values.update(own_changes(admitted))
    document = {
        "run_id": history.run_id,
        "next_offset": end,
        "state": {key: value.value for key, value in values.items()},
        "offsets": {key: value.offset for key, value in values.items()},
    }
    return json.dumps(document).encode()


async def state_history(history: History, key: str, *, first_offset: int, end: int, limit: int) -> bytes:
    """The answer with the changes of a key between these offsets. Changes of shared keys are
    included, because the run has made them, too.
    """
    changes: list[dict[str, Any]] = []
    next_offset = max(first_offset, end)
    async for admitted in _changing(history, first_offset, end):
        event, record = admitted.event, admitted.record
        assert event is not None
        delta = without_temporary(event.state_delta or {})
        if key not in delta:
            continue
        if len(changes) == limit:
            next_offset = record.offset
            break
        change = {"offset": record.offset, "log_time": record.log_time}
        changes.append({**change, "event_id": event.event_id, "type": event.type, "value": delta[key]})
    document = {"run_id": history.run_id, "key": key, "changes": changes, "next_offset": next_offset}
    return json.dumps(document).encode()


async def _changing(history: History, first_offset: int, end: int) -> AsyncIterator[Admitted]:
    """The accepted records that may change state. Late events change none."""
    async for slice_ in history.slices(first_offset=first_offset, end=end):
        for admitted in _changing_in(slice_):
            yield admitted
        await asyncio.sleep(0)


def _changing_in(slice_: Slice) -> list[Admitted]:
    records, outcomes = slice_.counting()
    changing = [
        record
        for record in records
        # JSON can hide a letter only behind `\u`.
        if outcomes.get(record.offset, "accepted") == "accepted"
        and (value := record.value)
        and (b'"state_delta"' in value or b"\\u" in value)
    ]
    events = decode_again([record.value or b"" for record in changing])
    return [
        Admitted(record, "accepted", event)
        for record, event in zip(changing, events, strict=True)
        if event.state_delta
    ]
