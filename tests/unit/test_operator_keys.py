"""The operator's key in Vault and in AWS KMS, against servers that behave like them."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.key_servers import (
    AWS_KEY_ID,
    AWS_REGION,
    AWS_SECRET,
    KMS_KEY,
    VAULT_TOKEN,
    KeyServer,
    broken,
    dribbling,
    garbled,
    kms,
    silent,
    vault,
)

from runfold.encryption import key_server
from runfold.encryption.wrapping import Wrapping, wrapping_of
from runfold_schemas.errors import ConfigurationError, UnavailableError

KEY = bytes(range(64))


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_TOKEN", VAULT_TOKEN)
    monkeypatch.delenv("VAULT_TOKEN_FILE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", AWS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", AWS_SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", AWS_REGION)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


@pytest.fixture(autouse=True)
async def _threads_end() -> AsyncIterator[None]:
    """Waits for requests that were given up. Their threads use `random`, and Hypothesis refuses
    that while it draws for a test that comes later.
    """
    loop, executor = asyncio.get_running_loop(), ThreadPoolExecutor()
    loop.set_default_executor(executor)
    yield
    executor.shutdown()
    loop.set_default_executor(ThreadPoolExecutor())


@pytest.fixture
def vault_server() -> Iterator[KeyServer]:
    with vault() as server:
        yield server


@pytest.fixture(params=["vault", "aws-kms"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyServer]:
    with vault() if request.param == "vault" else kms() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://{server.url}")
        yield server


@pytest.fixture
async def key(request: pytest.FixtureRequest, server: KeyServer) -> AsyncIterator[Wrapping]:
    is_vault = "[vault" in request.node.name
    yield wrapping_of(
        f"vault+http://{server.url}/v1/transit/keys/runfold" if is_vault else f"aws-kms:{KMS_KEY}"
    )
    server.fault = None


async def test_a_wrapped_key_unwraps(server: KeyServer, key: Wrapping):
    wrapped = await key.wrap(KEY)

    assert KEY not in wrapped
    assert await key.unwrap(wrapped) == KEY
    assert len(server.asked) == 2


async def test_a_ciphertext_of_another_key_is_refused(key: Wrapping):
    wrapped = await key.wrap(KEY)

    with pytest.raises(ConfigurationError):
        await key.unwrap(wrapped[:-8] + wrapped[-16:-8])


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_with_an_error_is_asked_again_later(server: KeyServer, key: Wrapping, status: int):
    server.fault = broken(status)

    with pytest.raises(UnavailableError) as raised:
        await key.wrap(KEY)

    assert raised.value.retriable


@pytest.mark.parametrize(
    "fault",
    [
        *(broken(200, body) for body in (b"<html>", b"[]", b'"x"', b'{"data":null}', b'{"data":{}}')),
        broken(200, b'{"data":{"plaintext":"%"}}'),
        broken(500, b"<html>"),
        garbled,
    ],
)
async def test_an_answer_in_another_form_counts_as_none(server: KeyServer, key: Wrapping, fault: Any):
    wrapped = await key.wrap(KEY)
    server.fault = fault

    with pytest.raises(UnavailableError):
        await key.unwrap(wrapped)


@pytest.mark.parametrize("fault", [silent(3), dribbling(3)])
async def test_a_slow_answer_is_not_waited_for(
    server: KeyServer, key: Wrapping, fault: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(key_server, "ANSWER_SECONDS", 0.5)
    server.fault = fault
    loop = asyncio.get_running_loop()
    began = loop.time()

    with pytest.raises(UnavailableError):
        await key.wrap(KEY)

    assert loop.time() - began < 2.5


async def test_a_server_that_is_gone_is_unavailable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:1")
    for url in ("vault+http://127.0.0.1:1/v1/transit/keys/runfold", f"aws-kms:{KMS_KEY}"):
        with pytest.raises(UnavailableError):
            await wrapping_of(url).wrap(KEY)


async def test_vault_gets_the_request_of_its_documentation(vault_server: KeyServer):
    await wrapping_of(f"vault+http://{vault_server.url}/v1/transit/keys/runfold").wrap(KEY)

    [asked] = vault_server.asked
    assert asked.path == "/v1/transit/encrypt/runfold"
    assert json.loads(asked.body) == {"plaintext": b64encode(KEY).decode()}


async def test_vaults_token_is_read_from_its_file_at_each_use(
    vault_server: KeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "token"
    monkeypatch.setenv("VAULT_TOKEN_FILE", str(path))
    key = wrapping_of(f"vault+http://{vault_server.url}/v1/transit/keys/runfold")
    path.write_text("expired\n")
    with pytest.raises(ConfigurationError, match="403"):
        await key.wrap(KEY)
    path.write_text(f"{VAULT_TOKEN}\n")

    await key.wrap(KEY)


async def test_wrong_credentials_of_aws_are_refused(monkeypatch: pytest.MonkeyPatch):
    with kms() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://{server.url}")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(ConfigurationError, match="InvalidSignatureException"):
            await wrapping_of(f"aws-kms:{KMS_KEY}").wrap(KEY)


async def test_an_unknown_key_is_refused(monkeypatch: pytest.MonkeyPatch, vault_server: KeyServer):
    with kms() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://{server.url}")
        for url in (f"vault+http://{vault_server.url}/v1/transit/keys/other", "aws-kms:alias/other"):
            with pytest.raises(ConfigurationError):
                await wrapping_of(url).wrap(KEY)
