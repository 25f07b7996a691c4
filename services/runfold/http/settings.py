"""How an HTTP service is reached, and its limits. This module needs pydantic only."""

import logging
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict

from runfold.http.principal import Scope
from runfold_schemas.errors import ConfigurationError

_log = logging.getLogger(__name__)

_HOST = re.compile(r"\*|(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]")

_ORIGIN = re.compile(r"\*|https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")


def checked_hosts(value: str) -> str:
    """`value`, if it is a list of names that a `Host` header may have. Otherwise raises
    `ValueError`.
    """
    for host in names_in(value):
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"{host!r} is not a host: write names without ports, such as api.example.com or"
                " *.example.com, separated by commas"
            )
    return value


def checked_origins(value: str) -> str:
    """`value`, if it is a list of origins of web pages. Otherwise raises `ValueError`."""
    for origin in names_in(value):
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin!r} is not an origin: write https://app.example.com, without a path; several are"
                " separated by commas"
            )
    return value


Hosts = Annotated[str, AfterValidator(checked_hosts)]
Origins = Annotated[str, AfterValidator(checked_origins)]


OidcScopes = Mapping[str, tuple[Scope, ...]]
OIDC_SCOPES: Final[OidcScopes] = {f"runfold:{scope}": (scope,) for scope in Scope}
"""The words of tokens, and the scopes that they give, by default."""


class HttpSettings(BaseModel):
    """The address of an HTTP service, the requests that it accepts, and the limits of its
    connections.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = 8080
    authentication: Literal["required", "none"] | None = None
    allowed_hosts: Hosts | None = None
    allowed_origins: Origins | None = None
    client_timeout_seconds: float = 20.0
    keep_alive_seconds: int = 5
    connections_max: int = 2_000
    audit_log: str | None = None


def check_exposure(settings: HttpSettings) -> None:
    """Raises `ConfigurationError` if other machines would reach a service that knows nobody."""
    if settings.authentication is None and not is_loopback(settings.host):
        raise ConfigurationError(
            f"RUNFOLD_HOST={settings.host} lets other machines in, and there is no authentication: set"
            " RUNFOLD_AUTHENTICATION=required and make a key with `runfold keys add`, or set"
            " RUNFOLD_AUTHENTICATION=none if a gateway or the network decides who comes here"
        )


def warn_of_exposure(settings: HttpSettings) -> None:
    """Says in the log what it means if other machines reach a service that knows nobody."""
    if settings.authentication == "none" and not is_loopback(settings.host):
        _log.warning(
            "RUNFOLD_AUTHENTICATION=none: whoever reaches %s:%d may read and change everything, unless a"
            " gateway or the network decides who comes here",
            settings.host,
            settings.port,
        )


def check_provider_url(value: str) -> str:
    """The URL. Raises `ValueError` unless what is behind it can be trusted: by https, or on this
    machine.
    """
    url = urlsplit(value)
    is_local = url.scheme == "http" and is_loopback(url.hostname or "")
    if not url.hostname or not (url.scheme == "https" or is_local):
        raise ValueError("a URL of an identity provider, or of a login, begins with https:// and has a host")
    if url.query or url.fragment or url.username:
        raise ValueError(
            "a URL of an identity provider, or of a login, has no query, no fragment and no user"
        )
    return value


ProviderUrl = Annotated[str, AfterValidator(check_provider_url)]


def check_oidc(
    *,
    issuer: str | None,
    audience: str | None,
    required: bool,
    client_id: str | None,
    console_url: str | None,
) -> None:
    """Raises `ValueError` for settings of an identity provider that do not fit together."""
    if issuer is not None and not required:
        raise ValueError("oidc_issuer=... has no effect without authentication=required")
    if issuer is not None and audience is None:
        raise ValueError("oidc_issuer=... needs oidc_audience=...: tokens for others would count here")
    if client_id is not None and (issuer is None or console_url is None):
        raise ValueError("oidc_client_id=... needs oidc_issuer=... and oidc_console_url=...")


def names_in(value: str | None) -> tuple[str, ...]:
    """The names in a list that is separated by commas, in lower case."""
    return tuple(name.strip().lower() for name in (value or "").split(",") if name.strip())


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a service that listens on `host`, or asks for `host`."""
    name = host.lower().removeprefix("[").removesuffix("]")
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
