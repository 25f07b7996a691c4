"""The routes of API keys, for administrators.

    POST   /v1/keys                  make a key
    GET    /v1/keys                  list the keys
    GET    /v1/keys/{key_id}         read one
    POST   /v1/keys/{key_id}/rotate  give it a new secret
    DELETE /v1/keys/{key_id}         revoke it

The secret is in the answer that makes it, and nowhere else.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from runfold.http.bodies import JSON, JsonRoute
from runfold.http.principal import principal_of
from runfold.http.problems import problem_responses
from runfold.http.requests import RequestBody
from runfold.identity.administration import ApiKey, KeyAdministration, SecretKey
from runfold.identity.keys import OVERLAP_SECONDS, OVERLAP_SECONDS_MAX, KeyGrant
from runfold_schemas.errors import InvalidEventError

KeyId = Annotated[str, Path(description="The key's id: the part after `rf_`.", examples=["0123456789abcdef"])]


class Rotation(RequestBody):
    """How long the old secret stays valid."""

    overlap_seconds: float = Field(
        OVERLAP_SECONDS,
        ge=0,
        le=OVERLAP_SECONDS_MAX,
        description="For so long the old secret is valid beside the new one; 0 ends it at once.",
    )


class NewApiKey(ApiKey):
    """A key with its secret."""

    key: str = Field(description="What clients send. It cannot be read again.", examples=["rf_..._..."])


class ApiKeys(BaseModel):
    """All keys, the oldest first."""

    keys: list[ApiKey]


_problems = partial(
    problem_responses,
    {
        404: "There is no such key or tenant, or the key was revoked.",
        413: "The body is too large.",
        422: "A part of the request is wrong. `field` names it.",
        503: "Kafka does not answer. Retry.",
    },
)


def build_key_router(keys: KeyAdministration) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=JsonRoute)

    def within(request: Request) -> KeyAdministration:
        return keys.within(principal_of(request).tenant)

    _add_reads(router, within)
    _add_changes(router, within)
    return router


_Within = Callable[[Request], KeyAdministration]
"""The verbs for the tenant of a request."""


def _add_reads(router: APIRouter, within: _Within) -> None:
    @router.get("", summary="List API keys", response_model=ApiKeys, responses=_problems(422))
    async def list_keys(request: Request) -> Response:
        """List the keys of the tenant, also those that have expired or were revoked, without their
        secrets. An operator gets the keys of all tenants.
        """
        return _answer(ApiKeys(keys=await within(request).list()))

    @router.get("/{key_id}", summary="Read an API key", response_model=ApiKey, responses=_problems(404, 422))
    async def read_key(key_id: KeyId, request: Request) -> Response:
        """Read a key without its secret."""
        return _answer(await within(request).get(key_id))


def _add_changes(router: APIRouter, within: _Within) -> None:
    @router.post(
        "",
        status_code=HTTPStatus.CREATED,
        summary="Make an API key",
        response_model=NewApiKey,
        responses=_problems(404, 413, 422),
    )
    async def make_key(grant: KeyGrant, request: Request) -> Response:
        """Make a key. `key` in the answer is what clients send, and cannot be read again."""
        if grant.expires_at is not None and grant.expires_at <= datetime.now(UTC):
            raise InvalidEventError("expires_at is in the past", field="expires_at")
        secret = await within(request).add(grant, by=principal_of(request).subject)
        return _answer_secret(secret, HTTPStatus.CREATED, location=f"/v1/keys/{secret.info.key_id}")

    @router.post(
        "/{key_id}/rotate",
        summary="Rotate an API key",
        response_model=NewApiKey,
        responses=_problems(404, 413, 422),
    )
    async def rotate_key(key_id: KeyId, rotation: Rotation, request: Request) -> Response:
        """Give a key a new secret. Its id, scopes and limits stay. The old secret stays valid for
        the overlap, so that clients can change over.
        """
        return _answer_secret(await within(request).rotate(key_id, overlap_seconds=rotation.overlap_seconds))

    @router.delete(
        "/{key_id}", summary="Revoke an API key", response_model=ApiKey, responses=_problems(404, 422)
    )
    async def revoke_key(key_id: KeyId, request: Request) -> Response:
        """Revoke a key for good. All services refuse it within a second."""
        return _answer(await within(request).revoke(key_id, by=principal_of(request).subject))


def _answer(
    document: BaseModel, status: HTTPStatus = HTTPStatus.OK, *, location: str | None = None
) -> Response:
    headers = {"Cache-Control": "no-store"} | ({"Location": location} if location else {})
    return Response(document.model_dump_json(), status, headers, media_type=JSON)


def _answer_secret(
    secret: SecretKey, status: HTTPStatus = HTTPStatus.OK, *, location: str | None = None
) -> Response:
    return _answer(NewApiKey(key=secret.text, **secret.info.model_dump()), status, location=location)
