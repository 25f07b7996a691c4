"""Each request has an id, which is in its answer, in its log lines and in the audit log. A request
that is answered with 503 has a log line.
"""

import logging
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runfold.ids import uuid7
from runfold.telemetry.log_limit import LimitedLog
from runfold.telemetry.request_context import (
    RequestContext,
    enter_request,
    leave_request,
    valid_traceparent,
)

HEADER: Final = "X-Request-Id"
_HEADER_BYTES: Final = HEADER.lower().encode()

_PROBES: Final = "/health/"
"""They ask every few seconds, and the outage that they report has lines of its own."""

_LINES_MAX: Final = 5
_SECONDS: Final = 10.0
_REASON_MAX: Final = 200

_log = logging.getLogger(__name__)


class RequestIds:
    """ASGI middleware, outside of all others. The id is our own, whatever the client sends, so that
    no client can make two lines of the audit log look like one request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._unavailable = LimitedLog(
            _log,
            "requests answered with 503",
            level=logging.WARNING,
            lines_max=_LINES_MAX,
            seconds=_SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext(str(uuid7()), valid_traceparent(Headers(scope=scope).get("traceparent")))
        request_id = (_HEADER_BYTES, context.request_id.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                if message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
                    self._report(scope, context)
                message = {**message, "headers": [*message.get("headers", ()), request_id]}
            await send(message)

        token = enter_request(context)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            context.is_over = True
            leave_request(token)

    def _report(self, scope: Scope, context: RequestContext) -> None:
        if scope["path"].startswith(_PROBES):
            return
        # The template, because paths contain ids that clients choose.
        route = getattr(scope.get("route"), "path", "request")
        reason = context.unavailable[:_REASON_MAX]
        self._unavailable.log(reason, f"{scope['method']} {route} is answered with 503: {reason}")
