"""`runfold erase` and `runfold erased` on real servers."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple
from uuid import uuid4

import pytest
from tests.evidence import new_keys
from tests.forking import runfold_process
from tests.processes import environment
from tests.querying import Projected, projected, ready_api

from runfold import SessionNotFoundError, UserMessage
from runfold.cli.erasure import erased
from runfold.erasure.receipt import has_valid_signature
from runfold.settings import Settings
from runfold_schemas.errors import ConfigurationError


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    name, keys = f"t{uuid4().hex[:8]}", new_keys(tmp_path_factory.mktemp("keys"))
    return Settings(
        kafka=kafka, mongo=mongo, prefix=name, database=name, wait_timeout_seconds=20, signing_keys=keys
    )


@pytest.fixture(scope="module")
async def stored(settings: Settings) -> AsyncIterator[Projected]:
    async with projected(settings) as stored:
        yield stored


async def command(settings: Settings, *arguments: str) -> Ended:
    """`runfold` as a process without a terminal and without input."""
    process = await runfold_process(
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env=environment(settings) | {"NO_COLOR": "1", "COLUMNS": "200"},
    )
    output, errors = await process.communicate()
    print(arguments, process.returncode, output.decode(), errors.decode())
    assert process.returncode is not None
    assert b"Traceback" not in errors
    return Ended(process.returncode, output.decode(), errors.decode())


async def test_a_user_is_erased_and_then_searched_for(settings, stored, tmp_path: Path):
    session = await stored.runfold.sessions.create(app="shop", user="ann", display_name="Ann")
    await stored.runfold.sessions.append(session.session_id, UserMessage(message="hi"))
    before = await command(settings, "erased", "ann")
    refused = await command(settings, "erase", "ann")
    assert (before.code, refused.code, refused.output.strip()) == (1, 1, "")
    await stored.runfold.sessions.open_record(session.session_id)

    ended = await command(settings, "erase", "ann", "--yes")

    answer = json.loads(ended.output)
    assert (ended.code, ended.errors) == (0, "")
    assert answer["receipt"]["removed"]["sessions"] == 1
    assert answer["sessions"] == [session.session_id]
    assert has_valid_signature(answer["signed_text"], answer["signature"], answer["public_key"])
    with pytest.raises(SessionNotFoundError):
        await stored.runfold.sessions.open_record(session.session_id)
    again = await command(settings, "erase", "ann", "--yes")
    assert json.loads(again.output)["receipt"] == answer["receipt"]

    (tmp_path / "receipt.json").write_text(ended.output)
    after = await command(settings, "erased", "ann", "--receipt", f"{tmp_path}/receipt.json")
    readable = [line for line in after.output.splitlines() if line.startswith("readable in ")]
    assert (after.code, after.errors) == (1, "")
    assert [line.partition(":")[0] for line in readable] == [f"readable in Kafka, {settings.prefix}.sessions"]
    assert "ids alone in " in after.output


async def test_nothing_is_left_of_an_unknown_user(settings, stored):
    erased = await command(settings, "erase", "nobody", "--yes")
    ended = await command(settings, "erased", "nobody-else")

    assert (erased.code, set(json.loads(erased.output)["receipt"]["removed"].values())) == (0, {0})
    assert (ended.code, ended.errors) == (0, "")
    assert ended.output.startswith("0 places have something readable")


async def test_an_api_is_asked_and_a_wrong_receipt_is_refused(settings, stored, tmp_path: Path):
    (tmp_path / "wrong.json").write_text("[]")
    refused = await command(settings, "erased", "bob", "--receipt", f"{tmp_path}/wrong.json")
    unreachable = await command(settings, "erased", "bob", "--api", "http://127.0.0.1:1")

    assert refused.code != 0
    assert "is not the answer to an erasure" in refused.errors
    assert unreachable.code != 0
    assert "All connection attempts failed" in unreachable.errors


async def test_an_api_of_another_tenant_is_not_asked(settings, stored):
    await stored.runfold.sessions.create(app="shop", user="dora")
    async with ready_api(settings) as client:
        url = str(client.base_url)
        elsewhere = settings.model_copy(update={"prefix": "elsewhere"})
        with pytest.raises(ConfigurationError, match=f"answers for the tenant {settings.prefix}, and"):
            await erased(elsewhere, "dora", receipt=None, api=url)
        assert await erased(settings, "dora", receipt=None, api=url) == 1


async def test_a_reader_may_close_the_pipe(settings, stored):
    await stored.runfold.sessions.create(app="shop", user="carl", display_name="Carl")
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -m runfold.cli erased carl | head -c 1",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(settings) | {"PATH": "/usr/bin:/bin"},
    )
    output, errors = await process.communicate()

    assert (len(output), errors) == (1, b"")
