"""The cookie of the console, by which a browser sends the credential of its user.

The cookie contains the credential itself. So a revocation or an expiry ends the login at once, and
no service stores a login. Scripts cannot read the cookie, and browsers send it over https or on the
same machine only.

A browser sends cookies by itself, also for a page that its user does not trust. So the cookie
counts for requests of pages of the same origin only, and for a change only with a token that no
other page can read.
"""

import hashlib
import hmac
import re
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from runfold_schemas.errors import ForbiddenError, InvalidEventError, UnauthenticatedError

COOKIE: Final = "__Secure-runfold"
TOKEN_HEADER: Final = "Runfold-Token"  # noqa: S105  # a name

LOGIN_SECONDS: Final = 600

_PENDING: Final = "__Host-runfold-login"
"""The cookie of a login that the identity provider has not answered yet. Because of the beginning
of its name, no neighbouring site can set it. `SameSite=Lax`, because the provider leads back here.
"""

_COOKIE_BYTES_MAX: Final = 3_800
"""Browsers drop cookies of more than 4,096 bytes without an error."""

_FITS: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
_READING: Final = frozenset({"GET", "HEAD"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""From a page of the same origin, or from the address bar."""


def cookie_credential(scope: Scope) -> str | None:
    """The credential in the cookie of a request. None without a cookie, and for a request from a
    page of another origin.

    Raises `UnauthenticatedError` for several cookies, because a neighbouring site can add one, and
    `ForbiddenError` for a change that no page of this service sends.
    """
    headers = Headers(scope=scope)
    values = _values(headers, COOKIE)
    if not values or headers.get("sec-fetch-site", "same-origin") not in _OWN_SITES:
        return None
    if len(values) > 1:
        raise UnauthenticatedError(f"the request has several cookies {COOKIE}: log in again")
    if scope["method"] not in _READING:
        _check_origin(headers)
        _check_token(headers, values[0])
    return values[0]


def token_of(credential: str) -> str:
    """The token that changes need beside the cookie."""
    return hmac.new(credential.encode("latin-1"), b"runfold console", hashlib.sha256).hexdigest()


def set_cookie(response: Response, credential: str, *, path: str | None = None) -> None:
    """Raises `InvalidEventError` if the credential does not fit into a cookie. A route that is not
    directly below `/v1` gives the `path`.
    """
    if len(credential) > _COOKIE_BYTES_MAX or not _FITS.fullmatch(credential):
        raise InvalidEventError(
            f"a browser cannot keep this token: it has {len(credential):,} characters, and"
            f" {_COOKIE_BYTES_MAX:,} are possible; use an API key",
            field="Authorization",
        )
    _set(response, credential, "" if path is None else f"; Path={path}")


def delete_cookie(response: Response) -> None:
    """The browser forgets the credential."""
    _set(response, "", "; Max-Age=0")


def pending_of(scope: Scope) -> str | None:
    """The secret of the login that this browser has begun. None without exactly one."""
    values = _values(Headers(scope=scope), _PENDING)
    return values[0] if len(values) == 1 else None


def set_pending(response: Response, secret: str) -> None:
    """The browser keeps the secret of a login that begins."""
    response.headers.append("Set-Cookie", _pending(secret, LOGIN_SECONDS))


def delete_pending(response: Response) -> None:
    """The browser forgets the secret of a login."""
    response.headers.append("Set-Cookie", _pending("", 0))


def _pending(secret: str, seconds: int) -> str:
    return f"{_PENDING}={secret}; Path=/; HttpOnly; Secure; SameSite=Lax; Max-Age={seconds}"


def _set(response: Response, value: str, more: str) -> None:
    # Without `Path`, the cookie belongs to the folder of the route, `/v1`, below the path of a
    # gateway too. Other services of the same host do not get it.
    response.headers["Set-Cookie"] = f"{COOKIE}={value}; HttpOnly; Secure; SameSite=Strict{more}"


def _values(headers: Headers, cookie: str) -> list[str]:
    pairs = [pair.partition("=") for header in headers.getlist("cookie") for pair in header.split(";")]
    return [value.strip() for name, _, value in pairs if name.strip() == cookie and value.strip()]


def _check_origin(headers: Headers) -> None:
    origin = headers.get("origin", "").lower()
    is_same = headers.get("sec-fetch-site") == "same-origin" or (
        urlsplit(origin).netloc == headers.get("host", "").lower()
    )
    if not origin or not is_same:
        raise ForbiddenError("a change by the cookie of the console has to come from a page of the console")


def _check_token(headers: Headers, credential: str) -> None:
    if not hmac.compare_digest(
        headers.get(TOKEN_HEADER, "").encode("latin-1"), token_of(credential).encode()
    ):
        raise ForbiddenError(
            f"a change by the cookie of the console needs the header {TOKEN_HEADER}: `GET /v1/login` has it"
        )
