"""The public keys of an identity provider (JWKS), fetched when they are needed and then kept."""

import json
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPMessage
from typing import IO, Any, Final

from runfold.identity.fetched import PAUSE_SECONDS, Fetched

_TIMEOUT_SECONDS: Final = 5.0
_ANSWER_BYTES_MAX: Final = 1024 * 1024
_DISCOVERY: Final = "/.well-known/openid-configuration"

Jwk = Mapping[str, Any]


class ProviderKeys:
    """Without `url`, the provider's own description says where its keys are."""

    def __init__(self, issuer: str, *, url: str | None = None, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._keys = Fetched(
            f"the keys of {issuer}", lambda: _fetch_keys(issuer, url), pause_seconds=pause_seconds
        )

    async def find(self, key_id: str | None) -> Jwk | None:
        """The key with this id; without an id, the only key. None if there is no such key. Raises
        `UnavailableError` if no keys could be fetched.
        """
        if (key := _find(await self._keys.get(), key_id)) is None:
            await self._keys.renew()
            key = _find(await self._keys.get(), key_id)
        return key

    async def close(self) -> None:
        await self._keys.close()


class SameScheme(urllib.request.HTTPRedirectHandler):
    """Anybody on the way could answer plain HTTP, with signing keys of their own."""

    def redirect_request(  # noqa: PLR0917  # the signature of the base class
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.data is not None:
            raise ValueError(f"{req.full_url} redirects a request with a code to {newurl}")
        if not newurl.startswith(f"{req.type}:"):
            raise ValueError(f"{req.full_url} redirects to {newurl}, which has another scheme")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_opener = urllib.request.build_opener(SameScheme)


def _find(keys: Sequence[Jwk], key_id: str | None) -> Jwk | None:
    if key_id is None:
        return keys[0] if len(keys) == 1 else None
    return next((key for key in keys if key.get("kid") == key_id), None)


def _fetch_keys(issuer: str, url: str | None) -> tuple[Jwk, ...]:
    keys = _fetch_json(url or _discovered(issuer)).get("keys")
    if not isinstance(keys, list):
        raise ValueError("the answer has no list of keys")  # noqa: TRY004  # a value of the provider
    return tuple(key for key in keys if isinstance(key, dict) and key.get("use", "sig") == "sig")


def fetch_description(issuer: str) -> Mapping[str, Any]:
    """What the provider says of itself. Raises one of `FETCH_ERRORS`."""
    description = _fetch_json(issuer.rstrip("/") + _DISCOVERY)
    if description.get("issuer") != issuer:
        raise ValueError(
            f"the provider names itself {description.get('issuer')!r}: set RUNFOLD_OIDC_ISSUER to exactly"
            " that if it is yours"
        )
    return description


def url_in(description: Mapping[str, Any], name: str, *, issuer: str) -> str:
    """A URL of the provider in its description. Raises `ValueError`."""
    url = description.get(name)
    if not isinstance(url, str) or not url.startswith(issuer.partition(":")[0] + ":"):
        raise ValueError(f"the provider's description has no {name} with the issuer's scheme")
    return url


def _discovered(issuer: str) -> str:
    return url_in(fetch_description(issuer), "jwks_uri", issuer=issuer)


def _fetch_json(url: str) -> Mapping[str, Any]:
    return fetch_json(urllib.request.Request(url, headers={"Accept": "application/json"}))  # noqa: S310  # settings allow http(s) only


def fetch_json(request: urllib.request.Request) -> Mapping[str, Any]:
    """The JSON object that the provider answers. Raises one of `FETCH_ERRORS`."""
    with _opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
        body = answer.read(_ANSWER_BYTES_MAX + 1)
    if len(body) > _ANSWER_BYTES_MAX:
        raise ValueError(f"the answer has more than {_ANSWER_BYTES_MAX:,} bytes")
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise ValueError("the answer is not a JSON object")  # noqa: TRY004  # a value of the provider
    return fields
