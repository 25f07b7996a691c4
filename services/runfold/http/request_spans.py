"""A span of OpenTelemetry for each request, if the process makes spans."""

from http import HTTPStatus
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runfold.http.authentication import is_public
from runfold.telemetry import spans
from runfold.telemetry.request_context import current_request

_NOT_TRACED: Final = ("/health/", "/metrics")

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestSpans:
    """ASGI middleware, behind the authentication. The span ends with the answer or its stream."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_NOT_TRACED):
            await self._app(scope, receive, send)
            return
        request = current_request()
        # Anybody may send a request to a public path.
        has_caller = request is not None and not is_public(scope["path"])
        with spans.request_span(request.traceparent if request and has_caller else None) as span:

            async def send_noted(message: Message) -> None:
                if message["type"] == "http.response.start" and span.is_recording():
                    _describe(span, scope, message["status"])
                await send(message)

            if request is not None:
                span.set_attribute("runfold.request.id", request.request_id)
            await self._app(scope, receive, send_noted)


def _describe(span: Any, scope: Scope, status: int) -> None:
    # The template, because paths contain ids that clients choose.
    route = getattr(scope.get("route"), "path", None)
    method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
    span.update_name(f"{method} {route}" if route else method)
    attributes = {
        "http.request.method": method,
        "http.response.status_code": status,
        "url.scheme": scope["scheme"],
    }
    span.set_attributes(attributes if route is None else attributes | {"http.route": route})
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        spans.mark_error(span, str(status))
