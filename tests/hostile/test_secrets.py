"""No process prints, logs or answers a password or a key, whatever goes wrong, at any level of its
log.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from tests.forking import runfold_process
from tests.processes import environment, http_service, until
from tests.querying import projected, served
from tests.servers import OwnSettings

from runfold.local import Service, StartError, free_port, ready_url
from runfold.settings import Settings

HUSH = "hUsH-9"
KEY = f"sk-{HUSH}"
END_SECONDS = 180

TOGETHER = 4
"""Processes at once."""

SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "u",
    "sasl_plain_password": HUSH,
}


@asynccontextmanager
async def endpoint(status: int) -> AsyncIterator[str]:
    """A model's server that repeats what it was sent, as some do when they refuse a key. The host
    and the port of its URL.
    """
    app = FastAPI()

    async def repeat(request: Request) -> PlainTextResponse:
        sent = {name: request.headers[name] for name in ("authorization", "host") if name in request.headers}
        return PlainTextResponse(json.dumps({"error": {"message": f"{sent}"}}), status)

    app.add_route("/{rest:path}", repeat, methods=["POST"])
    async with served(app) as client:
        yield f"127.0.0.1:{client.base_url.port}"


@asynccontextmanager
async def running(service: Service, *, ready: str = "/health/live") -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service, which is stopped afterwards."""
    port = int(service.argv[-1])
    health = port + 1 if "projector" in service.argv else port
    service.ready = ready_url(f"http://127.0.0.1:{health}{ready}")
    await service.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{health}", timeout=60) as client:
            yield client
    finally:
        await service.stop()


async def ended(settings: Settings, *arguments: str) -> str:
    """All that a command prints."""
    process = await runfold_process(
        *arguments,
        stdout=PIPE,
        stderr=STDOUT,
        env=os.environ | {"OPENAI_API_KEY": KEY} | variables(settings),
    )
    async with asyncio.timeout(END_SECONDS):
        output, _ = await process.communicate()
    return output.decode()


def variables(settings: Settings) -> dict[str, str]:
    named = environment(settings)
    if settings.kafka_options:
        named["RUNFOLD_KAFKA_OPTIONS"] = json.dumps(SASL)
    return named


def service_of(part: str, settings: Settings, log: Path) -> Service:
    service = http_service(part, settings, log, port=free_port())
    service.env |= variables(settings) | {"OPENAI_API_KEY": KEY}
    return service


async def asked(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> str:
    answer = await client.request(method, path, json=body)
    return f"{answer.status_code} {dict(answer.headers)} {answer.text}"


@pytest.mark.parametrize("status", [200, 401, 500])
async def test_what_a_models_server_repeats_is_not_shown(
    own_settings: OwnSettings, tmp_path: Path, status: int
):
    async with endpoint(status) as host:
        settings = own_settings(
            embedding_url=f"http://u:{HUSH}@{host}/v1",
            embedding_api_key=KEY,
            generation_model="openai:any",
            generation_url=f"http://u:{HUSH}@{host}/v1",
            log_level="DEBUG",
            wait_timeout_seconds=5,
        )
        api = service_of("api", settings, tmp_path / "api.log")
        contents = [{"role": "user", "parts": [{"text": "I like tea"}]}]
        async with projected(settings), running(api, ready="/health/ready") as client:
            answers = [
                await asked(client, "POST", "/v1/banks", {"bank_id": "b"}),
                await asked(
                    client, "POST", "/v1/banks/b/memories", {"fact": "Likes tea", "scope": {"user": "ann"}}
                ),
                await asked(
                    client,
                    "POST",
                    "/v1/banks/b/memories/generate",
                    {"contents": contents, "scope": {"user": "ann"}},
                ),
                await asked(
                    client,
                    "POST",
                    "/v1/banks/b/memories/retrieve",
                    {"query": "tea", "scope": {"user": "ann"}},
                ),
                await asked(client, "GET", "/health/ready"),
                await asked(client, "GET", "/metrics"),
            ]

    assert [answer[:3] for answer in (*answers[:2], *answers[4:])] == ["201", "201", "200", "200"], answers
    assert not [answer for answer in answers if HUSH in answer]
    assert HUSH not in api.logged()


@pytest.mark.parametrize("part", ["api", "projector"])
async def test_a_server_that_is_away_gets_no_secret_logged(prefix: str, tmp_path: Path, part: str):
    settings = Settings(
        kafka="127.0.0.1:1",
        kafka_options=SASL,
        mongo=f"mongodb://u:{HUSH}@127.0.0.1:1/?authMechanismProperties=SERVICE_NAME:{HUSH}",
        prefix=prefix,
        log_level="DEBUG",
    )
    service = service_of(part, settings, tmp_path / "log")
    async with running(service) as client:

        async def logs() -> bool:
            return "MongoDB is not available" in service.logged()

        await until(logs, what="a line about MongoDB")
        answers = [await asked(client, "GET", path) for path in ("/health/ready", "/v1/runs", "/v1/runs/r")]

    assert answers[0].startswith("503")
    assert not [answer for answer in answers if HUSH in answer]
    assert HUSH not in service.logged()


@pytest.mark.parametrize("part", ["api", "projector"])
async def test_a_kafka_that_asks_for_no_login_ends_the_service_with_a_line_and_no_secret(
    kafka: str, mongo: str, prefix: str, tmp_path: Path, part: str
):
    settings = Settings(kafka=kafka, kafka_options=SASL, mongo=mongo, prefix=prefix, log_level="DEBUG")
    service = service_of(part, settings, tmp_path / "log")

    with pytest.raises(StartError) as raised:
        async with running(service):
            pass

    assert "asks for no login" in str(raised.value)
    assert HUSH not in str(raised.value)
    assert HUSH not in service.logged()


LOGINS = [
    f"mongodb://u:{HUSH}@MONGO/?replicaSet=rs0",
    f"mongodb://u:{HUSH}@MONGO/?authMechanism=MONGODB-AWS",
    f"mongodb://u:{HUSH}@MONGO/?authMechanism=GSSAPI",
    f"mongodb://u:{HUSH}@MONGO/?authMechanism=PLAIN",
    f"mongodb://u:{HUSH}@MONGO/?authMechanism=MONGODB-X509",
    f"mongodb://u:{HUSH}@MONGO/?authMechanism=moon",
    "mongodb://MONGO/?authMechanism=MONGODB-AWS",
    "mongodb://MONGO/?authMechanism=MONGODB-X509",
    "mongodb://MONGO/?authMechanism=MONGODB-OIDC",
    "mongodb://MONGO/?authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:moon",
    "mongodb://MONGO/?authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:k8s",
    "mongodb://MONGO/?tls=true&tlsCertificateKeyFile=/none",
    f"mongodb://u:a/{HUSH}@MONGO/?replicaSet=rs0",
    f"mongodb://u:a@{HUSH}@MONGO/?replicaSet=rs0",
    f"mongodb://u:%zz{HUSH}@MONGO/",
    f"mongodb://u:{HUSH}@MONGO:{HUSH}/",
    f"mongodb+srv://u:{HUSH}@nowhere.invalid/",
    f"mongodb://{HUSH}@",
    f"http://u:{HUSH}@MONGO/",
    HUSH,
]


async def test_logins_that_cannot_work_are_one_line_each(mongo: str, prefix: str):
    host, free = mongo.removeprefix("mongodb://").partition("/")[0], asyncio.Semaphore(TOGETHER)

    async def start(login: str) -> tuple[int | None, bytes]:
        named = {"RUNFOLD_MONGO": login.replace("MONGO/", f"{host}/").replace("MONGO:", f"{host}")}
        async with free:
            process = await runfold_process(
                *("serve", "query", "--port", str(free_port())),
                stdout=PIPE,
                stderr=STDOUT,
                env=os.environ | named | {"RUNFOLD_PREFIX": prefix},
            )
            async with asyncio.timeout(END_SECONDS):
                output, _ = await process.communicate()
        return process.returncode, output

    for login, (code, output) in zip(
        LOGINS, await asyncio.gather(*(start(login) for login in LOGINS)), strict=True
    ):
        assert code == 2, (login, output)
        assert output.startswith(b"error: RUNFOLD_MONGO"), (login, output)
        assert output.count(b"\n") == 1, (login, output)
        assert HUSH.encode() not in output, (login, output)


async def test_commands_show_no_secret(kafka: str, prefix: str):
    settings = Settings(
        kafka=kafka,
        kafka_options=SASL,
        mongo=f"mongodb://u:{HUSH}@127.0.0.1:1/",
        prefix=prefix,
        embedding_url=f"http://u:{HUSH}@127.0.0.1:1/v1",
        embedding_api_key=KEY,
        generation_url=f"http://127.0.0.1:1/v1?api_key={HUSH}",
        publish_timeout_seconds=2,
        log_level="DEBUG",
    )

    commands = (["settings"], ["verify"], ["rebuild"], ["replay", "r"], ["sessions"], ["memory", "ls"])
    outputs = await asyncio.gather(*(ended(settings, *arguments) for arguments in commands))

    for arguments, output in zip(commands, outputs, strict=True):
        assert output, arguments
        assert HUSH not in output, (arguments, output)
        assert "Traceback" not in output, (arguments, output)
