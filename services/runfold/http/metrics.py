"""How long requests take: one Prometheus histogram for all HTTP services."""

import time
from typing import Final

from prometheus_client import Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SECONDS: Final = Histogram(
    "runfold_request_seconds",
    "From a request to the beginning of its answer, by method, route and status",
    ["method", "route", "status"],
)

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestTimes:
    """ASGI middleware. A stream's time ends when the stream begins, because its length depends on
    the reader.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def send_and_observe(message: Message) -> None:
            if message["type"] == "http.response.start":
                _observe(scope, message["status"], began)
            await send(message)

        try:
            await self._app(scope, receive, send_and_observe)
        except Exception:
            _observe(scope, 500, began)
            raise


def _observe(scope: Scope, status: int, began: float) -> None:
    # The route's template and a fixed word for unknown methods: each id of a run and each made-up
    # method would make another series.
    route = getattr(scope.get("route"), "path", "none")
    method = scope["method"] if scope["method"] in _METHODS else "OTHER"
    _SECONDS.labels(method, route, status).observe(time.perf_counter() - began)
