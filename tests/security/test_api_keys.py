"""API keys on a real broker: made, listed, rotated and revoked, over HTTP and by `runfold keys`."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from subprocess import PIPE
from typing import Any, NamedTuple

import httpx
import pytest
from tests.forking import runfold_process
from tests.ingesting import is_ready
from tests.principals import settings_with_keys
from tests.processes import environment, soonest, until
from tests.querying import ready_api, served

from runfold import Runfold, UserMessage
from runfold.http.principal import Scope
from runfold.identity.administration import KeyAdministration, SecretKey
from runfold.identity.keys import KeyGrant
from runfold.ingest.app import build_app as build_ingest
from runfold.local import free_port
from runfold.log.publisher import Publisher
from runfold.log.reader import read
from runfold.query.app import build_app as build_query
from runfold.settings import Settings
from runfold_schemas.topics import Topics

EFFECT_SECONDS = 1.0
"""Within this time a change takes effect in every process."""


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str) -> Settings:
    """Every request needs a key or a token."""
    return settings_with_keys(kafka, mongo)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
async def keys(settings: Settings) -> AsyncIterator[KeyAdministration]:
    """What an operator on another machine does."""
    log = settings.log()
    async with Publisher.connect(log) as publisher:
        yield KeyAdministration(log, lambda: publisher)


@pytest.fixture(scope="module")
async def api(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_api(settings) as client:
        yield client


@pytest.fixture(scope="module")
async def administrator(keys: KeyAdministration) -> SecretKey:
    return await keys.add(KeyGrant(name="administrator", scopes=tuple(Scope)), by="a test")


@pytest.fixture(scope="module")
async def head(api: httpx.AsyncClient, administrator: SecretKey) -> dict[str, str]:
    """The headers of an administrator, whose key the API knows."""
    headers = bearer(administrator.text)
    await until(lambda: is_accepted(api, administrator.text), what="the first key")
    return headers


async def is_accepted(client: httpx.AsyncClient, key: str) -> bool:
    answer = await client.get("/v1/runs/no-such-run/anything", headers=bearer(key))
    assert answer.status_code in (401, 403, 404, 503)
    return answer.status_code in (403, 404)


async def is_known(client: httpx.AsyncClient, key: str) -> bool:
    """Whether the key is accepted, or refused because its time has ended."""
    answer = await client.get("/v1/keys", headers=bearer(key))
    return answer.status_code != 401 or "has expired" in answer.text


async def is_refused(client: httpx.AsyncClient, key: str) -> bool:
    return (await client.get("/v1/keys", headers=bearer(key))).status_code == 401


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


async def command(settings: Settings, *arguments: str) -> Ended:
    process = await runfold_process(
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env=environment(settings) | {"NO_COLOR": "1", "COLUMNS": "200"},
    )
    async with asyncio.timeout(120):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, output.decode(), errors.decode())


async def test_a_key_of_an_operator_is_accepted_within_a_second_by_every_service(settings, api, keys, head):
    async with served(build_ingest(settings)) as ingest, served(build_query(settings)) as query:
        await until(lambda: is_ready(ingest))
        await until(lambda: is_ready(query))

        async def is_made() -> float:
            made = await keys.add(KeyGrant(name="an agent"), by="a test")
            services = (api, ingest, query)
            return max([await until(lambda each=each: is_accepted(each, made.text)) for each in services])

        assert await soonest(is_made, seconds=EFFECT_SECONDS) < EFFECT_SECONDS


async def test_a_revoked_key_is_refused_within_a_second_and_for_good(settings, api, keys, head):
    made = await keys.add(KeyGrant(name="to revoke"), by="a test")
    await until(lambda: is_accepted(api, made.text))

    revoked = await keys.revoke(made.info.key_id, by="a test")
    await until(lambda: is_refused(api, made.text))

    async def is_revoked() -> float:
        other = await keys.add(KeyGrant(name="to revoke"), by="a test")
        await until(lambda: is_accepted(api, other.text))
        await keys.revoke(other.info.key_id, by="a test")
        return await until(lambda: is_refused(api, other.text))

    assert await soonest(is_revoked, seconds=EFFECT_SECONDS) < EFFECT_SECONDS
    assert revoked.status == "revoked"
    assert await keys.revoke(made.info.key_id, by="somebody else") == revoked
    with pytest.raises(Exception, match="was revoked"):
        await keys.rotate(made.info.key_id, overlap_seconds=10)
    async with ready_api(settings) as later:
        assert await is_refused(later, made.text)


async def test_the_log_and_the_lists_have_no_secret(settings, api, head, keys):
    made = await keys.add(KeyGrant(name="not shown"), by="a test")
    secret = made.text.split("_", 2)[2]

    stored = b""
    async for records in read(settings.log(), Topics(settings.prefix).api_keys):
        stored += b"".join((record.key or b"") + (record.value or b"") for record in records)
    listed = await api.get("/v1/keys", headers=head)

    assert made.info.key_id.encode() in stored
    assert secret.encode() not in stored
    assert made.info.key_id in listed.text
    assert secret not in listed.text
    assert "sha256" not in listed.text


async def test_an_administrator_makes_rotates_and_revokes_a_key_over_http(api, head):
    made = await api.post(
        "/v1/keys",
        headers=head,
        json={"name": "shop", "scopes": ["publish"], "agents": ["shop"], "users": ["ann"]},
    )
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    key = made.json()
    assert await is_accepted(api, key["key"])

    rotated = (await api.post(f"/v1/keys/{key['key_id']}/rotate", headers=head, json={})).json()
    assert rotated["key"] != key["key"]
    assert rotated["old_secret_until"] is not None
    assert await is_accepted(api, rotated["key"])
    assert await is_accepted(api, key["key"])  # during the overlap

    again = await api.post(f"/v1/keys/{key['key_id']}/rotate", headers=head, json={"overlap_seconds": 0})
    assert again.json()["old_secret_until"] is None
    assert await is_accepted(api, again.json()["key"])
    assert await is_refused(api, rotated["key"])
    assert await is_refused(api, key["key"])

    read_back = (await api.get(f"/v1/keys/{key['key_id']}", headers=head)).json()
    assert read_back["name"] == "shop"
    assert read_back["agents"] == ["shop"]
    assert read_back["users"] == ["ann"]
    assert "key" not in read_back

    revoked = await api.delete(f"/v1/keys/{key['key_id']}", headers=head)
    assert revoked.json()["status"] == "revoked"
    assert await is_refused(api, again.json()["key"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"name": ""}, "name"),
        ({"name": "x", "scopes": ["everything"]}, "scopes"),
        ({"name": "x", "scopes": ["administer"], "agents": ["a"]}, "cannot be limited"),
        ({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, "past"),
        ({"name": "x", "expires_at": "2020-01-01T00:00:00"}, "expires_at"),
        ({"name": "x", "scope": ["read"]}, "scope"),
    ],
)
async def test_a_wrong_grant_is_refused_with_its_field(api, head, body, words):
    refused = await api.post("/v1/keys", headers=head, json=body)

    assert refused.status_code == 422
    assert words in refused.text


async def test_an_unknown_key_is_not_found(api, head):
    assert (await api.get("/v1/keys/nobody", headers=head)).status_code == 404
    assert (await api.delete("/v1/keys/nobody", headers=head)).status_code == 404
    assert (await api.post("/v1/keys/nobody/rotate", headers=head, json={})).status_code == 404


async def test_an_expired_key_is_refused(api, keys):
    for seconds in (5, 30, 120):  # a busy machine may take long until the API knows the key
        end = datetime.now(UTC) + timedelta(seconds=seconds)
        made = await keys.add(KeyGrant(name="short", expires_at=end), by="a test")
        await until(partial(is_known, api, made.text))
        if await is_accepted(api, made.text):
            break

    await until(lambda: is_refused(api, made.text), seconds=240)

    assert datetime.now(UTC) >= end
    answer = await api.get("/v1/runs", headers=bearer(made.text))
    assert answer.json()["detail"] == f"the API key {made.info.key_id} has expired"


@pytest.mark.parametrize("is_quiet", [False, True])
async def test_a_stream_ends_when_its_key_is_revoked(settings, api, keys, is_quiet):
    made = await keys.add(KeyGrant(name="follower"), by="a test")
    await until(lambda: is_accepted(api, made.text))
    async with Runfold.of(settings.log()) as runfold:
        run = await runfold.open_run(agent_id="an-agent")
        await run.publish(UserMessage(message="one"))
        async with api.stream("GET", f"/v1/runs/{run.run_id}/follow", headers=bearer(made.text)) as stream:
            lines = stream.aiter_lines()
            async for line in lines:
                if "one" in line:
                    break
            await keys.revoke(made.info.key_id, by="a test")
            await until(lambda: is_refused(api, made.text))
            if not is_quiet:
                await run.publish(UserMessage(message="two"))
            async with asyncio.timeout(60):
                rest = [line async for line in lines]

    assert not any("two" in line for line in rest)


async def test_a_command_makes_a_key_that_a_script_can_store(settings, api):
    made = await command(settings, "keys", "add", "nightly", "--scope", "read", "--expires", "1h")

    assert made.code == 0
    key = made.output.strip()
    assert "nightly" in made.errors
    await until(lambda: is_accepted(api, key))

    listed = await command(settings, "keys", "list", "--json")
    info = next(
        each for line in listed.output.splitlines() if (each := json.loads(line))["name"] == "nightly"
    )
    assert info["status"] == "active"
    assert info["scopes"] == ["read"]
    assert info["created_by"] == "operator"

    rotated = await command(settings, "keys", "rotate", info["key_id"], "--overlap", "0s")
    await until(lambda: is_refused(api, key))
    assert await is_accepted(api, rotated.output.strip())

    revoked = await command(settings, "keys", "revoke", info["key_id"])
    assert revoked.code == 0
    await until(lambda: is_refused(api, rotated.output.strip()))
    shown = await command(settings, "keys", "list")
    assert "revoked" in shown.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "x", "--scope", "administer", "--agent", "a"), "cannot be limited"),
        (("add", "x", "--no-scopes", "--scope", "read"), "not both"),
        (("add", "x", "--expires", "soon"), "not a duration"),
        (("rotate", "nobody"), "does not exist"),
        (("revoke", "nobody"), "does not exist"),
    ],
)
async def test_a_command_says_in_a_line_what_is_wrong(settings, arguments, words):
    ended = await command(settings, "keys", *arguments)

    assert ended.code != 0
    assert ended.output == ""
    assert words in " ".join(ended.errors.split())


async def test_nobody_gets_in_without_a_key(api):
    for method, path in (("GET", "/v1/runs"), ("POST", "/v1/runs"), ("GET", "/v1/keys"), ("GET", "/metrics")):
        assert (await api.request(method, path)).status_code == 401
    assert (await api.get("/health/ready")).status_code == 200


@pytest.mark.parametrize("service", ["api", "ingest", "query", "projector"])
async def test_without_authentication_a_service_refuses_to_listen_beyond_loopback(settings, service):
    open_settings = settings.model_copy(update={"authentication": None})
    variables = environment(open_settings)
    variables.pop("RUNFOLD_AUTHENTICATION", None)
    process = await runfold_process("serve", service, "--host", "0.0.0.0", stderr=PIPE, env=variables)
    async with asyncio.timeout(120):
        _, errors = await process.communicate()

    assert process.returncode == 2
    [line] = errors.decode().splitlines()
    assert "RUNFOLD_AUTHENTICATION=required" in line
    assert "runfold keys add" in line


@asynccontextmanager
async def process_of(settings: Settings, **variables: str) -> AsyncIterator[str]:
    """The address of an API in a process of its own, on loopback."""
    port = free_port()
    process = await runfold_process(
        *("serve", "api", "--port", str(port)), env=environment(settings) | variables
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def test_a_process_that_starts_knows_all_keys(settings, keys, head):
    made = await keys.add(KeyGrant(name="before the start"), by="a test")
    async with process_of(settings) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def answers() -> bool:
            try:
                return (await client.get("/health/ready")).status_code == 200
            except httpx.TransportError:
                return False

        await until(answers, what="the API")
        await until(lambda: is_accepted(client, made.text))


async def test_wrong_keys_all_get_the_same_answer(api, keys, head):
    made = await keys.add(KeyGrant(name="guessed"), by="a test")
    await until(lambda: is_accepted(api, made.text))
    wrong_secret = f"rf_{made.info.key_id}_{'A' * 43}"
    unknown_id = f"rf_{'0' * 16}_{'A' * 43}"

    answers: list[Any] = []
    for key in (wrong_secret, unknown_id, "rf_", "rf_x", made.text + "A", "nothing"):
        answer = await api.get("/v1/runs", headers=bearer(key))
        assert answer.status_code == 401
        answers.append(answer.json()["detail"])

    assert len(set(answers[:5])) == 1
    assert made.info.key_id not in answers[0]


async def test_an_unknown_id_takes_the_time_of_a_wrong_secret(api, keys, head):
    made = await keys.add(KeyGrant(name="timed"), by="a test")
    ring = await keys._ring()
    texts = {
        "wrong secret": f"rf_{made.info.key_id}_{'A' * 43}",
        "unknown id": f"rf_{'0' * 16}_{'A' * 43}",
    }
    best = dict.fromkeys(texts, float("inf"))
    now = datetime.now(UTC)
    for _ in range(200):
        for name, text in texts.items():
            began = time.perf_counter()
            for _ in range(20):
                with pytest.raises(Exception, match="not valid"):
                    ring.check(text, now=now)
            best[name] = min(best[name], time.perf_counter() - began)

    assert best["unknown id"] == pytest.approx(best["wrong secret"], rel=0.25)
