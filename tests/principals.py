"""Principals for tests, each with a credential that has its name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import httpx
from fastapi import FastAPI

from runfold.http.authentication import Authentication, Proof
from runfold.http.principal import Principal, Scope
from runfold.settings import Settings
from runfold_schemas.errors import UnauthenticatedError

EVERY_SCOPE = frozenset(Scope)


def principal(name: str, *scopes: str, **limits: tuple[str, ...]) -> Principal:
    return Principal(
        tenant="runfold",
        subject=f"key:{name}",
        scopes=frozenset(map(Scope, scopes)),
        agents=limits.get("agents"),
        users=limits.get("users"),
    )


PRINCIPALS = [
    principal("everything", *Scope),
    principal("nothing"),
    principal("publish", "publish"),
    principal("read", "read"),
    principal("memories", "memories"),
    principal("administer", "administer"),
    principal("publish-memories", "publish", "memories"),
    principal("desk", "publish", "read", "memories", agents=("desk",)),
    principal("ann", "publish", "read", "memories", users=("ann",)),
    principal("bob", "publish", "read", "memories", users=("bob",)),
    principal("desk-bob", "publish", "read", "memories", agents=("desk",), users=("bob",)),
]


def settings_with_keys(kafka: str, mongo: str, **fields: Any) -> Settings:
    """Settings of services that need API keys, which no other test has."""
    name = f"t{uuid4().hex[:8]}"
    fields = {"authentication": "required", "wait_timeout_seconds": 20, **fields}
    return Settings(kafka=kafka, mongo=mongo, prefix=name, database=name, **fields)


def authenticated(app: FastAPI, principals: Mapping[str, Principal] | None = None) -> FastAPI:
    """The application, with these principals instead of the local one; by default with those above,
    of its own tenant.
    """
    known = principals or {
        each.subject.removeprefix("key:"): replace(each, tenant=app.state.tenant) for each in PRINCIPALS
    }

    async def authenticate(credential: str) -> Proof:
        if credential not in known:
            raise UnauthenticatedError("the key is not known")
        return Proof(known[credential], lambda: True)

    [middleware] = [each for each in app.user_middleware if each.cls is Authentication]
    middleware.kwargs["authenticate"] = authenticate
    return app


class As:
    """A client with the credential of one principal."""

    def __init__(self, client: httpx.AsyncClient, name: str) -> None:
        self._client = client
        self._headers = {"Authorization": f"Bearer {name}"}

    async def __call__(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """The answer; a `body` is sent as JSON."""
        sent = self._headers | dict(headers or {})
        if body is None:
            return await self._client.request(method, path, headers=sent)
        return await self._client.request(method, path, headers=sent, json=body)

    async def made(self, method: str, path: str, body: Any = None) -> Any:
        """The document in the answer to a request that has to succeed."""
        response = await self(method, path, body)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        return response.json() if response.content else None
