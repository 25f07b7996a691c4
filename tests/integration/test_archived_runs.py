"""An archived run has no topic, and reads as before: through restarts, sweeps and rebuilds."""

import re
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from tests.archiving import answers, archiving, note_end, records_of
from tests.hand_archiving import archive_run, copy_to_archive, delete_sealed
from tests.processes import projections, reaches, until, working
from tests.querying import ready_api
from tests.segmenting import seal, topic_of
from tests.servers import OwnSettings

from runfold import AssistantMessage, Run, Runfold, ToolCall, ToolResult, UserMessage
from runfold.cli.status import status
from runfold.log.admin import RUN_CONFIG
from runfold.log.archived_logs import NoArchiveError
from runfold.log.ends import LogEnds
from runfold.log.leaders import Leaders
from runfold.log.publisher import Outgoing, Publisher
from runfold.log.sealing import takes_events
from runfold.projector import awaited_logs
from runfold.projector.rebuild import rebuild
from runfold.projector.sweep import Sweep
from runfold.projector.writer import Writer
from runfold.settings import Settings
from runfold_schemas.catalog import Life
from runfold_schemas.codec import encode, headers

EVENTS = [
    UserMessage(message="What is the weather?"),
    ToolCall(tool_call_id="c-1", tool_name="weather", tool_args={"city": "Vienna"}),
    ToolResult(tool_call_id="c-1", tool_name="weather", result="sunny"),
    AssistantMessage(message="It is sunny."),
]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose topic is missing, and that is not archived, is set aside at once."""
    monkeypatch.setattr(awaited_logs, "_MISSING_SECONDS", 0.1)


@pytest.fixture
def settings(own_settings: OwnSettings, tmp_path: Path) -> Settings:
    return own_settings(
        archive_url=f"file://{tmp_path}/archive",
        sweep_seconds=0.2,
        park_seconds=1,
        publisher_park_seconds=1,
        retire_seconds=1,
    )


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


@pytest.fixture
async def run(runfold: Runfold) -> Run:
    run = await runfold.open_run(agent_id="agent", labels={"city": "Vienna"})
    await run.publish_batch([run.event(each) for each in EVENTS])
    return run


async def test_an_archived_run_reads_as_before_and_nothing_is_wrong(
    settings: Settings, runfold: Runfold, run: Run, capsys: pytest.CaptureFixture[str]
):
    other = await runfold.open_run(agent_id="other")
    async with projections(settings) as stored, ready_api(settings) as client:

        async def rests() -> bool:
            state = await stored.runs.get(run.run_id)
            return state is not None and not state.active and not await stored.stores.quarantine.all()

        async with working(settings, stored.edition):
            await until(lambda: reaches(stored, run, len(EVENTS)), what="the fold")
            before = await answers(client, run)
            entry = await seal(runfold, run.life)
            assert await answers(client, run) == before
            await copy_to_archive(runfold, run, entry)
            await delete_sealed(runfold, run, entry)
            await until(rests, what="the rest of the archived run")
            assert await answers(client, run) == before
            document = (await client.get(f"/v1/runs/{run.run_id}")).json()
            assert document["archive"] == {"status": "archived", "end": entry.end, "base": entry.base}
            assert "archive" not in (await client.get(f"/v1/runs/{other.run_id}")).json()
            await status(settings, as_json=False)
            lines = capsys.readouterr().out.splitlines()
            [line] = [line for line in lines if line.startswith("archive")]
            assert re.fullmatch(
                r"archive +1 logs, 5 records in [0-9,]+ bytes, written .+ ago\)", line.strip()
            )
            await runfold.connection.ring(run.run_id)
            offset = (await other.publish(other.event(EVENTS[0]))).offset
            await until(lambda: reaches(stored, other, offset), what="the fold of another run")

        async with working(settings, stored.edition) as worker:
            await runfold.connection.ring(run.run_id)
            offset = (await other.publish(other.event(EVENTS[0]))).offset
            await until(lambda: reaches(stored, other, offset), what="the fold of another run")
            await until(rests, what="the rest of the archived run")
            assert worker.quarantine.reasons() == []
            assert await stored.differences() == []
            assert await answers(client, run) == before


async def test_a_reopened_run_goes_on_and_all_of_it_comes_back(
    settings: Settings, runfold: Runfold, run: Run
):
    async with projections(settings) as stored, working(settings, stored.edition):
        await until(lambda: reaches(stored, run, len(EVENTS)), what="the fold")
        first = await archive_run(runfold, run)
        offset = (await run.publish(run.event(UserMessage(message="And tomorrow?")))).offset
        assert offset == first.base
        await until(lambda: reaches(stored, run, offset), what="the fold of the reopened run")
        second = await archive_run(runfold, run, first.base)
        assert await stored.differences() == []

    async with projections(settings) as stored, working(settings, stored.edition):
        offset = (await run.publish(run.event(AssistantMessage(message="Rain.")))).offset
        assert offset == second.base
        await until(lambda: reaches(stored, run, offset), what="the fold after a restart")
        assert await stored.differences() == []
        async with ready_api(settings) as client:
            before = await answers(client, run)
    async with projections(settings) as stored:
        await stored.editions.drop_all()

    async with (
        projections(settings) as stored,
        working(settings, stored.edition),
        ready_api(settings) as client,
    ):
        await until(lambda: reaches(stored, run, offset), what="the fold of all segments")
        assert await stored.differences() == []
        assert await stored.stores.quarantine.all() == []
        assert await answers(client, run) == before


async def test_an_archived_run_comes_back_when_mongodb_was_dropped(
    settings: Settings, runfold: Runfold, run: Run
):
    async with projections(settings) as stored, working(settings, stored.edition):
        await until(lambda: reaches(stored, run, len(EVENTS)), what="the fold")
        async with ready_api(settings) as client:
            before = await answers(client, run)
    await archive_run(runfold, run)
    async with projections(settings) as stored:
        await stored.editions.drop_all()

    async with (
        projections(settings) as stored,
        working(settings, stored.edition),
        ready_api(settings) as client,
    ):
        await until(lambda: reaches(stored, run, len(EVENTS)), what="the fold of the archived run")
        assert await stored.differences() == []
        assert await stored.stores.quarantine.all() == []
        assert await answers(client, run) == before


async def test_an_event_that_reached_a_sealed_topic_late_is_folded_once_in_its_place(
    settings: Settings, runfold: Runfold, run: Run
):
    topic = topic_of(runfold, run.life)
    each = run.event(UserMessage(message="Is it late?"))
    late = Outgoing(run.run_id.encode(), encode(each), headers(each, source="test"))

    async def takes_events_again() -> bool:
        async with Leaders.connect(settings.log()) as leaders:
            return await takes_events(leaders, topic)

    async with projections(settings) as stored:
        async with working(settings, stored.edition), ready_api(settings) as client:
            sealed = await seal(runfold, run.life)
            later = (await run.publish(run.event(UserMessage(message="And tomorrow?")))).offset
            await until(lambda: reaches(stored, run, later), what="the fold of the reopened run")
            # A broker that has become the leader may not have heard of the seal yet.
            await runfold.connection.admin.alter(topic, RUN_CONFIG)
            await until(takes_events_again, what="a topic that takes events")
            async with Publisher.connect(settings.log()) as publisher:
                offset = (await publisher.wait(await publisher.send(topic, late))).offset
            assert sealed.end == offset < sealed.base == later

            behind = sealed.model_copy(update={"end": offset + 1})
            await copy_to_archive(runfold, run, behind)
            await delete_sealed(runfold, run, behind)

            async def is_folded() -> bool:
                events = (await client.get(f"/v1/runs/{run.run_id}/events")).text
                return "Is it late?" in events and not await stored.differences()

            await until(is_folded, what="the fold of the late event")
            before = await answers(client, run)
        assert before[f"/v1/runs/{run.run_id}/ledger"] == before[f"/v1/runs/{run.run_id}/ledger?source=log"]
        await stored.editions.drop_all()

    async with (
        projections(settings) as stored,
        working(settings, stored.edition),
        ready_api(settings) as client,
    ):
        await until(lambda: reaches(stored, run, later), what="the fold of all segments")
        assert await answers(client, run) == before


async def test_an_older_copy_of_the_archive_is_noticed_and_loses_nothing(
    settings: Settings, runfold: Runfold, run: Run, tmp_path: Path
):
    archive, older, newest = tmp_path / "archive", tmp_path / "older", tmp_path / "newest"
    async with projections(settings) as stored:
        async with working(settings, stored.edition), ready_api(settings) as client:
            first = await archive_run(runfold, run)
            shutil.copytree(archive, older)
            later = (await run.publish(run.event(UserMessage(message="And tomorrow?")))).offset
            second = await archive_run(runfold, run, first.base)
            await run.publish(run.event(AssistantMessage(message="Rain.")))
            await until(lambda: reaches(stored, run, second.base), what="the fold of all segments")
            before = await answers(client, run)

            archive.rename(newest)
            older.rename(archive)
            answer = await client.get(f"/v1/runs/{run.run_id}/ledger?source=log")
            assert answer.status_code == 503
            assert f"5 of the 6 records before offset {later + 2:,}" in answer.json()["detail"]
            assert (await client.get(f"/v1/runs/{run.run_id}/ledger")).status_code == 200
        await stored.editions.drop_all()

    async with projections(settings) as stored, working(settings, stored.edition):

        async def is_set_aside() -> bool:
            aside = await stored.stores.quarantine.all()
            return any("5 of the 6 records" in entry.reason for entry in aside)

        await until(is_set_aside, what="the quarantine of the run")
        await note_end(runfold, run)
        eager = settings.model_copy(update={"archive_after_seconds": 0.1})
        async with archiving(eager) as archiver:

            async def is_refused() -> bool:
                return "5 of the 6 records" in " ".join(await archiver.check_ready())

            await until(is_refused, what="the archiver's refusal")
        assert len(await records_of(settings, run, second.base)) == 1
        shutil.rmtree(archive)
        newest.rename(archive)
        [entry] = await stored.stores.quarantine.all()
        await stored.stores.quarantine.request(entry.id, "retry", owner=entry.owner)
        await until(lambda: reaches(stored, run, second.base), what="the fold of the restored archive")
        async with ready_api(settings) as client:
            assert await answers(client, run) == before


async def test_a_rebuild_reads_the_archive_and_is_refused_without_it(
    settings: Settings, runfold: Runfold, run: Run
):
    async with projections(settings) as stored, working(settings, stored.edition):
        await until(lambda: reaches(stored, run, len(EVENTS)), what="the fold")
        async with ready_api(settings) as client:
            before = await answers(client, run)
    await archive_run(runfold, run)
    without = settings.model_copy(update={"archive_url": None})

    with pytest.raises(NoArchiveError, match="set RUNFOLD_ARCHIVE_URL"):
        await rebuild(without, report=lambda _: None, switched=lambda: None)
    await rebuild(settings, report=lambda _: None, switched=lambda: None)

    async with projections(settings) as rebuilt, ready_api(settings) as client:
        assert rebuilt.edition != stored.edition
        assert await rebuilt.differences() == []
        assert await answers(client, run) == before


async def test_a_run_whose_opening_cannot_be_read_keeps_no_other_from_being_announced(
    settings: Settings, runfold: Runfold, run: Run, caplog: pytest.LogCaptureFixture
):
    other = await runfold.open_run(agent_id="other")
    await archive_run(runfold, run)
    await run.publish(run.event(UserMessage(message="And tomorrow?")))
    without = settings.model_copy(update={"archive_url": None}).log()
    announced: list[Life] = []

    class Announcing:
        async def announce(self, lives: Sequence[Life]) -> None:
            announced.extend(lives)

    async with projections(settings) as stored, LogEnds.connect(without) as ends:
        sweep = Sweep(without, ends, stored.stores, cast(Writer, Announcing()))
        topics = await ends.run_topics()
        assert {each.run_id for each in topics.values()} == {run.run_id, other.run_id}
        for _ in range(2):
            assert await sweep.announce(topics) == []
    assert [life.run_id for life in announced] == [other.run_id]
    assert f"{run.life.log_id} is not announced" in caplog.text


async def test_without_the_archive_only_the_log_of_an_archived_run_cannot_be_read(
    settings: Settings, runfold: Runfold, run: Run
):
    without = settings.model_copy(update={"archive_url": None})
    async with projections(settings) as stored, working(without, stored.edition):
        await until(lambda: reaches(stored, run, len(EVENTS)), what="the fold")
        await archive_run(runfold, run)

        async with ready_api(without) as client:
            ledger = await client.get(f"/v1/runs/{run.run_id}/ledger")
            refused = await client.get(f"/v1/runs/{run.run_id}/ledger?source=log")

    assert ledger.status_code == 200
    assert refused.status_code == 503
    assert "set RUNFOLD_ARCHIVE_URL" in refused.json()["detail"]
