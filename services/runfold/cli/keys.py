"""`runfold keys`: the API keys, changed in their log. The JSON documents are those of the HTTP
API.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from pydantic import ValidationError

from runfold.cli.memory_lines import local_time, print_json, print_rows
from runfold.cli.running import report
from runfold.cli.terminal import new_console, print_line
from runfold.identity.administration import ApiKey, KeyAdministration, SecretKey
from runfold.identity.keys import OVERLAP_SECONDS, OVERLAP_SECONDS_MAX, SCOPES, KeyGrant
from runfold.log.publisher import Publisher
from runfold.settings import Settings
from runfold.tenants.registry import check_tenant
from runfold_schemas.codec import first_fault
from runfold_schemas.errors import ConfigurationError

_OPERATOR: Final = "operator"
"""Who makes a key by this command: Kafka knows the operator, and we do not."""


async def add(
    settings: Settings,
    *,
    name: str,
    tenant: str | None,
    scopes: Sequence[str] | None,
    agents: Sequence[str] | None,
    users: Sequence[str] | None,
    expires: timedelta | None,
    as_json: bool,
) -> None:
    """Makes a key and prints it."""
    fields = {
        "name": name,
        "tenant": tenant,
        "scopes": SCOPES if scopes is None else scopes,
        "agents": agents,
        "users": users,
        "expires_at": None if expires is None else datetime.now(UTC) + expires,
    }
    try:
        grant = KeyGrant.model_validate(fields)
    except ValidationError as error:
        raise ConfigurationError(first_fault(error)[1].removeprefix("Value error, ")) from error
    async with _administration(settings) as keys:
        _print_secret(await keys.add(grant, by=_OPERATOR), as_json=as_json)


async def ls(settings: Settings, *, tenant: str | None, as_json: bool) -> None:
    """Lists all keys, or those of a tenant."""
    async with _administration(settings) as keys:
        listed = await keys.list(tenant)
    if as_json:
        for key in listed:
            print_json(key)
        return
    print_rows(
        new_console(),
        ("key", "tenant", "name", "status", "scopes", "limits", "created", "expires"),
        (_row(key, "" if key.tenant == settings.prefix else key.tenant) for key in listed),
    )


async def rotate(settings: Settings, *, key_id: str, overlap: timedelta | None, as_json: bool) -> None:
    """Gives a key a new secret and prints it."""
    seconds = OVERLAP_SECONDS if overlap is None else overlap.total_seconds()
    if seconds > OVERLAP_SECONDS_MAX:
        raise ConfigurationError("--overlap: the old secret can stay valid for 90 days at the most")
    async with _administration(settings) as keys:
        _print_secret(await keys.rotate(key_id, overlap_seconds=seconds), as_json=as_json)


async def revoke(settings: Settings, *, key_id: str) -> None:
    """Revokes a key."""
    async with _administration(settings) as keys:
        key = await keys.revoke(key_id, by=_OPERATOR)
    report("", f"the key {key.key_id} ({key.name}) is revoked: services refuse it within a second")


@asynccontextmanager
async def _administration(settings: Settings) -> AsyncIterator[KeyAdministration]:
    log = settings.log("runfold/keys")
    async with Publisher.connect(log) as publisher:
        yield KeyAdministration(log, lambda: publisher, check_tenant=partial(check_tenant, settings))


def _print_secret(secret: SecretKey, *, as_json: bool) -> None:
    if as_json:
        print_json(secret.info, key=secret.text)
        return
    key = secret.info
    until = f", until {local_time(key.expires_at)}" if key.expires_at else ""
    report("", f"key {key.key_id} ({key.name}): {_allowed(key)}{until}. Store it now:")
    if key.old_secret_until:
        report("", f"the old secret is valid until {local_time(key.old_secret_until)}")
    print_line(secret.text)


def _row(key: ApiKey, tenant: str) -> tuple[str, ...]:
    limits = [
        f"{name} {', '.join(ids) or 'none'}"
        for name, ids in (("agents", key.agents), ("users", key.users))
        if ids is not None
    ]
    return (
        key.key_id,
        tenant,
        key.name,
        key.status,
        ", ".join(key.scopes),
        "; ".join(limits),
        local_time(key.created_at),
        local_time(key.expires_at) if key.expires_at else "never",
    )


def _allowed(key: ApiKey) -> str:
    return f"may {', '.join(key.scopes)}" if key.scopes else "has no scopes"
