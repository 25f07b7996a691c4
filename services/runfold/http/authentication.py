"""Finds out who sends a request, before any route sees it.

`Authentication` reads the credential in a request's headers, and puts the principal that it proves
into the ASGI scope. Without a valid credential the answer is 401. Only the paths of `is_public`
are answered to everybody.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runfold.http.cookies import cookie_credential
from runfold.http.event_stream import EVENT_STREAM
from runfold.http.principal import Principal, set_principal
from runfold.http.refusals import refusal_of
from runfold_schemas.errors import RunfoldError, UnauthenticatedError

_PUBLIC: Final = frozenset({"/", "/docs", "/openapi.json", "/v1/login/oidc", "/v1/login/oidc/done"})
_PUBLIC_FOLDERS: Final = ("/health/", "/docs/assets/", "/console/")

_CREDENTIAL_HEADERS: Final = (b"authorization", b"x-goog-api-key")
"""Google's clients send an API key in a header of their own."""

_MISSING: Final = (
    "the request has no credential: send an API key or a token as `Authorization: Bearer ...`;"
    " `runfold keys add` makes a key"
)
_CHALLENGE_MISSING: Final = 'Bearer realm="runfold"'
_CHALLENGE: Final = 'Bearer realm="runfold", error="invalid_token"'

_KEY_IN_URL: Final = re.compile(rb"rf_[0-9a-z]{1,32}_[0-9A-Za-z_-]{20}")
_PARAMETERS_OF_KEYS: Final = frozenset({"access_token", "api_key", "apikey", "authorization", "key"})


@dataclass(frozen=True, slots=True)
class Proof:
    """A principal, and whether the credential that proved it is still valid: a stream may last
    longer than the credential.
    """

    principal: Principal
    is_valid: Callable[[], bool]


Authenticate = Callable[[str], Awaitable[Proof]]
"""Returns what an API key or a token proves. Raises `UnauthenticatedError`, and `UnavailableError`
if that is not known yet.
"""


def is_public(path: str) -> bool:
    """Whether the path is answered without a credential: the probes, the login by a provider, and
    the files of the console and of the documentation, which a browser opens without headers of
    ours.
    """
    return path in _PUBLIC or path.startswith(_PUBLIC_FOLDERS)


async def proved(authenticate: Authenticate, scope: Scope) -> Principal | None:
    """The principal of a request to a public path, if it has a valid credential."""
    try:
        credential = header_credential(scope)
        return None if credential is None else (await authenticate(credential)).principal
    except RunfoldError:
        return None


class Authentication:
    """ASGI middleware. `authenticate` is None if the service has no authentication; then every
    request has the principal `local`.
    """

    def __init__(self, app: ASGIApp, *, local: Principal, authenticate: Authenticate | None = None) -> None:
        self._app = app
        self._local = local
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._authenticate is None:
            set_principal(scope, self._local)
            await self._app(scope, receive, send)
        elif is_public(scope["path"]):
            await self._app(scope, receive, send)
        else:
            await self._call_authenticated(self._authenticate, scope, receive, send)

    async def _call_authenticated(
        self, authenticate: Authenticate, scope: Scope, receive: Receive, send: Send
    ) -> None:
        challenge = _CHALLENGE
        try:
            _check_url(scope)
            credential = header_credential(scope)
            if credential is None:
                credential = cookie_credential(scope)
            if credential is None:
                challenge = _CHALLENGE_MISSING
                raise UnauthenticatedError(_MISSING)  # answered as the others
            proof = await authenticate(credential)
        except RunfoldError as error:
            answer = refusal_of(error, scope["path"])
            if isinstance(error, UnauthenticatedError):
                answer.headers["WWW-Authenticate"] = challenge
            await answer(scope, receive, send)
            return
        set_principal(scope, proof.principal)
        try:
            await self._app(scope, _received_while_valid(proof, receive), _while_valid(proof, send))
        except _CredentialEndedError:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _CredentialEndedError(Exception):
    """The credential has expired or was revoked while its holder followed a run."""


def _received_while_valid(proof: Proof, receive: Receive) -> Receive:
    """Receives a request. A body may take hours, and the parts of a response are appended while
    they arrive, so the body breaks off at the end of the credential.
    """

    async def receive_while_valid() -> Message:
        message = await receive()
        return message if proof.is_valid() else {"type": "http.disconnect"}

    return receive_while_valid


def _while_valid(proof: Proof, send: Send) -> Send:
    """Sends an answer. A stream of events has no end of its own, so it ends with the credential."""
    is_endless = False

    async def send_while_valid(message: Message) -> None:
        nonlocal is_endless
        if message["type"] == "http.response.start":
            is_endless = Headers(raw=message["headers"]).get("content-type", "").startswith(EVENT_STREAM)
        elif is_endless and not proof.is_valid():
            raise _CredentialEndedError
        await send(message)

    return send_while_valid


def _check_url(scope: Scope) -> None:
    """Raises `UnauthenticatedError` for a credential in the URL: proxies and browsers keep URLs."""
    url = unquote_to_bytes(scope["raw_path"] + b"?" + scope["query_string"])
    names = {name for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)}
    if _KEY_IN_URL.search(url) or names & _PARAMETERS_OF_KEYS:
        raise UnauthenticatedError(
            "a credential in a URL is refused, because logs and histories keep URLs: send it in the header"
            " Authorization, and revoke the key if others may have seen the URL"
        )


def header_credential(scope: Scope) -> str | None:
    """The API key or the token in the headers. Raises `UnauthenticatedError` if there are several,
    because servers differ in which of them counts.
    """
    values = [
        value.decode("latin-1") if name == b"x-goog-api-key" else _bearer(value.decode("latin-1"))
        for name, value in scope["headers"]
        if name in _CREDENTIAL_HEADERS
    ]
    if len(values) > 1:
        raise UnauthenticatedError("the request has several credentials: send one")
    return values[0] if values else None


def _bearer(value: str) -> str:
    scheme, _, credential = value.strip().partition(" ")
    if scheme.lower() != "bearer" or not credential.strip():
        raise UnauthenticatedError("the header Authorization is not `Bearer` and an API key or a token")
    return credential.strip()
