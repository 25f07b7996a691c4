"""Unforeseen errors of reading one run: each becomes a problem of that run, not of the service."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.requests import ClientDisconnect

from runfold.http.bodies import JsonRoute
from runfold.store.quarantine import run_id_of
from runfold_schemas.errors import QuarantinedError, RunfoldError

_LOGGED_MAX: Final = 1_000

_REASON_MAX: Final = 500

_log = logging.getLogger(__name__)

_logged: OrderedDict[tuple[str, type[Exception]], None] = OrderedDict()
"""The runs and errors whose trace is in the log already."""


@contextmanager
def reading_run(run_id: str, *, offset: int | None = None) -> Iterator[None]:
    """Raises `QuarantinedError` instead of an error that nobody foresaw, and logs its trace once.
    `offset` is that of the record that is read.
    """
    try:
        yield
    except (RunfoldError, HTTPException, RequestValidationError, ClientDisconnect):
        raise
    except Exception as error:
        _log_once(run_id, error)
        reason = f"{type(error).__name__}: {error}"[:_REASON_MAX]
        raise QuarantinedError(run_id_of(run_id), offset=offset, reason=reason) from error


class RunRoute(JsonRoute):
    """A route that answers an unforeseen error of reading a run with the problem of
    `reading_run`.
    """

    allows_nan = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_run(request: Request) -> Response:
            run_id = request.path_params.get("run_id")
            if run_id is None:
                return await handle(request)
            with reading_run(run_id):
                return await handle(request)

        return handle_run


def _log_once(run_id: str, error: Exception) -> None:
    key = run_id, type(error)
    if key not in _logged:
        _log.error("run %r cannot be read", run_id, exc_info=error)
        _logged[key] = None
    if len(_logged) > _LOGGED_MAX:
        _logged.popitem(last=False)
