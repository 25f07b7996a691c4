"""`POST /v1/runs/{run_id}/responses`: a model's response, whole or as the stream that the model
sends.

A stream is forwarded chunk by chunk as server-sent events while it arrives, so that followers of
the run see it grow. The answer comes after its last chunk.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from runfold.client.appender import Position
from runfold.client.recording import Recorded, Recording
from runfold.client.run import Run
from runfold.http.bodies import InvalidItemError, too_large
from runfold.http.event_stream import EVENT_STREAM, event_data
from runfold.http.idempotency import IdempotencyKey, RepeatableRequest, Replays, repeatable_document
from runfold.http.items import ITEMS_MAX
from runfold.http.parameters import made
from runfold.http.problems import Responses
from runfold.ids import new_event_id
from runfold.ingest.appending import append, position_document
from runfold.ingest.requests import RESPONSE_BODY
from runfold.permissions.permissions import Permissions, PermissionsOfRequest
from runfold_schemas.data import Maker
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Provider

_SMALL_BYTES_MAX: Final = 64 * 1024
"""The size of a response that is recorded at once."""


@dataclass(frozen=True, slots=True)
class ResponseParameters:
    """The parameters of the route beside the response."""

    provider: Annotated[
        Provider | None,
        Query(
            description="The provider of the response. Needed only if the response itself does not show it."
        ),
    ] = None
    maker: Annotated[
        Maker | None,
        Query(description="The company or the host that runs the model, for example `api.groq.com`."),
    ] = None
    model: Annotated[
        str | None,
        Query(max_length=200, description="The name of the model, if the response does not contain it."),
    ] = None
    turn_id: Annotated[str | None, Query(description="The turn that the response belongs to.")] = None
    late: Annotated[bool, Query(description="Append also to a run that has ended.")] = False
    tool_name: Annotated[
        list[str],
        Query(
            description="The name of a tool that the ledger's request had renamed, as `sent:original`, from"
            " its `tool_names`. Repeat the parameter for each."
        ),
    ] = ()  # type: ignore[assignment]  # FastAPI makes a list of it

    def tool_names(self) -> dict[str, str]:
        """Raises `InvalidEventError` for a text without a colon."""
        pairs = [text.partition(":") for text in self.tool_name]
        if wrong := next((sent for sent, colon, _ in pairs if not colon), None):
            raise InvalidEventError(
                f"tool_name {wrong!r:.100} is not of the form sent:original", field="tool_name"
            )
        return {sent: original for sent, _, original in pairs}


Parameters = Annotated[ResponseParameters, made(ResponseParameters)]
RunId = Annotated[str, Path(description="The run's id, percent-encoded: `/` is `%2F`.", examples=["run-1"])]


def add_responses(
    router: APIRouter,
    find_run: Callable[[str], Awaitable[Run]],
    permissions: PermissionsOfRequest,
    replays: Replays,
    *,
    problems: Responses,
) -> None:
    """Adds the route."""

    @router.post(
        "/{run_id}/responses",
        status_code=HTTPStatus.CREATED,
        summary="Record a model's response",
        responses=problems,
        openapi_extra=RESPONSE_BODY,
    )
    async def record_response(
        run_id: RunId, request: Request, parameters: Parameters, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Record a model's response as its provider sent it. Its parts become events: all are
        appended, or none.

        A response that streams is sent as `text/event-stream`, chunk by chunk as the provider sends
        it. Its parts are appended while they arrive, or at its end if the request has an
        `Idempotency-Key`. If it breaks off, what arrived is kept.
        """
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == EVENT_STREAM:
            empty = RepeatableRequest.of(b"", EVENT_STREAM, idempotency_key)
            return await _record_stream(await find_run(run_id), request, empty, permissions(), parameters)
        document = await repeatable_document(request, idempotency_key)

        async def handle() -> Response:
            return await _record(await find_run(run_id), document, permissions(), parameters)

        return await replays.answer(f"responses/{run_id}", document, handle, str(parameters))


async def _record(
    run: Run, request: RepeatableRequest, permissions: Permissions, parameters: ResponseParameters
) -> Response:
    recording = _recording(run, request, permissions, parameters)
    response = await request.json()

    def record() -> list[AnyEvent]:
        events = recording.events_of(response)
        if len(events) > ITEMS_MAX:
            raise too_large(f"the response has more than {ITEMS_MAX:,} parts")
        return events

    # Many small parts take seconds, in which a thread holds up nobody.
    events = await asyncio.to_thread(record) if len(request.body) > _SMALL_BYTES_MAX else record()
    return _answer(run, events, await recording.publish(events))


async def _record_stream(
    run: Run,
    request: Request,
    repeatable: RepeatableRequest,
    permissions: Permissions,
    parameters: ResponseParameters,
) -> Response:
    events: list[AnyEvent] = []
    recording = _recording(run, repeatable, permissions, parameters, note=events.extend)
    chunks, finished = 0, False
    try:
        async for chunk in event_data(request):
            recording.take(chunk)
            chunks += 1
        finished = True
    except InvalidItemError as error:
        raise InvalidEventError(
            f"event {chunks + 1} of the stream has {str(error).partition(': ')[2]}; the events before it are"
            " recorded, as a response that broke off"
        ) from error
    except ClientDisconnect:
        pass
    finally:
        await recording.end(finished=finished)
    if not chunks:
        raise InvalidEventError("the stream has no event with `data:` and a chunk of a response")
    return _answer(run, events, recording.recorded)


def _recording(
    run: Run,
    request: RepeatableRequest,
    permissions: Permissions,
    parameters: ResponseParameters,
    *,
    note: Callable[[list[AnyEvent]], None] = lambda _: None,
) -> Recording:
    async def publish(events: Any) -> list[Position]:
        repeatable = request.key is not None
        positions = await append(run, list(events), permissions, late=parameters.late, repeatable=repeatable)
        note(events)
        return positions

    return Recording(
        partial(run.event, turn_id=parameters.turn_id, maker=parameters.maker),
        publish,
        provider=parameters.provider,
        tool_names=parameters.tool_names(),
        model=parameters.model,
        repeatable_id=None if request.key is None else partial(_derived_id, run.run_id, request),
    )


def _derived_id(run_id: str, request: RepeatableRequest, name: str) -> str:
    return request.derived_id("responses", run_id, name) or new_event_id()


def _answer(run: Run, events: list[AnyEvent], recorded: Recorded) -> Response:
    listed = [position_document(*each) for each in zip(events, recorded, strict=True)]
    calls = [{"tool_call_id": call.tool_call_id, "tool_name": call.tool_name} for call in recorded.calls]
    content = {
        "run_id": run.run_id,
        "positions": listed,
        "message_id": recorded.message_id,
        "tool_calls": calls,
    }
    return JSONResponse(content, HTTPStatus.CREATED)
