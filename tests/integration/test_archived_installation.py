"""Runs that ended before there was an archive: archived, reopened, damaged and lost ones."""

from collections.abc import AsyncIterator
from pathlib import Path

import duckdb
import pytest
from tests.archived import everything_in, flip_byte
from tests.archiving import answers, archive_settings, archiving, entry_of_run, gone, note_end
from tests.processes import projections, reaches, until, working
from tests.querying import ready_api
from tests.servers import OwnSettings

from runfold import AssistantMessage, Run, Runfold, UserMessage
from runfold.settings import Settings
from runfold.verify.runs import verify

NAMES = ("kept", "reopened", "lost", "live", "damaged")
EVENTS = [UserMessage(message="Hello"), AssistantMessage(message="Hi."), UserMessage(message="Bye")]


@pytest.fixture
def settings(own_settings: OwnSettings, tmp_path: Path) -> Settings:
    return archive_settings(own_settings, tmp_path / "archive", sweep_seconds=0.2)


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


async def test_what_an_earlier_version_left_is_archived_and_every_damage_names_its_run(
    settings: Settings, runfold: Runfold, tmp_path: Path
):
    runs: dict[str, Run] = {}
    for name in NAMES:
        run = runs[name] = await runfold.open_run(agent_id="desk", run_id=name)
        await run.publish_batch([run.event(each) for each in EVENTS])
    last = (await runs["kept"].complete()).offset
    async with projections(settings) as stored:
        async with working(settings, stored.edition), ready_api(settings) as client:
            for name in NAMES:
                end = last if name == "kept" else len(EVENTS)
                await until(lambda name=name, end=end: reaches(stored, runs[name], end), what="the fold")
            before = {name: await answers(client, runs[name]) for name in NAMES}

            # They lie in topics, and the catalog has no word of segments.
            assert [await entry_of_run(runfold, run) for run in runs.values()] == [None] * len(NAMES)
            async with archiving(settings):
                for name in ("kept", "reopened", "lost"):
                    await note_end(runfold, runs[name])
                await gone(settings, [runs[name] for name in ("kept", "reopened", "lost")])
                archived = {path for path, _ in everything_in(tmp_path / "archive")}
                await note_end(runfold, runs["damaged"])
                await gone(settings, [runs["damaged"]])
            assert {name: await answers(client, runs[name]) for name in NAMES} == before
            offset = (await runs["reopened"].publish(UserMessage(message="Still there?"))).offset
            await until(lambda: reaches(stored, runs["reopened"], offset), what="the reopened run")
        assert await stored.differences() == []

        [damaged] = {
            path
            for path, _ in everything_in(tmp_path / "archive" / settings.prefix / "events")
            if path.suffix == ".parquet" and path not in archived
        }
        sql = "select data_page_offset, total_compressed_size from parquet_metadata(?)"
        [(begin, size)] = duckdb.execute(f"{sql} where path_in_schema = 'value'", [str(damaged)]).fetchall()
        flip_byte(damaged, begin + size // 2)
        await stored.database[f"runs.{stored.edition}"].delete_one({"_id": "lost"})
        found = {
            name: [each.kind for each in differences]
            async for name, differences in verify(settings.log(), stored.stores)
        }
        async with ready_api(settings) as client:
            assert {name: await answers(client, runs[name]) for name in ("kept", "live")} == {
                name: before[name] for name in ("kept", "live")
            }
            ledger = await client.get("/v1/runs/damaged/ledger")
    assert found == {
        "kept": [],
        "reopened": [],
        "live": [],
        "lost": ["no state"],
        "damaged": ["damaged archive"],
    }
    assert ledger.status_code == 200
