"""The archive's table on an object store: two archivers at once, deletion, an outage."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from tests.archived import FENCE, read, segment_of
from tests.object_store import ObjectStoreServer, object_store

from runfold.archive.archive import Archive
from runfold.archive.checking import check_commit, damaged_runs
from runfold.archive.compaction import compact
from runfold.archive.history import remove_history
from runfold.archive.table import Fence
from runfold.secret_urls import SecretUrl
from runfold_schemas.errors import UnavailableError


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectStoreServer]:
    async with object_store() as (server, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield server


def archive_there() -> Archive:
    return Archive(SecretUrl("s3://bucket/archive"), prefix="runfold")


async def test_two_archivers_at_once_lose_and_double_nothing(server: ObjectStoreServer):
    segments = [segment_of(f"run-{index}", "a", "b") for index in range(8)]
    commits: list[int | None] = []

    async def work(name: str) -> None:
        archive = archive_there()
        fence = Fence(name, 1)
        commits.extend([await archive.append(segments[at : at + 2], fences=[fence]) for at in range(0, 8, 2)])

    await asyncio.gather(work("archiver-0"), work("archiver-1"))

    archive, made = archive_there(), [version for version in commits if version is not None]
    assert sorted(made) == list(range(min(made), min(made) + 4))
    for segment in segments:
        assert await read(archive, segment.run_id) == segment.records
    assert await damaged_runs(archive) == []


async def test_a_deleted_run_is_in_no_object(server: ObjectStoreServer):
    archive, kept = archive_there(), [segment_of(f"run-{index}", "harmless") for index in range(3)]
    version = await archive.append([*kept, segment_of("run-9", "s3cr3t")], fences=[FENCE])
    assert version is not None
    await check_commit(archive, version, kept)
    await archive.append([segment_of("run-4", os.urandom(3_000_000).hex())], fences=[FENCE])

    await archive.delete(["run-9"])
    assert await compact(archive) == 2
    await remove_history(archive, keep_seconds=0)

    assert sorted(key for key in server.objects if key.endswith(".json")) == [
        f"archive/runfold/{table}/_delta_log/{version:020}.json"
        for table, version in (("deleted_runs", 2), ("events", 6))
    ]
    snapshot = archive.events.latest
    assert len((await asyncio.to_thread(snapshot)).files()) == 1
    for segment in kept:
        assert await read(archive, segment.run_id) == segment.records
    assert await archive.known(["run-9"]) == {"run-9"}
    assert await damaged_runs(archive) == []


async def test_a_store_that_refuses_is_an_error_and_loses_nothing(server: ObjectStoreServer):
    archive, segment = archive_there(), segment_of("run-1", "a")
    await archive.append([segment], fences=[FENCE])
    server.is_away = True

    with pytest.raises(UnavailableError, match="the archive is not available"):
        await archive.append([segment_of("run-2", "a")], fences=[FENCE])
    with pytest.raises(UnavailableError):
        await read(archive, "run-1")

    server.is_away = False
    assert await read(archive, "run-1") == segment.records
    assert await archive.append([segment_of("run-2", "a")], fences=[FENCE]) is not None
