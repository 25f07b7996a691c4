"""Keys of tenants: whose they are, and how long they count."""

from collections.abc import AsyncIterator
from functools import partial
from uuid import uuid4

import httpx
import pytest
from tests.principals import settings_with_keys
from tests.processes import soonest, until
from tests.querying import ready_api

from runfold.http.principal import Scope
from runfold.identity.administration import KeyAdministration
from runfold.identity.keys import KeyGrant
from runfold.log.compacted import create
from runfold.log.publisher import Publisher
from runfold.settings import Settings
from runfold.tenants.registry import (
    Tenant,
    check_tenant,
    mark_dropping,
    put_tenant,
    remove_tenant,
    tenant_topic,
)
from runfold_schemas.errors import TenantNotFoundError

EFFECT_SECONDS = 1.0
"""Within this time a change takes effect in every process."""


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str) -> Settings:
    return settings_with_keys(kafka, mongo)


class Registry:
    """What `runfold tenants` does with the registry."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        self._topic = tenant_topic(settings)
        self._publisher = publisher

    async def add(self, name: str = "") -> str:
        name = name or f"t{uuid4().hex[:8]}"
        await put_tenant(self._publisher, self._topic, Tenant(name=name, database=name, partitions=1))
        return name

    async def mark(self, name: str) -> None:
        await mark_dropping(self._publisher, self._topic, name)

    async def remove(self, name: str) -> None:
        await remove_tenant(self._publisher, self._topic, name)


@pytest.fixture(scope="module")
async def registry(settings: Settings, publisher: Publisher) -> Registry:
    await create(settings.log(), tenant_topic(settings))
    return Registry(settings, publisher)


@pytest.fixture(scope="module")
async def keys(settings: Settings, publisher: Publisher) -> KeyAdministration:
    """The operator's."""
    check = partial(check_tenant, settings)
    return KeyAdministration(settings.log(), lambda: publisher, check_tenant=check)


@pytest.fixture(scope="module")
async def api(settings: Settings, registry: Registry) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_api(settings) as client:
        yield client


async def key_of(keys: KeyAdministration, api: httpx.AsyncClient, tenant: str | None, *scopes: str) -> str:
    """An administrator's key, which the API knows."""
    grant = KeyGrant(name="any", tenant=tenant, scopes=tuple(Scope(scope) for scope in scopes))
    key = (await keys.add(grant, by="a test")).text
    await until(partial(has_status, api, key, 200 if "administer" in scopes else 403))
    return key


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def has_status(api: httpx.AsyncClient, key: str, status: int) -> bool:
    return (await api.get("/v1/keys", headers=bearer(key))).status_code == status


async def test_an_administrator_of_a_tenant_has_the_keys_of_the_tenant_only(api, keys, registry):
    acme, initech = await registry.add(), await registry.add()
    head = bearer(await key_of(keys, api, acme, "administer"))
    other = (await keys.add(KeyGrant(name="other", tenant=initech), by="a test")).info

    made = await api.post("/v1/keys", headers=head, json={"name": "ours"})
    listed = (await api.get("/v1/keys", headers=head)).json()["keys"]

    assert made.status_code == 201
    assert made.json()["tenant"] == acme
    assert {key["tenant"] for key in listed} == {acme}
    assert made.json()["key_id"] in {key["key_id"] for key in listed}
    for method, path, body in (
        ("GET", f"/v1/keys/{other.key_id}", None),
        ("POST", f"/v1/keys/{other.key_id}/rotate", {}),
        ("DELETE", f"/v1/keys/{other.key_id}", None),
    ):
        answer = await api.request(method, path, headers=head, json=body)
        unknown = await api.request(method, path.replace(other.key_id, "0" * 16), headers=head, json=body)
        assert answer.status_code == 404
        assert answer.text == unknown.text.replace("0" * 16, other.key_id)
    for tenant in (initech, "no-such-tenant"):
        refused = await api.post("/v1/keys", headers=head, json={"name": "theirs", "tenant": tenant})
        assert refused.status_code == 403
    assert (await keys.get(other.key_id)).status == "active"


async def test_an_administrator_of_the_installation_has_all_keys(api, keys, registry, settings):
    acme = await registry.add()
    head = bearer(await key_of(keys, api, None, "administer"))

    made = await api.post("/v1/keys", headers=head, json={"name": "for acme", "tenant": acme})
    unknown = await api.post("/v1/keys", headers=head, json={"name": "x", "tenant": "no-such-tenant"})
    own = await api.post("/v1/keys", headers=head, json={"name": "for us"})
    listed = (await api.get("/v1/keys", headers=head)).json()["keys"]
    revoked = await api.delete(f"/v1/keys/{made.json()['key_id']}", headers=head)

    assert (made.status_code, made.json()["tenant"]) == (201, acme)
    assert (own.status_code, own.json()["tenant"]) == (201, settings.prefix)
    assert (unknown.status_code, unknown.json()["tenant"]) == (404, "no-such-tenant")
    assert {acme, settings.prefix} <= {key["tenant"] for key in listed}
    assert revoked.json()["status"] == "revoked"


async def test_metrics_are_the_operators(api, keys, registry):
    acme = await registry.add()

    ours = await api.get("/metrics", headers=bearer(await key_of(keys, api, None)))
    theirs = await api.get("/metrics", headers=bearer(await key_of(keys, api, acme)))

    assert ours.status_code == 200
    assert theirs.status_code == 403
    assert "operator" in theirs.json()["detail"]


@pytest.mark.parametrize(("verb", "reason"), [("mark", "being dropped"), ("remove", "does not exist")])
async def test_keys_of_a_tenant_that_goes_are_refused_within_a_second(api, keys, registry, verb, reason):
    async def is_refused() -> float:
        acme = await registry.add()
        key = await key_of(keys, api, acme, "administer")
        await getattr(registry, verb)(acme)
        seconds = await until(partial(has_status, api, key, 401))
        with pytest.raises(TenantNotFoundError, match=reason):
            await keys.add(KeyGrant(name="late", tenant=acme), by="a test")
        return seconds

    assert await soonest(is_refused, seconds=EFFECT_SECONDS) < EFFECT_SECONDS


async def test_a_key_that_is_made_while_its_tenant_is_dropped_is_revoked(settings, publisher, registry, keys):
    acme = await registry.add()
    looks = 0

    async def check(tenant: str) -> None:
        nonlocal looks
        await check_tenant(settings, tenant)
        looks += 1
        if looks == 1:
            await registry.mark(acme)

    overtaken = KeyAdministration(settings.log(), lambda: publisher, check_tenant=check)
    with pytest.raises(TenantNotFoundError):
        await overtaken.add(KeyGrant(name="late", tenant=acme), by="a test")

    assert [key.status for key in await keys.list(acme)] == ["revoked"]
