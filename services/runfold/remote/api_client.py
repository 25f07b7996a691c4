"""Requests to Runfold's HTTP API, and its problem documents as the errors that they tell of, with
their facts.

Nothing is sent a second time by itself.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from inspect import signature
from typing import Any, Final
from urllib.parse import quote

from runfold_schemas import errors
from runfold_schemas.errors import InvalidEventError, RunfoldError, UnavailableError

try:
    import httpx
except ImportError as error:
    raise ImportError("Runfold's API is reached with httpx: pip install runfold[adk]") from error


class HttpClient:
    """It connects with the first call; after `close` a later call makes new connections.

    Args:
        url: where Runfold's API is, with the path that a gateway may put before it.
        timeout_seconds: how long to wait for the server at any step of a call.
        headers: sent with every request, for a gateway's authorization.
    """

    def __init__(
        self, url: str, *, timeout_seconds: float = 30.0, headers: Mapping[str, str] | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._headers = dict(headers or {})
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def call(self, method: str, path: str, *, json: bytes | None = None, **options: Any) -> bytes:
        """What is answered. `json` is the body; `options` are httpx's. Raises what the problem
        document tells of, and `UnavailableError`.
        """
        if json is not None:
            options |= {"content": json, "headers": {"Content-Type": "application/json"}}
        try:
            response = await self._opened().request(method, f"{self.url}/v1/{path}", **options)
        except httpx.HTTPError as error:
            reason = f"{self.url}: {error or type(error).__name__}"
            raise UnavailableError("Runfold", reason=reason) from error
        if response.is_success:
            return response.content
        raise error_of(response)

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._timeout_seconds, headers=self._headers)
        return self._client


def quoted(text: str) -> str:
    """As one part of a path. The parts `.` and `..` would mean another path."""
    found = quote(text, safe="")
    return found.replace(".", "%2E") if found in (".", "..") else found


def pairs(given: Mapping[str, str], *, field: str) -> list[str]:
    """`key:value`, as the parameter `field` has them. Raises `InvalidEventError` for a key with a
    colon in it.
    """
    for key in given:
        if ":" in key:
            raise InvalidEventError(f"{field} {key!r} has a colon", field=field)
    return [f"{key}:{value}" for key, value in given.items()]


def error_of(response: httpx.Response) -> RunfoldError:
    """The error that a problem document tells of, with its facts."""
    try:
        problem = response.json()
        name = problem["type"].removeprefix("urn:runfold:problem:")
        detail = str(problem["detail"])
    except (ValueError, KeyError, TypeError, AttributeError):
        problem, name, detail = {}, "", response.text[:200]
    try:
        if kind := _KINDS.get(name):
            return _made(kind, detail, problem)
    except (TypeError, ValueError):
        pass  # a server of another version has other facts
    return _by_status(response.status_code, detail, problem)


def _by_status(status: int, detail: str, problem: Mapping[str, Any]) -> RunfoldError:
    told = f"HTTP {status}: {detail}"
    if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT):
        return UnavailableError("Runfold", reason=told)
    if status in (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
        return InvalidEventError(detail, field=problem.get("field", ""))
    return RunfoldError(f"Runfold answered with {told}")


_Kind = Callable[..., RunfoldError]

_KINDS: Final[Mapping[str, _Kind]] = {
    **{
        name.removesuffix("Error"): kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, RunfoldError) and kind is not RunfoldError
    },
    "InvalidItem": InvalidEventError,
}
"""By the last word of a problem's type."""

_EMPTY: Final[Mapping[_Kind, Mapping[str, Any]]] = {
    errors.InvalidIdError: {"value": ""},
    errors.RunConflictError: {"session_id": None},
}
"""Facts that a problem leaves out where they are empty, and that an error is not made without."""


def _made(kind: _Kind, detail: str, problem: Mapping[str, Any]) -> RunfoldError:
    """The error of the problem's facts, which have the names of what the error is made of."""
    if "__init__" not in vars(kind):
        return kind(detail)
    message = detail.removeprefix(f"[{problem.get('index')}]: ")
    facts = {**_EMPTY.get(kind, {}), **problem, "message": message}
    return kind(**{name: facts[name] for name in signature(kind).parameters if name in facts})
