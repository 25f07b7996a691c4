"""How long requests take, for Prometheus: one histogram for all HTTP services."""

import time
from typing import Final

from prometheus_client import Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SECONDS: Final = Histogram(
    "runfold_request_seconds",
    "From a request to the beginning of its answer, by method, route and status",
    ["method", "route", "status"],
)


class RequestTimes:
    """ASGI middleware. A stream counts until it begins: how long somebody follows a run says
    nothing about us.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note(scope, message["status"], began)
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:
            _note(scope, 500, began)
            raise


def _note(scope: Scope, status: int, began: float) -> None:
    # The route with its parameters unfilled: each run id would be a series of its own.
    route = getattr(scope.get("route"), "path", "none")
    _SECONDS.labels(scope["method"], route, status).observe(time.perf_counter() - began)
