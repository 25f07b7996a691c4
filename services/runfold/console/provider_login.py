"""The routes of a login by an identity provider. A browser goes to the first, comes back to the
second from the provider, and goes on to the console, whose address the settings name.
"""

import logging
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from runfold.http.cookies import LOGIN_SECONDS, delete_pending, pending_of, set_cookie, set_pending
from runfold.http.problems import problem
from runfold.identity.provider_login import ProviderLogin
from runfold.telemetry.log_limit import LimitedLog
from runfold_schemas.errors import RunfoldError, UnauthenticatedError, UnavailableError

_HEADERS: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

_log = LimitedLog(
    logging.getLogger(__name__), "failed logins", level=logging.WARNING, lines_max=10, seconds=60.0
)


def build_provider_login_router(login: ProviderLogin | None) -> APIRouter:
    """The routes, which are not found without a `login`."""
    routes = APIRouter(prefix="/v1/login/oidc", include_in_schema=False)

    @routes.get("")
    async def begin_login() -> Response:
        if login is None:
            return _missing()
        try:
            page, secret = await login.begin()
        except (UnauthenticatedError, UnavailableError) as error:
            return _failed(login, error)
        answer = _redirect(page)
        set_pending(answer, secret)
        return answer

    async def finish_login(request: Request) -> Response:
        if login is None:
            return _missing()
        try:
            if (secret := pending_of(request.scope)) is None:
                raise UnauthenticatedError(
                    f"the browser did not begin a login here within {LOGIN_SECONDS // 60} minutes"
                )
            credential = await login.finish(secret, request.query_params)
            answer = _redirect(login.console_url)
            set_cookie(answer, credential, path=login.cookie_path)
        except RunfoldError as error:
            answer = _failed(login, error)
        # The provider redeems a code once, so the browser needs the secret no more.
        delete_pending(answer)
        return answer

    # Not a route of FastAPI's, which would refuse the parameters that each provider adds.
    routes.add_route("/v1/login/oidc/done", finish_login, methods=["GET"], include_in_schema=False)
    return routes


def _failed(login: ProviderLogin, error: RunfoldError) -> Response:
    _log.log(str(error), f"a login by the identity provider failed: {error}")
    return _redirect(f"{login.console_url}#login-failed")


def _redirect(url: str) -> Response:
    return RedirectResponse(url, HTTPStatus.SEE_OTHER, headers=_HEADERS)


def _missing() -> Response:
    return problem(HTTPStatus.NOT_FOUND, "there is no login by an identity provider: RUNFOLD_OIDC_CLIENT_ID")
