"""`runfold erase` and `runfold erased` on real servers."""

import asyncio
from contextlib import suppress
from uuid import uuid4

import pytest
from tests.commands import command
from tests.processes import until
from tests.querying import projected

from runfold import Runfold
from runfold.cli import erasure
from runfold.log.admin import LogAdmin
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.editions import Editions


@pytest.fixture
def settings(kafka: str, mongo: str) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    return Settings(kafka=kafka, mongo=mongo, prefix=name, database=name)


async def test_a_tenant_that_no_projector_folds_is_refused_and_gets_no_topics(settings):
    code, output = await command(settings, "erase", "ann", "--yes")
    assert code == 2
    assert f"no projector has folded the tenant {settings.prefix}" in output
    async with LogAdmin.connect(settings.log()) as admin:
        assert not [topic for topic in await admin.list_topics() if topic.startswith(settings.prefix)]


async def test_an_erasure_says_what_it_waits_for(settings, monkeypatch, capsys):
    monkeypatch.setattr(erasure, "_SILENT_SECONDS", 0.2)
    async with Runfold.of(settings.log()) as runfold, connect(settings.mongo, settings.database) as database:
        await Editions(database).current_or_first()
        await Editions(database).note_partitions(12)
        await runfold.sessions.create(app="shop", user="ann")
        erasing = asyncio.create_task(erasure.erase(settings, "ann"))
        said = ""

        async def is_said() -> bool:
            nonlocal said
            said += capsys.readouterr().err
            return f"check that a projector of the tenant {settings.prefix} runs" in said

        try:
            await until(is_said)
        finally:
            erasing.cancel()
            with suppress(asyncio.CancelledError):
                await erasing


async def test_an_unknown_user_is_said(settings):
    async with projected(settings):
        code, output = await command(settings, "erase", "annn", "--yes")
    assert code == 0
    assert f"nothing of this user was found in the tenant {settings.prefix}: 'annn'" in output


async def test_a_search_whose_api_does_not_answer_ends_with_an_error(settings):
    async with projected(settings):
        code, output = await command(settings, "erased", "ann", "--api", "http://127.0.0.1:1")
    assert code == 2
    assert "searched" not in output
