"""Logs people in by an identity provider: OpenID Connect's authorization code flow with PKCE.

    browser --begin--> provider's page --code--> finish --code and verifier--> provider's tokens

A browser keeps one random secret during its login. The state, the nonce and PKCE's verifier are
derived from it, so no service stores a login, and the answer counts in that browser only.

Nobody has a credential here, and each answer costs a request to the provider. So the secret is
signed, few requests go on at once, and few may fail in a minute.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from runfold.http.cookies import LOGIN_SECONDS
from runfold.identity.fetched import FETCH_ERRORS, Fetched, reason_of
from runfold.identity.provider_keys import fetch_description, fetch_json, url_in
from runfold.identity.tokens import Tokens
from runfold.settings import Settings
from runfold_schemas.errors import RunfoldError, UnauthenticatedError, UnavailableError

_PROVIDER: Final = "The identity provider"

_THREADS: Final = 8
_REQUESTS_MAX: Final = 16
"""Requests to the provider at once. Further answers are refused."""

_FAILURES_A_MINUTE: Final = 30
"""A provider may lock a client out that sends many wrong codes."""

_SHOWN_MAX: Final = 200


class ProviderLogin:
    """The logins of one service. `client_id` is the service's at the provider."""

    def __init__(self, settings: Settings, tokens: Tokens, *, client_id: str) -> None:
        self._settings: Final = settings
        self._tokens: Final = tokens
        self._client_id: Final = client_id
        self._issuer: Final = settings.oidc_issuer or ""
        self.console_url: Final = (settings.oidc_console_url or "").rstrip("/") + "/"
        self.cookie_path: Final = f"{urlsplit(self.console_url).path}v1"
        self._redirect_uri: Final = f"{self.console_url}v1/login/oidc/done"
        self._description: Final = Fetched(
            f"the description of {self._issuer}", lambda: fetch_description(self._issuer)
        )
        self._threads: Final = ThreadPoolExecutor(_THREADS, "login")
        self._requests = 0
        self._failed_at: Final = deque[float](maxlen=_FAILURES_A_MINUTE)

    async def begin(self) -> tuple[str, str]:
        """The address of the provider's page, and the secret that the browser keeps. Raises
        `UnavailableError`.
        """
        secret = self._signed(f"{secrets.token_urlsafe(32)}.{int(time.time())}")
        page = await self._url("authorization_endpoint")
        challenge = hashlib.sha256(_derived(secret, "verifier").encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_uri,
            "scope": self._settings.oidc_login_scopes,
            "state": _derived(secret, "state"),
            "nonce": _derived(secret, "nonce"),
            "code_challenge": base64.urlsafe_b64encode(challenge).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        return f"{page}{'&' if '?' in page else '?'}{urlencode(query)}", secret

    async def finish(self, secret: str, answer: Mapping[str, str]) -> str:
        """The token that the provider gave for its answer, which is valid for this service. Raises
        `UnauthenticatedError` and `UnavailableError`.
        """
        self._check_secret(secret)
        state = answer.get("state", "")
        if not hmac.compare_digest(state.encode(), _derived(secret, "state").encode()):
            raise UnauthenticatedError("the answer belongs to another login")
        if answer.get("iss", self._issuer) != self._issuer:
            raise UnauthenticatedError("the answer is of another identity provider")
        if "code" not in answer:
            raise UnauthenticatedError(f"the provider says {answer.get('error', 'nothing')[:_SHOWN_MAX]!r}")
        tokens = await self._exchange(answer["code"], _derived(secret, "verifier"))
        id_token = _text(tokens, "id_token")
        await self._tokens.check_id_token(
            id_token, client_id=self._client_id, nonce=_derived(secret, "nonce")
        )
        # A provider without audiences of its own makes only tokens for the client.
        is_for_client = self._settings.oidc_audience == self._client_id
        credential = id_token if is_for_client else _text(tokens, "access_token")
        await self._tokens.read(credential)
        return credential

    async def _exchange(self, code: str, verifier: str) -> Mapping[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "client_id": self._client_id,
            "code_verifier": verifier,
        }
        headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
        if (secret := self._settings.oidc_client_secret) is not None:
            pair = f"{quote(self._client_id, safe='')}:{quote(secret.get_secret_value(), safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        url = await self._url("token_endpoint")
        request = urllib.request.Request(url, urlencode(form).encode(), headers)  # noqa: S310  # its scheme is the issuer's
        return await self._asked(lambda: fetch_json(request))

    async def _url(self, name: str) -> str:
        """A URL in the provider's description."""
        description = await self._description.get()
        try:
            return url_in(description, name, issuer=self._issuer)
        except ValueError as error:
            raise UnavailableError(_PROVIDER, reason=str(error)) from error

    async def _asked(self, ask: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        failures = sum(time.monotonic() - failed_at < 60 for failed_at in self._failed_at)
        if self._requests >= _REQUESTS_MAX or self._requests + failures >= _FAILURES_A_MINUTE:
            raise UnavailableError(_PROVIDER, reason="too many logins go on or fail")
        self._requests += 1
        try:
            # In threads of their own, so that no other work of the process waits for the provider.
            return await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        except FETCH_ERRORS as error:
            self._failed_at.append(time.monotonic())
            raise _failure(error) from error
        finally:
            self._requests -= 1

    def _signed(self, text: str) -> str:
        # Several processes of the API have this secret in common. Without it, only the limits hold.
        secret = self._settings.oidc_client_secret
        key = b"" if secret is None else secret.get_secret_value().encode()
        return f"{text}.{hmac.new(key, f'login {text}'.encode(), hashlib.sha256).hexdigest()}"

    def _check_secret(self, secret: str) -> None:
        text = secret.rpartition(".")[0]
        if not hmac.compare_digest(secret.encode(), self._signed(text).encode()):
            raise UnauthenticatedError("the login was not begun here")
        begun_at = text.rpartition(".")[2]
        if not begun_at.isdecimal() or time.time() - float(begun_at) > LOGIN_SECONDS:
            raise UnauthenticatedError(f"the login took longer than {LOGIN_SECONDS // 60} minutes")


def _derived(secret: str, purpose: str) -> str:
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def _text(tokens: Mapping[str, Any], name: str) -> str:
    if not isinstance(text := tokens.get(name), str):
        raise UnauthenticatedError(f"the provider's answer has no {name}")
    return text


def _failure(error: Exception) -> RunfoldError:
    if not isinstance(error, urllib.error.HTTPError):
        return UnavailableError(_PROVIDER, reason=reason_of(error))
    with error:
        if error.code not in range(400, 500):
            return UnavailableError(_PROVIDER, reason=f"it answered {error.code}")
        return UnauthenticatedError(f"the provider refuses the login: {_reason(error)}")


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        fields = json.loads(error.read(10_000))
        return repr(str(fields["error"])[:_SHOWN_MAX])
    except (*FETCH_ERRORS, KeyError, TypeError):
        return f"{error.code}"
