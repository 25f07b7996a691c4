"""Requests to Runfold's HTTP API. A problem document becomes the error that it describes, with its
facts.

A read whose connection closed before the answer is sent once more: the API or a gateway may close a
kept connection at the moment of its next use. No other request is repeated automatically.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from inspect import signature
from math import ceil
from typing import Any, Final, Self
from urllib.parse import quote

from runfold.client.background import KeptConnection
from runfold.telemetry.trace_context import event_traceparent
from runfold_schemas import errors
from runfold_schemas.errors import InvalidEventError, RunfoldError, UnavailableError

try:
    import httpx
except ImportError as error:
    raise ImportError("clients of Runfold's API need httpx: pip install 'runfold[adk]'") from error

_log = logging.getLogger(__name__)

API_KEY_VARIABLE: Final = "RUNFOLD_API_KEY"
"""The variable with the key of a client that was given none."""

IDLE_SECONDS: Final = 3.0
"""How long a connection waits for the next call. The API closes a connection after 5 s, and a call
at that moment fails.
"""


class HttpClient:
    """The connections to one API. They open with the first call, and serve callers in any event
    loop and thread. After `close`, a later call opens new ones. `HttpVerbs` has the parameters.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = 30.0,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        own = _headers(api_key, headers)
        limits = httpx.Limits(
            max_connections=100, max_keepalive_connections=20, keepalive_expiry=IDLE_SECONDS
        )
        self._connection = KeptConnection(
            partial(httpx.AsyncClient, timeout=timeout_seconds, headers=own, limits=limits)
        )

    async def close(self) -> None:
        await self._connection.close()

    async def call(self, method: str, path: str, *, json: bytes | None = None, **options: Any) -> bytes:
        """The body of the response. `json` is the body of the request; `options` are httpx's.
        Raises the error that a problem document describes, and `UnavailableError`.
        """
        headers = {**options.pop("headers", {})}
        if (traceparent := event_traceparent()) is not None:
            headers["traceparent"] = traceparent
        if json is not None:
            options["content"] = json
            headers["Content-Type"] = "application/json"
        options["headers"] = headers
        try:
            response = await self._connection.run(partial(self._response, method, path, options))
        except httpx.HTTPError as error:
            reason = f"{self.url}: {str(error) or type(error).__name__}"
            raise UnavailableError("Runfold", reason=reason) from error
        if response.is_success:
            return response.content
        raise error_of(response)

    async def _response(
        self, method: str, path: str, options: Mapping[str, Any], client: httpx.AsyncClient
    ) -> httpx.Response:
        url = f"{self.url}/v1/{path}"
        try:
            return await client.request(method, url, **options)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as error:
            if method != "GET":
                raise
            reason = str(error) or type(error).__name__
            _log.info(
                "the connection of GET %s closed before its answer (%s): asking once more", path, reason
            )
            return await client.request(method, url, **options)


class HttpVerbs:
    """The connection of a client over HTTP, whose class adds verbs. It connects with the first
    call. Leave its `async with` block or call `close` at the end.

    Args:
        url: the address of Runfold's API, with the path that a gateway may put before it.
        timeout_seconds: how long to wait for the server at each step of a call.
        api_key: an API key or a token; by default, the variable `RUNFOLD_API_KEY`.
        headers: sent with every request. An `Authorization` among them is sent instead of the key.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = 30.0,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._client = HttpClient(url, timeout_seconds=timeout_seconds, api_key=api_key, headers=headers)
        self.url = self._client.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections; a later call makes new ones."""
        await self._client.close()


def _headers(api_key: str | None, headers: Mapping[str, str] | None) -> httpx.Headers:
    """All headers, with the key or with the one in `RUNFOLD_API_KEY`. Raises `ValueError` for a
    text that cannot be a key. The error does not quote it.
    """
    key = (os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key).strip()
    if not re.fullmatch(r"[A-Za-z0-9._~+/=-]*", key):
        raise ValueError("the API key has characters that no key and no token has")
    own = httpx.Headers({"Authorization": f"Bearer {key}"} if key else {})
    own.update(headers)
    return own


def quoted(text: str) -> str:
    """The text as one segment of a path. The segments `.` and `..` would lead to another path."""
    segment = quote(text, safe="")
    return segment.replace(".", "%2E") if segment in (".", "..") else segment


def texts_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a query without those that are None. A span of time is a number of whole
    seconds, and is an age where a time is expected.
    """
    return {name: _text(value) for name, value in parameters.items() if value is not None}


def _text(value: Any) -> Any:
    if isinstance(value, timedelta):
        return f"{ceil(value.total_seconds())}s"
    return value.isoformat() if isinstance(value, datetime) else value


def pairs(values: Mapping[str, str], *, field: str) -> list[str]:
    """Each entry as `key:value`, the form of the query parameter `field`. Raises
    `InvalidEventError` for a key with a colon.
    """
    for key in values:
        if ":" in key:
            raise InvalidEventError(f"{field}: the key {key!r} contains a colon", field=field)
    return [f"{key}:{value}" for key, value in values.items()]


def error_of(response: httpx.Response) -> RunfoldError:
    """The error that a problem document describes, with its facts."""
    try:
        problem = response.json()
        name = problem["type"].removeprefix("urn:runfold:problem:")
        detail = str(problem["detail"])
    except (ValueError, KeyError, TypeError, AttributeError):
        problem, name, detail = {}, "", response.text[:200]
    try:
        if kind := _KINDS.get(name):
            return _error(kind, detail, problem)
    except (TypeError, ValueError):
        pass  # a server of another version may send other facts
    return _by_status(response.status_code, detail, problem)


def _by_status(status: int, detail: str, problem: Mapping[str, Any]) -> RunfoldError:
    reason = f"HTTP {status}: {detail}"
    if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT):
        return UnavailableError("Runfold", reason=reason)
    if status in (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
        return InvalidEventError(detail, field=problem.get("field", ""))
    return RunfoldError(f"Runfold answered with {reason}")


_Kind = Callable[..., RunfoldError]

_KINDS: Final[Mapping[str, _Kind]] = {
    **{
        name.removesuffix("Error"): kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, RunfoldError) and kind is not RunfoldError
    },
    "InvalidItem": InvalidEventError,
}
"""The classes of errors, by the last word of a problem's type."""

_EMPTY: Final[Mapping[_Kind, Mapping[str, Any]]] = {
    errors.InvalidIdError: {"value": ""},
    errors.QuotaExceededError: {"until": ""},
    errors.RunConflictError: {"session_id": None},
}
"""Facts that a problem document omits when they are empty, and that the error requires."""


def _error(kind: _Kind, detail: str, problem: Mapping[str, Any]) -> RunfoldError:
    """The error with the problem's facts, which have the names of its parameters."""
    if "__init__" not in vars(kind):
        return kind(detail)
    message = detail.removeprefix(f"[{problem.get('index')}]: ")
    facts = {**_EMPTY.get(kind, {}), **problem, "message": message}
    return kind(**{name: facts[name] for name in signature(kind).parameters if name in facts})
