"""The limits of an API key as a client of the HTTP API meets them."""

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from tests.ingesting import is_ready
from tests.processes import until
from tests.querying import projected, served

from runfold import HttpMemories, HttpSessions, Memory, Runfold, UserMessage
from runfold.api.app import build_app
from runfold.http.principal import Scope
from runfold.identity.administration import KeyAdministration
from runfold.identity.keys import KeyGrant
from runfold.settings import Settings
from runfold_schemas.errors import (
    MemoryNotFoundError,
    OutsideLimitsError,
    ScopeMissingError,
    SessionNotFoundError,
)


@pytest.fixture(scope="module")
async def url(settings: Settings) -> AsyncIterator[str]:
    """Of a service that takes real keys."""
    app = build_app(settings.model_copy(update={"authentication": "required"}))
    async with projected(settings), served(app) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield str(client.base_url)


Key = Callable[..., Awaitable[dict[str, str]]]


@pytest.fixture(scope="module")
def key(settings: Settings, runfold: Runfold, url: str) -> Key:
    """Makes a key, waits until the service knows it, and returns the headers that send it."""
    administration = KeyAdministration(settings.log(), lambda: runfold.connection.publisher)

    async def make(name: str, *scopes: Scope, **limits: tuple[str, ...]) -> dict[str, str]:
        made = await administration.add(KeyGrant(name=name, scopes=scopes, **limits), by="a test")
        headers = {"Authorization": f"Bearer {made.text}"}
        await until(lambda: is_known(url, headers), what="the key")
        return headers

    return make


async def is_known(url: str, headers: dict[str, str]) -> bool:
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        return (await client.get("/metrics")).status_code != 401


async def test_clients_get_the_errors_of_their_keys_limits(url: str, key: Key):
    every = (Scope.publish, Scope.read, Scope.memories)
    ann = HttpSessions(url, headers=await key("ann", *every, users=("ann",)))
    bob = HttpSessions(url, headers=await key("bob", *every, users=("bob",)))
    reader = HttpSessions(url, headers=await key("reader", Scope.read))
    session = await ann.create(app="desk", user="ann")
    said = UserMessage(message="hello")

    await ann.append(session.session_id, said, state_delta={"user:language": "fr"})
    with pytest.raises(SessionNotFoundError):
        await bob.append(session.session_id, said)
    with pytest.raises(SessionNotFoundError):
        await bob.view(session.session_id)
    with pytest.raises(OutsideLimitsError, match="user 'ann'") as outside:
        await bob.create(app="desk", user="ann")
    with pytest.raises(OutsideLimitsError, match="`app:` state"):
        await ann.append(session.session_id, said, state_delta={"app:motd": "mine"})
    with pytest.raises(ScopeMissingError, match="publish") as missing:
        await reader.append(session.session_id, said)

    assert (outside.value.limit, outside.value.value) == ("users", "ann")
    assert missing.value.missing_scope == "publish"
    assert (await reader.view(session.session_id)).state == {"user:language": "fr"}
    for client in (ann, bob, reader):
        await client.close()


async def test_memories_of_another_user_are_not_found(url: str, key: Key):
    owner = HttpMemories(url, headers=await key("owner", Scope.memories))
    bob = HttpMemories(url, headers=await key("bob", Scope.memories, users=("bob",)))
    await owner.create_bank("trips")
    fact = await owner.create("trips", Memory(fact="Prefers window seats", scope={"user": "ann"}))

    for refused in (bob.get, bob.delete):
        with pytest.raises(MemoryNotFoundError):
            await refused("trips", fact.memory_id)
    with pytest.raises(OutsideLimitsError):
        await bob.purge("trips")

    assert (await owner.get("trips", fact.memory_id)).memory.fact == "Prefers window seats"
    for client in (owner, bob):
        await client.close()


async def test_metrics_need_a_key_and_no_scope(url: str, key: Key):
    prometheus = await key("prometheus")
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers=prometheus)).status_code == 200
        assert (await client.get("/v1/runs", headers=prometheus)).status_code == 403
