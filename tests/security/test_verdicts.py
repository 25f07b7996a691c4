"""Forged records in the catalog, by a login that may write there: they end and delete nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.kafka_roles import new_installation, settings_of
from tests.processes import projections, reaches, until, working
from tests.querying import ready_api
from tests.secured_kafka import secured_kafka

from runfold import PlannerNote, Runfold
from runfold.log.acls import Role
from runfold.log.catalog import life_record, partition_of
from runfold.log.effect_keys import add_effect_key
from runfold.settings import Settings
from runfold_schemas.catalog import Life
from runfold_schemas.errors import RunEndedError, RunNotFoundError
from runfold_schemas.topics import Topics


@pytest.fixture(scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("kafka")
    async with secured_kafka(folder, users=[*Role], allows_by_default=False) as address:
        yield address


@pytest.fixture
async def topics(secured: str) -> Topics:
    return await new_installation(secured)


@pytest.fixture
def settings(secured: str, mongo: str, topics: Topics, tmp_path: Path) -> Settings:
    """Those of services, which have keys."""
    path = tmp_path / "keys.txt"
    add_effect_key(path)
    return settings_of(Role.service, secured, topics, mongo, effect_keys=path)


async def forge(runfold: Runfold, life: Life, **changes: bool) -> None:
    publisher, topics = runfold.connection.publisher, runfold.connection.topics
    record = life_record(life.model_copy(update=changes))
    await publisher.wait(
        await publisher.send(topics.catalog, record, partition=partition_of(topics, life.run_id))
    )


async def test_a_forged_deletion_deletes_nothing(settings: Settings, secured: str, topics: Topics):
    client = settings_of(Role.client, secured, topics).log()
    async with (
        projections(settings) as stored,
        working(settings, stored.edition),
        ready_api(settings) as api,
        Runfold.of(client) as runfold,
        Runfold.of(client) as reader,
    ):
        run = await runfold.open_run(agent_id="desk", run_id="r")
        await run.publish(PlannerNote(note="n"))
        watched = await reader.get_run("r")
        await forge(runfold, run.life, deleted=True)
        last = await run.publish(PlannerNote(note="n"))
        await watched.publish(PlannerNote(note="n"))

        # The projector takes records of the catalog in their order.
        next_run = await runfold.open_run(agent_id="desk", run_id=same_partition(topics, "r"))
        await until(lambda: reaches(stored, next_run, 0), what="the fold of the next run")
        await until(lambda: reaches(stored, run, last.offset), what="the fold")
        assert await stored.runs.deleted(["r"]) == {}
        shown = await api.get("/v1/runs/r/events", params={"min_offset": last.offset})
        assert [each["event"]["type"] for each in shown.json()["events"]][-1] == "planner_note"
        note = {"type": "planner_note", "data": {"note": "over HTTP"}}
        assert (await api.post("/v1/runs/r/events", json=note)).is_success
        assert {each.run_id async for each in reader.runs()} == {"r", next_run.run_id}
        async with Runfold.of(client) as later:
            assert len([event async for event in (await later.get_run("r")).events()]) >= 4


async def test_without_keys_a_record_of_a_client_deletes_a_run(
    settings: Settings, secured: str, topics: Topics
):
    settings = settings.model_copy(update={"effect_keys": None})
    async with (
        projections(settings) as stored,
        working(settings, stored.edition),
        Runfold.of(settings_of(Role.client, secured, topics).log()) as runfold,
    ):
        run = await runfold.open_run(agent_id="desk", run_id="r")
        await forge(runfold, run.life, deleted=True)

        async def is_deleted() -> bool:
            return bool(await stored.runs.deleted(["r"]))

        await until(is_deleted, what="the deletion")


async def test_a_forged_end_ends_nothing(settings: Settings, secured: str, topics: Topics):
    client = settings_of(Role.client, secured, topics).log()
    async with Runfold.of(client) as runfold, Runfold.of(client) as other:
        run = await runfold.open_run(agent_id="desk", run_id="r")
        await forge(runfold, run.life, ended=True)
        opened = await other.get_run("r")
        assert opened.ended  # as far as it knows
        position = await opened.publish(PlannerNote(note="n"))
        assert (position.offset, opened.ended) == (1, False)

        await run.complete()
        await forge(runfold, run.life, ended=True)
        assert (await other.connection.catalog.lookup("r")) is not None
        with pytest.raises(RunEndedError):
            await opened.publish(PlannerNote(note="n"))


async def test_a_deletion_by_a_projector_reaches_everybody(settings: Settings, secured: str, topics: Topics):
    client = settings_of(Role.client, secured, topics).log()
    async with (
        projections(settings) as stored,
        working(settings, stored.edition),
        Runfold.of(client) as runfold,
        Runfold.of(client) as other,
    ):
        await runfold.sessions.create(app="desk", user="ann", session_id="s")
        run = await runfold.open_run(agent_id="desk", run_id="r", session_id="s")
        watched = await other.get_run("r")
        await until(lambda: reaches(stored, run, 0), what="the fold")
        await runfold.sessions.delete("s")

        async def is_deleted() -> bool:
            life = await other.connection.catalog.lookup("r")
            return life is not None and life.deleted

        await until(is_deleted, what="the deletion")
        with pytest.raises(RunNotFoundError):
            await watched.publish(PlannerNote(note="n"))
        with pytest.raises(RunNotFoundError):
            await other.get_run("r")
        assert [each async for each in other.runs()] == []
        async with Runfold.of(client) as later:
            with pytest.raises(RunNotFoundError):
                await later.get_run("r")


async def test_deletions_from_before_the_verdicts_count(settings: Settings, secured: str, topics: Topics):
    """An earlier version wrote them to the catalog alone."""
    client = settings_of(Role.client, secured, topics).log()
    async with Runfold.of(client) as runfold:
        before = await runfold.open_run(agent_id="desk", run_id="r")
        after = await runfold.open_run(agent_id="desk", run_id=same_partition(topics, "r"))
        await forge(runfold, before.life, deleted=True)
        async with projections(settings) as stored, working(settings, stored.edition):

            async def is_deleted() -> bool:
                return bool(await stored.runs.deleted(["r"]))

            await until(is_deleted, what="the deletion")
            await forge(runfold, after.life, deleted=True)
            with pytest.raises(RunNotFoundError):
                await runfold.get_run("r")
            async with Runfold.of(client) as other:
                assert [each.run_id async for each in other.runs()] == [after.run_id]


def same_partition(topics: Topics, run_id: str) -> str:
    """Another run, in the same partition of the catalog."""
    names, number = map("r{}".format, range(1_000)), partition_of(topics, run_id)
    return next(name for name in names if partition_of(topics, name) == number)
