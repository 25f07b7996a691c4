"""The audit log: who asked for what, and the status of the answer. Each request leaves one line of
JSON, with the ids that it names or creates, and never its body, its query or its headers.

A line is written before the first byte of its answer is sent. So a client that has an answer is in
the log, also if the process is killed afterwards. A stream leaves a line when it begins, and
another line when it ends.
"""

import json
import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runfold.http.audit_log import AuditLog
from runfold.http.audited_ids import AuditedIds
from runfold.http.event_stream import EVENT_STREAM
from runfold.http.principal import principal_of
from runfold.http.problems import problem
from runfold.ids import uuid7
from runfold.telemetry.request_context import current_request

_PROBE: Final = "/health/"
_LIVE: Final = "/health/live"


class Audit:
    """ASGI middleware, outside of all others that answer. Probes are not requests of anybody, and
    leave no line.

    While the log cannot be written, every request is refused with 503: a request that leaves no
    line changes and reads nothing.
    """

    def __init__(self, app: ASGIApp, *, log: AuditLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == _LIVE:
            await self._app(scope, receive, send)
        elif not self._log.is_writable():
            await _refusal()(scope, receive, send)
        elif scope["path"].startswith(_PROBE):
            await self._app(scope, receive, send)
        else:
            await _AuditedRequest(self._log, scope).run(self._app, receive, send)


def _refusal() -> ASGIApp:
    answer = problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the audit log cannot be written, so this service answers no requests: free its disk, or correct"
        " the rights on its file, and retry",
        type_="urn:runfold:problem:AuditLogUnavailable",
    )
    answer.headers["Retry-After"] = "1"
    return answer


class _AuditedRequest:
    def __init__(self, log: AuditLog, scope: Scope) -> None:
        self._log = log
        self._scope = scope
        self._ids = AuditedIds(scope)
        self._id = context.request_id if (context := current_request()) else str(uuid7())
        self._began = time.perf_counter()
        self._status: int | None = None
        self._is_stream = _is_stream(scope["headers"])
        self._has_begun = self._has_ended = False

    async def run(self, app: ASGIApp, receive: Receive, send: Send) -> None:
        async def receive_audited() -> Message:
            # The route and the principal are known when the body is asked for.
            if self._is_stream:
                self._begin()
            return await receive()

        async def send_audited(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answer(message)
            await send(message)

        try:
            await app(self._scope, receive_audited, send_audited)
        except Exception:
            # The server answers after this, unless an answer has begun.
            self._status = self._status or HTTPStatus.INTERNAL_SERVER_ERROR
            raise
        finally:
            self._end()

    def _answer(self, start: Message) -> None:
        self._status = start["status"]
        self._ids.take_answer(start)
        if _is_stream(start["headers"]):
            self._is_stream = True
            self._begin()
        else:
            self._end()

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._log.append(self._line("stream_start"))

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._log.append(self._line("stream_end" if self._has_begun else "request"))

    def _line(self, kind: str) -> bytes:
        # JSON with ASCII alone: no id can end the line or write to a terminal.
        return json.dumps(self._document(kind), separators=(",", ":")).encode() + b"\n"

    def _document(self, kind: str) -> dict[str, object]:
        try:
            principal = principal_of(self._scope)
        except LookupError:
            tenant = subject = None
        else:
            tenant, subject = principal.tenant, principal.subject
        client = self._scope.get("client")
        return {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "kind": kind,
            "request": self._id,
            "tenant": tenant,
            "principal": subject,
            "client": client[0] if client else None,
            "method": self._scope["method"],
            "route": getattr(self._scope.get("route"), "path", None),
            "ids": self._ids.all(),
            "status": self._status,
            "seconds": round(time.perf_counter() - self._began, 6),
        }


def _is_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return Headers(raw=headers).get("content-type", "").strip().lower().startswith(EVENT_STREAM)
