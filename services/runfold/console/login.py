"""The login of the console: a credential in a header becomes a cookie, which a browser sends by
itself.
"""

from typing import Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from runfold.http.authentication import header_credential
from runfold.http.cookies import cookie_credential, delete_cookie, set_cookie, token_of
from runfold.http.principal import LOCAL, Scope, principal_of
from runfold.http.problems import problem_responses
from runfold_schemas.errors import InvalidEventError

_PROBLEMS: Final = problem_responses(
    {422: "A parameter is wrong. `field` names it.", 503: "Kafka does not answer. Retry."}, 422
)

_NO_STORE: Final = "no-store"


class Login(BaseModel):
    """The holder of the credential, and what the holder may do."""

    authentication: bool = Field(description="False if this service asks nobody for a credential.")
    subject: str = Field(description="`key:` and the key's id, or `token:` and the token's subject.")
    tenant: str
    scopes: list[Scope]
    agents: list[str] | None = Field(description="The agents that the credential is limited to, if any.")
    users: list[str] | None = Field(description="The users that the credential is limited to, if any.")
    token: str | None = Field(
        description="The value of `Runfold-Token`, which changes by cookie need. Null without a cookie."
    )


def build_login_router() -> APIRouter:
    """The routes of the login."""
    routes = APIRouter(prefix="/v1/login", tags=["console"])

    @routes.post("", summary="Log in", responses=_PROBLEMS)
    async def log_in(request: Request, response: Response) -> Login:
        """Log a browser in: send an API key or a token as `Authorization: Bearer ...`. The answer
        sets a cookie, which counts for pages of this service only, as long as the key or the token
        is valid.
        """
        if principal_of(request).subject == LOCAL:
            return _login(request, response, None)
        if (credential := header_credential(request.scope)) is None:
            raise InvalidEventError("send the key or the token to log in with", field="Authorization")
        set_cookie(response, credential)
        return _login(request, response, credential)

    @routes.get("", summary="Read who is logged in", responses=_PROBLEMS)
    async def read_login(request: Request, response: Response) -> Login:
        """Read whose credential the request has, and what its holder may do."""
        is_by_header = header_credential(request.scope) is not None
        return _login(request, response, None if is_by_header else cookie_credential(request.scope))

    @routes.delete("", summary="Log out", status_code=204, responses=_PROBLEMS)
    async def log_out(response: Response) -> None:
        """Log the browser out. The key or the token stays valid."""
        delete_cookie(response)

    return routes


def _login(request: Request, response: Response, credential: str | None) -> Login:
    response.headers["Cache-Control"] = _NO_STORE
    principal = principal_of(request)
    return Login(
        authentication=principal.subject != LOCAL,
        subject=principal.subject,
        tenant=principal.tenant,
        scopes=sorted(principal.scopes),
        agents=None if principal.agents is None else list(principal.agents),
        users=None if principal.users is None else list(principal.users),
        token=None if credential is None else token_of(credential),
    )
