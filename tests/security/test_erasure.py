"""All data of a user is erased: what is left of it is where the receipt says, and nobody else loses
anything.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from tests.erasing import BLOB_BYTES_MIN, places_with, publish_user
from tests.evidence import new_keys, report_of, signer
from tests.processes import Projections, http_service, projector, until
from tests.querying import Projected, projected, ready_api
from tests.remembering import ScriptedModel
from tests.session_verbs import differences

from runfold import Runfold, RunNotFoundError, SessionNotFoundError, UserMessage
from runfold.adk import RunfoldSessionService
from runfold.api import erasure as erasure_module
from runfold.encryption.cipher import new_key
from runfold.erasure.receipt import has_valid_signature
from runfold.erasure.search import search
from runfold.generation.model import Found
from runfold.local import free_port
from runfold.projector import rebuild as rebuild_module
from runfold.projector.rebuild import rebuild
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.edition import Edition
from runfold.store.editions import new_edition
from runfold.store.memories import vector_name
from runfold_schemas.erasures import subject_of


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str, blobs: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    name, keys = f"t{uuid4().hex[:8]}", new_keys(tmp_path_factory.mktemp("keys"))
    return Settings(
        kafka=kafka,
        mongo=mongo,
        prefix=name,
        database=name,
        partitions=2,
        wait_timeout_seconds=20,
        retire_seconds=2,
        sweep_seconds=2,
        signing_keys=keys,
        blobs=f"file://{blobs}",
        blob_bytes_min=BLOB_BYTES_MIN,
    )


@pytest.fixture(scope="module")
async def stored(settings: Settings) -> AsyncIterator[Projected]:
    async with projected(settings) as stored:
        yield stored


@pytest.fixture(scope="module")
def model() -> ScriptedModel:
    """A model that finds in every conversation what a test says."""
    return ScriptedModel()


@pytest.fixture(scope="module")
async def api(
    settings: Settings, stored: Projected, model: ScriptedModel
) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_api(settings, model=model) as client:
        client.timeout = httpx.Timeout(60)
        yield client


@pytest.fixture(scope="module")
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


@pytest.fixture(scope="module")
def parts(
    api: httpx.AsyncClient, stored: Projected, runfold: Runfold
) -> tuple[httpx.AsyncClient, Projected, Runfold]:
    return api, stored, runfold


def user_named(name: str) -> str:
    """A user that no other test has, with characters that paths and JSON escape."""
    return f'{name}/"é%{uuid4().hex[:6]}'


async def sent(api: httpx.AsyncClient, method: str, path: str, body: object = None) -> Any:
    response = await api.request(method, path, json=body)
    assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
    return response.json() if response.content else None


async def erased(api: httpx.AsyncClient, user: str) -> dict[str, Any]:
    """The answer to a finished erasure."""
    async with asyncio.timeout(120):
        while True:
            response = await api.delete(f"/v1/users/{quote(user, safe='')}")
            assert response.status_code in (200, 202), response.text
            if response.status_code == 200:
                answer: dict[str, Any] = response.json()
                return answer


async def answers_about(api: httpx.AsyncClient, user: str, runs: list[str]) -> list[Any]:
    """What the API answers about a user and these runs."""
    listed = (await sent(api, "GET", f"/v1/sessions?user={quote(user, safe='')}"))["sessions"]
    paths = [
        f"/v1/apps/shop/users/{quote(user, safe='')}/state",
        *(f"/v1/sessions/{session['session_id']}?include=events" for session in listed),
        *(f"/v1/runs/{run}{part}" for run in runs for part in ("", "/ledger", "/events")),
    ]
    memories = await sent(api, "GET", "/v1/banks/tastes/memories?limit=500")
    own = [memory for memory in memories["memories"] if user in memory["scope"].values()]
    return [listed, own, *[(await api.get(path)).text for path in paths]]


async def test_nothing_of_a_user_is_left_but_where_the_receipt_says(
    parts: tuple[httpx.AsyncClient, Projected, Runfold], settings, model, blobs
):
    api, stored, runfold = parts
    ann, bob = user_named("ann"), user_named("bob")
    marker, other = f"M{uuid4().hex}", f"B{uuid4().hex}"
    model.found = [Found(fact=f"{other} found", topics=["USER_PREFERENCES"])]
    of_bob = await publish_user(runfold, api, bob, other)
    model.found = [Found(fact=f"{marker} found", topics=["USER_PREFERENCES"])]
    of_ann = await publish_user(runfold, api, ann, marker)
    await stored.stores.vectors.save("m", {vector_name(marker): b"12345678", vector_name(other): b"87654321"})
    await until(lambda: has(settings, runfold, marker, blobs, "dead-letters"), what="the dead letter")
    before, places = await answers_about(api, bob, of_bob), await places_with(settings, other, blobs)
    assert len(places) > 8

    answer = await erased(api, ann)

    removed = answer["receipt"]["removed"]
    assert (removed["sessions"], removed["runs"], removed["states"]) == (1, 3, 1)
    assert removed["generation_logs"] >= 2
    assert removed["memories"] >= 3
    assert removed["dead_letters"] == 1
    assert has_valid_signature(answer["signed_text"], answer["signature"], answer["public_key"])
    assert set(of_ann) <= set(answer["runs"])
    remaining = {f"{settings.prefix}.sessions", f"{settings.prefix}.memories"}
    left = await places_with(settings, marker, blobs)
    assert left - {f"{settings.prefix}.dead-letters"} == remaining  # until its compaction
    named = " ".join(each["where"] for each in answer["receipt"]["remains"])
    assert all(place in named for place in [*remaining, "dead-letters", "sessions and values"])
    assert set(await stored.stores.vectors.get("m", [vector_name(marker), vector_name(other)])) == {
        vector_name(other)
    }
    for run_id in of_ann:
        assert (await api.get(f"/v1/runs/{run_id}")).status_code == 404
    assert (await answers_about(api, ann, []))[:2] == [[], []]
    assert await answers_about(api, bob, of_bob) == before
    assert await places_with(settings, other, blobs) == places
    assert (await erased(api, ann))["receipt"] == answer["receipt"]
    assert await differences(settings, stored.stores) == []
    await check_search(settings, runfold, ann, remaining)


async def has(settings: Settings, runfold: Runfold, marker: str, blobs: Path, topic: str) -> bool:
    return f"{settings.prefix}.{topic}" in await places_with(settings, marker, blobs)


async def check_search(settings: Settings, runfold: Runfold, user: str, remaining: set[str]) -> None:
    """`runfold erased` finds something readable in these topics alone."""
    async with connect(settings.mongo, settings.database) as database:
        found = [
            each async for looked in search(runfold.connection, database, user=user) for each in looked.found
        ]
    readable = {each.place.removeprefix("Kafka, ") for each in found if each.is_readable}
    assert readable - {f"{settings.prefix}.dead-letters"} == remaining


async def test_an_unknown_user_gets_a_receipt_of_nothing(api):
    answer = await erased(api, user_named("nobody"))

    assert set(answer["receipt"]["removed"].values()) == {0}
    subject = answer["receipt"]["subject"]
    read = await sent(api, "GET", f"/v1/erasures/{subject}")
    assert read["receipt"] == answer["receipt"]
    assert subject in [
        each["receipt"]["subject"] for each in (await sent(api, "GET", "/v1/erasures"))["erasures"]
    ]
    assert (await api.get(f"/v1/erasures/{64 * '0'}")).status_code == 404


async def test_an_erased_user_may_ingest_into_the_same_stream_again(api, model):
    user = user_named("streams")
    model.found = [Found(fact="Likes tea", topics=["USER_PREFERENCES"])]
    await api.post("/v1/banks", json={"bank_id": "tastes"})
    content = {"content": {"role": "user", "parts": [{"text": "I like tea"}]}}
    ingested = {"scope": {"user": user}, "stream_id": "s", "contents": [content]}
    for _ in range(2):
        await sent(api, "POST", "/v1/banks/tastes/memories/ingest", ingested)
        removed = (await erased(api, user))["receipt"]["removed"]
        assert (removed["generation_logs"], removed["memories"]) == (1, 1)


async def test_an_agent_that_goes_on_is_refused_and_its_user_may_come_back(api, runfold):
    user = user_named("busy")
    session = await sent(api, "POST", "/v1/sessions", {"app": "shop", "user": user})
    run = await runfold.open_run(agent_id="shop", session_id=session["session_id"])

    has_written = asyncio.Event()

    async def write() -> int:
        count = 0
        try:
            while True:
                await runfold.sessions.append(
                    session["session_id"], UserMessage(message="x"), state_delta={"user:k": count}
                )
                count += 1
                has_written.set()
        except SessionNotFoundError:
            return count

    writing = asyncio.create_task(write())
    await asyncio.wait([writing, asyncio.create_task(has_written.wait())], return_when="FIRST_COMPLETED")
    await erased(api, user)

    assert await asyncio.wait_for(writing, 60) > 0
    with pytest.raises(RunNotFoundError):
        await run.publish(UserMessage(message="late"))
    state = await sent(api, "GET", f"/v1/apps/shop/users/{quote(user, safe='')}/state")
    assert state["state"] == {}
    again = {"app": "shop", "user": user, "session_id": session["session_id"], "state": {"user:k": "new"}}
    assert (await sent(api, "POST", "/v1/sessions", again))["state"] == {"user:k": "new"}


async def test_the_session_service_of_adk_finds_nothing_of_an_erased_user(api, settings):
    user = user_named("adk")
    async with RunfoldSessionService(str(api.base_url)) as service:
        session = await service.create_session(app_name="shop", user_id=user, state={"user:k": 1})
        await erased(api, user)
        assert await service.get_session(app_name="shop", user_id=user, session_id=session.id) is None
        assert (await service.list_sessions(app_name="shop", user_id=user)).sessions == []
        again = await service.create_session(app_name="shop", user_id=user, session_id=session.id)
        assert again.state == {}


@pytest.fixture
def unserved(settings: Settings) -> Settings:
    """The settings of another prefix, which has no projector yet."""
    return of_another_prefix(settings)


def of_another_prefix(settings: Settings) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    return settings.model_copy(update={"prefix": name, "database": name})


class Rebuildable(NamedTuple):
    """A projector that is a process, and an API."""

    settings: Settings
    runfold: Runfold
    api: httpx.AsyncClient

    async def has_nothing_of(self, user: str, marker: str, blobs: Path) -> bool:
        """Whether the topic of sessions alone has the marker."""
        places = await places_with(self.settings, marker, blobs)
        listed = await sent(self.api, "GET", f"/v1/sessions?user={quote(user, safe='')}")
        return places == {f"{self.settings.prefix}.sessions"} and listed["sessions"] == []


@pytest.fixture(scope="module")
async def rebuildable(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rebuildable]:
    settings = of_another_prefix(settings)
    service = projector(settings, tmp_path_factory.mktemp("services") / "projector.log")
    await service.start()
    async with Runfold.of(settings.log()) as runfold, ready_api(settings) as api:
        api.timeout = httpx.Timeout(60)
        yield Rebuildable(settings, runfold, api)
    await service.stop()


async def test_a_rebuild_during_an_erasure_brings_nothing_back(rebuildable, tmp_path):
    user, marker = user_named("rebuilt"), f"R{uuid4().hex}"
    settings, _, api = rebuildable
    for _ in range(3):
        created = {"app": "shop", "user": user, "state": {"user:k": marker}}
        session = await sent(api, "POST", "/v1/sessions", created)
        note = {"type": "user_message", "data": {"message": marker}}
        await sent(api, "POST", f"/v1/sessions/{session['session_id']}/events", note)

    rebuilding = asyncio.create_task(rebuild(settings, report=lambda _: None, switched=lambda: None))
    await erased(api, user)
    await rebuilding

    assert await rebuildable.has_nothing_of(user, marker, tmp_path)


async def test_an_erasure_before_a_rebuild_switches_is_of_both_editions(rebuildable, tmp_path, monkeypatch):
    user, marker = user_named("rebuilt"), f"R{uuid4().hex}"
    settings, _, api = rebuildable
    caught_up, is_erased = asyncio.Event(), asyncio.Event()
    check_aside = rebuild_module._check_aside

    async def wait(*editions: Any, **named: Any) -> None:
        caught_up.set()
        await is_erased.wait()
        await check_aside(*editions, **named)

    monkeypatch.setattr(rebuild_module, "_check_aside", wait)
    created = {"app": "shop", "user": user, "state": {"user:k": marker}, "display_name": marker}
    session = await sent(api, "POST", "/v1/sessions", created)
    note = {"type": "user_message", "data": {"message": marker}}
    await sent(api, "POST", f"/v1/sessions/{session['session_id']}/events", note)
    rebuilding = asyncio.create_task(rebuild(settings, report=lambda _: None, switched=lambda: None))
    await asyncio.wait([rebuilding, asyncio.create_task(caught_up.wait())], return_when="FIRST_COMPLETED")

    await erased(api, user)
    is_erased.set()
    await rebuilding

    assert await rebuildable.has_nothing_of(user, marker, tmp_path)


async def test_an_erasure_that_takes_long_is_answered_by_its_place(unserved, monkeypatch):
    monkeypatch.setattr(erasure_module, "WAIT_SECONDS", 0.1)
    async with ready_api(unserved) as api:
        answer = await api.delete("/v1/users/ann")
        assert answer.status_code == 202, answer.text
        place = answer.headers["location"]
        assert (await api.get(place)).status_code == 202

        async def is_finished() -> bool:
            return (await api.get(place)).status_code == 200

        async with projected(unserved):
            await until(is_finished, what="the receipt")


async def test_a_killed_service_is_followed_by_a_call_that_finishes(unserved, tmp_path):
    user, marker = "killed", f"K{uuid4().hex}"
    async with projected(unserved) as stored:
        session = await stored.runfold.sessions.create(app="shop", user=user, state={"user:k": marker})
        await stored.runfold.sessions.append(session.session_id, UserMessage(message=marker))
        await until(lambda: is_stored(stored, session.record.log_id), what="the page")
    port = free_port()
    service = http_service("api", unserved, tmp_path / "api.log", port=port)
    await service.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        place = f"/v1/erasures/{subject_of(unserved.prefix, user)}"
        call = asyncio.create_task(client.delete(f"/v1/users/{user}"))

        async def waits() -> bool:
            response = await client.get(place)
            return response.status_code == 202 and "projector" in response.json()["doing"]

        await until(waits, what="the erasure's wait for a projector")
        await service.kill()
        await asyncio.gather(call, return_exceptions=True)  # on a busy machine, it was answered before
        service = http_service("api", unserved, tmp_path / "api.log", port=port)
        await service.start()
        assert (await client.get(place)).status_code == 404
        async with projected(unserved) as stored:
            answer = await erased(client, user)
            assert (answer["receipt"]["removed"]["sessions"], answer["receipt"]["removed"]["states"]) == (
                1,
                1,
            )
            assert await places_with(unserved, marker, tmp_path) == {f"{unserved.prefix}.sessions"}
        await service.stop()


async def is_stored(stored: Projected, log_id: str) -> bool:
    return await stored.pages.end(log_id) > 1


async def test_a_rebuild_that_was_killed_holds_no_erasure_up(unserved):
    async with projected(unserved) as stored:
        session = await stored.runfold.sessions.create(app="shop", user="ann")
        await stored.runfold.sessions.append(session.session_id, UserMessage(message="secret"))
        await until(lambda: is_stored(stored, session.record.log_id), what="the page")
        pages, dead = stored.database[f"pages.{stored.stores.name}"], new_edition()
        assert await stored.editions.begin(old=stored.stores.name, new=dead)
        await stored.database[f"pages.{dead}"].insert_many([page async for page in pages.find({})])

        async with ready_api(unserved) as client:
            await erased(client, "ann")

        assert await Edition.of(stored.database, dead).pages.with_pages([session.record.log_id]) == set()


async def test_with_encryption_nothing_readable_of_an_erased_user_is_left(unserved, model, tmp_path):
    (tmp_path / "operator.key").write_text(b64encode(new_key()).decode())
    (tmp_path / "blobs").mkdir()
    given = {name: getattr(unserved, name) for name in unserved.model_fields_set}
    stores = {"encryption_key": f"file:{tmp_path}/operator.key", "blobs": f"file://{tmp_path}/blobs"}
    sealed = Settings(**{**given, **stores})
    ann, bob = user_named("ann"), user_named("bob")
    marker, other = f"M{uuid4().hex}", f"B{uuid4().hex}"
    async with (
        projected(sealed.model_copy(update={"encryption_key": None})),
        ready_api(sealed, model=model) as api,
        Runfold.of(sealed.log()) as runfold,
    ):
        api.timeout = httpx.Timeout(60)
        model.found = [Found(fact=f"{other} found", topics=["USER_PREFERENCES"])]
        of_bob = await publish_user(runfold, api, bob, other)
        model.found = [Found(fact=f"{marker} found", topics=["USER_PREFERENCES"])]
        of_ann = await publish_user(runfold, api, ann, marker)
        before = await answers_about(api, bob, of_bob)
        assert other in before[0][0]["display_name"]

        answer = await erased(api, ann)

        assert answer["receipt"]["encrypted"] is True
        assert answer["receipt"]["removed"]["keys"] >= 1
        left = await places_with(sealed, marker, tmp_path / "blobs")
        assert left == set()
        for run_id in of_ann:
            assert (await api.get(f"/v1/runs/{run_id}")).status_code == 404
        assert await answers_about(api, bob, of_bob) == before


async def test_the_chain_verifies_after_an_erasure(unserved):
    async with projected(unserved) as stored:
        kept = await stored.run(UserMessage(message="kept"))
        session = await stored.runfold.sessions.create(app="shop", user="ann")
        await stored.runfold.sessions.append(session.session_id, UserMessage(message="secret"))
        await until(lambda: is_stored(stored, session.record.log_id), what="the page")
        projections = Projections(unserved, stored.editions, stored.stores.name, stored.database)
        async with signer(unserved, projections) as signing:

            async def is_signed() -> bool:
                # The state of a run is saved a moment after its page.
                await signing.sign_new()
                run_id = session.record.run_id
                return (await report_of(unserved, projections, run_id)).logs == 1

            await until(is_signed, what="the session's head")
            async with ready_api(unserved) as client:
                await erased(client, "ann")
            await signing.sign_new()
        report = await report_of(unserved, projections)
        assert report.faults == []
        assert (report.deleted, kept.run_id) == (1, kept.run_id)
