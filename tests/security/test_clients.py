"""All clients against an API that asks for credentials: with an API key, with a token, and with
neither.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from google.genai import errors as google_errors
from google.oauth2.credentials import Credentials
from tests.identity_provider import AUDIENCE, Provider, identity_provider
from tests.processes import until
from tests.querying import projected, ready_api
from tests.vertex_clients import called, client_of

from runfold import UnauthenticatedError
from runfold.adk import RunfoldMemoryService, RunfoldSessionService
from runfold.http.principal import Scope
from runfold.identity.administration import KeyAdministration
from runfold.identity.keys import KeyGrant
from runfold.log.publisher import Publisher
from runfold.openai_agents import RunfoldSession
from runfold.remote.memories import HttpMemories
from runfold.remote.sessions import HttpSessions
from runfold.settings import Settings

SCOPES = " ".join(f"runfold:{scope}" for scope in Scope)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str, provider: Provider) -> Settings:
    """Every request needs a key, or a token of the provider."""
    name = f"t{uuid4().hex[:8]}"
    return Settings(
        kafka=kafka,
        mongo=mongo,
        prefix=name,
        database=name,
        authentication="required",
        oidc_issuer=provider.issuer,
        oidc_audience=AUDIENCE,
    )


@pytest.fixture(scope="module")
async def key(settings: Settings) -> str:
    log = settings.log()
    async with Publisher.connect(log) as publisher:
        keys = KeyAdministration(log, lambda: publisher)
        return (await keys.add(KeyGrant(name="all", scopes=tuple(Scope)), by="a test")).text


@pytest.fixture(scope="module")
async def api(settings: Settings, key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with projected(settings), ready_api(settings) as client:
        await until(lambda: knows(client, key), what="the key")
        yield client


async def knows(client: httpx.AsyncClient, key: str) -> bool:
    answer = await client.get("/v1/keys", headers={"Authorization": f"Bearer {key}"})
    return answer.status_code == 200


@pytest.fixture(params=["key", "token", "variable"])
def credential(
    request: pytest.FixtureRequest, key: str, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> str | None:
    if request.param == "variable":
        monkeypatch.setenv("RUNFOLD_API_KEY", key)
        return None
    return key if request.param == "key" else provider.token(scope=SCOPES)


async def test_sessions_and_memories_over_http(api, credential):
    url = str(api.base_url)
    async with HttpSessions(url, api_key=credential) as sessions:
        created = await sessions.create(app="shop", user="ann")
        assert (await sessions.view(created.session_id)).session_id == created.session_id
    async with HttpMemories(url, api_key=credential) as memories:
        assert (await memories.create_bank(f"b-{uuid4().hex}")).bank_id


async def test_google_adk(api, credential):
    url = str(api.base_url)
    service = RunfoldSessionService(url, api_key=credential)
    try:
        session = await service.create_session(app_name="shop", user_id="ann")
        assert await service.get_session(app_name="shop", user_id="ann", session_id=session.id)
    finally:
        await service.close()
    memory = RunfoldMemoryService(url, api_key=credential, bank=f"b-{uuid4().hex}")
    try:
        assert (await memory.search_memory(app_name="shop", user_id="ann", query="tea")).memories == []
    finally:
        await memory.close()


async def test_the_openai_agents_sdk(api, credential):
    session = RunfoldSession(uuid4().hex, str(api.base_url), api_key=credential)
    try:
        await session.add_items([{"role": "user", "content": "Hi"}])
        assert len(await session.get_items()) == 1
    finally:
        await session.close()


@pytest.mark.parametrize("way", ["agentplatform v1beta1 async", "vertexai v1beta1 sync"])
async def test_googles_clients_of_agent_engine(api, key, provider, way):
    token = Credentials(token=provider.token(scope=SCOPES))
    for given in (
        {"api_key": key},
        {"project": "p", "location": "l", "credentials": Credentials(token=key)},
        {"project": "p", "location": "l", "credentials": token},
    ):
        client = client_of(str(api.base_url), way, given)
        engines = client.agent_engines if way.startswith("vertexai") else client.memory_banks
        made = await called(engines.create)
        assert (made.api_resource if way.startswith("vertexai") else made).name


async def test_googles_clients_show_why_they_are_refused(api):
    client = client_of(str(api.base_url), "agentplatform v1beta1 async", {"api_key": "wrong"})
    with pytest.raises(google_errors.ClientError) as refused:
        await called(client.memory_banks.create)

    assert refused.value.code == 401
    assert refused.value.status == "UNAUTHENTICATED"
    assert "not valid" in str(refused.value)


@pytest.mark.parametrize("credential_", [None, "", "wrong", "rf_0123456789abcdef_" + "A" * 43])
async def test_our_clients_raise_what_is_wrong(api, credential_: Any):
    url = str(api.base_url)
    async with HttpSessions(url, api_key=credential_) as sessions:
        with pytest.raises(UnauthenticatedError, match=r"credential|not valid"):
            await sessions.create(app="shop", user="ann")
    service = RunfoldSessionService(url, api_key=credential_)
    with pytest.raises(UnauthenticatedError):
        await service.create_session(app_name="shop", user_id="ann")
    await service.close()
    session = RunfoldSession("a-session", url, api_key=credential_)
    with pytest.raises(UnauthenticatedError):
        await session.get_items()
    await session.close()


async def test_a_gateways_header_goes_before_the_key(api, key):
    headers = {"authorization": f"Bearer {key}"}
    async with HttpSessions(str(api.base_url), api_key="wrong", headers=headers) as sessions:
        assert await sessions.create(app="shop", user="ann")


def test_a_key_that_cannot_be_one_is_refused_without_being_shown():
    for wrong in ("rf_a b", "rf_\nX-Evil: 1", "rf_é"):
        with pytest.raises(ValueError, match="characters") as refused:
            HttpSessions("http://127.0.0.1:1", api_key=wrong)
        assert wrong not in str(refused.value)


def test_a_key_without_the_address_of_an_api_is_refused():
    for make in (RunfoldSessionService, RunfoldMemoryService):
        with pytest.raises(ValueError, match="url"):
            make(api_key="rf_x")
