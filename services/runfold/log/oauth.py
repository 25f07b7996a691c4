"""Tokens for Kafka's mechanism OAUTHBEARER. They come from an OpenID Connect endpoint, by client
credentials, or are signed for Amazon MSK with the AWS credentials of the process.
"""

import asyncio
import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlencode

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import SaslAuthenticationFailed

ENDPOINT: Final = "sasl_oauthbearer_token_endpoint_url"
CLIENT_ID: Final = "sasl_oauthbearer_client_credentials_client_id"
CLIENT_SECRET: Final = "sasl_oauthbearer_client_credentials_client_secret"  # noqa: S105  # a name
SCOPE: Final = "sasl_oauthbearer_scope"
MSK_REGION: Final = "sasl_oauthbearer_msk_region"
PROVIDER: Final = "sasl_oauth_token_provider"

OPTIONS: Final = (ENDPOINT, CLIENT_ID, CLIENT_SECRET, SCOPE, MSK_REGION)
"""Our options. aiokafka gets a token provider instead of them."""

_USED_SHARE: Final = 0.8
"""The share of its lifetime for which a token is used, as by Kafka's own clients."""

_TIMEOUT_SECONDS: Final = 10.0

_ANSWER_BYTES_MAX: Final = 64 * 1024

Token = tuple[str, float]
"""A token, and for how many seconds it is valid."""


def check(options: Mapping[str, Any]) -> None:
    """Raises `ValueError` if the options of OAUTHBEARER do not say where tokens come from."""
    sources = [name for name in (PROVIDER, ENDPOINT, MSK_REGION) if options.get(name)]
    if len(sources) != 1:
        raise ValueError(f"sasl_mechanism OAUTHBEARER needs one of {ENDPOINT}, {MSK_REGION} and {PROVIDER}")
    if sources == [ENDPOINT]:
        if not str(options[ENDPOINT]).startswith(("https://", "http://")):
            raise ValueError(f"{ENDPOINT} begins with https:// or http://")
        for name in (CLIENT_ID, CLIENT_SECRET):
            if not options.get(name):
                raise ValueError(f"{ENDPOINT} needs {name}, which is missing")
    if sources == [MSK_REGION] and find_spec("aws_msk_iam_sasl_signer") is None:
        raise ValueError(f"{MSK_REGION} needs the extra msk: pip install 'runfold[msk]'")


def token_provider_of(options: Mapping[str, Any]) -> AbstractTokenProvider:
    """The token provider of options that `check` accepts. Equal options share one, and so its
    token.
    """
    if options.get(PROVIDER):
        return options[PROVIDER]
    if options.get(MSK_REGION):
        return _msk(options[MSK_REGION])
    return _oidc(options[ENDPOINT], options[CLIENT_ID], options[CLIENT_SECRET], options.get(SCOPE))


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is untyped
    """Fetches a token when there is none that is valid for long enough. Any thread and any event
    loop may use it.
    """

    def __init__(self, fetch: Callable[[], Token]) -> None:
        self._fetch = fetch
        self._token = ""
        self._used_until = 0.0
        self._fetching = threading.Lock()

    async def token(self) -> str:
        """A valid token. Raises `SaslAuthenticationFailed` if it is refused, `OSError` if the
        endpoint is away.
        """
        return await asyncio.to_thread(self._current)

    def _current(self) -> str:
        with self._fetching:
            if time.monotonic() >= self._used_until:
                began = time.monotonic()
                self._token, seconds = self._fetch()
                self._used_until = began + seconds * _USED_SHARE
            return self._token


@lru_cache(maxsize=16)
def _oidc(endpoint: str, client_id: str, client_secret: str, scope: str | None) -> Tokens:
    return Tokens(lambda: _request_token(endpoint, client_id, client_secret, scope))


@lru_cache(maxsize=16)
def _msk(region: str) -> Tokens:
    return Tokens(lambda: _sign_token(region))


def _request_token(endpoint: str, client_id: str, client_secret: str, scope: str | None) -> Token:
    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    login = base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310  # `check` allows http and https
        endpoint,
        urlencode(form).encode(),
        {"Authorization": f"Basic {login}", "Accept": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310
            answer = json.loads(response.read(_ANSWER_BYTES_MAX))
        return str(answer["access_token"]), float(answer.get("expires_in", 0))
    except urllib.error.HTTPError as error:
        error.close()
        # The answer may repeat the secret, so only the status is shown.
        reason = f"the token endpoint answers {error.code} to client {client_id}"
        if error.code >= 500:
            raise ConnectionError(reason) from error
        raise SaslAuthenticationFailed(reason) from error
    except (KeyError, TypeError, ValueError) as error:
        raise SaslAuthenticationFailed("the token endpoint answers without an access token") from error


def _sign_token(region: str) -> Token:
    # Loaded late: it takes half a second and is there with the extra `msk` only.
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        token, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except (BotoCoreError, ClientError, AttributeError, ValueError) as error:
        # Without credentials the signer fails with an AttributeError.
        raise SaslAuthenticationFailed(f"AWS credentials for {region} are missing: {error}") from error
    return token, expires_ms / 1000 - time.time()
