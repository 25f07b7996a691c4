"""The four roles on a Kafka that refuses everything that no ACL allows."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka.admin import NewTopic
from aiokafka.errors import MessageSizeTooLargeError, TopicAuthorizationFailedError
from tests.archiving import SECONDS, archived_records, archiving, end, gone, opened_run
from tests.kafka_rights import admin, describes_brokers, may_use_group, rights
from tests.kafka_roles import RUNS, append, new_installation, produced, settings_of
from tests.processes import projections, reaches, until, working
from tests.querying import ready_api
from tests.secured_kafka import secured_kafka
from tests.segmenting import seal

from runfold import Memory, Runfold
from runfold.log.acls import Role
from runfold_schemas.events import AssistantMessage, UserMessage
from runfold_schemas.topics import Topics

EVERY_OPERATION = {
    *("Alter", "AlterConfigs", "Create", "Delete", "Describe", "DescribeConfigs", "Read", "Write")
}
SHARED = {"Create", "Describe", "Read", "Write"}


@pytest.fixture(scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A broker with a user for each role, which has the rights that `runfold acls` prints."""
    folder = tmp_path_factory.mktemp("kafka")
    async with secured_kafka(folder, users=[*Role], allows_by_default=False) as address:
        yield address


@pytest.fixture
async def topics(secured: str) -> Topics:
    """An installation of the test's own, whose topics exist."""
    return await new_installation(secured)


async def test_each_role_has_its_rights_and_no_other(secured: str, topics: Topics):
    own, others = topics.run(f"{RUNS}1", "0" * 32), topics.run("support.1", "0" * 32)
    internal = [f"{topics.prefix}.{name}" for name in ("api-keys", "keys", "verdicts", "roots")]
    foreign = [f"x{topics.prefix}.runs", f"x{topics.prefix}.run.{RUNS}1.0", topics.prefix]
    async with admin(secured) as client:
        new = [NewTopic(name, 1, 1) for name in (own, others, *internal, *foreign)]
        await client.create_topics(new)
    shared = [topics.catalog, *topics.shared]
    every = [own, others, *shared, topics.dead_letters, *internal, *foreign]
    ours = set(every) - set(foreign)

    service, client, archiver, producer = [await rights(secured, role, every) for role in Role]

    nothing: dict[str, set[str]] = {name: set() for name in every}
    of_run = {"Create", "Delete", "Describe", "Read", "Write"}
    assert service == nothing | dict.fromkeys(ours, EVERY_OPERATION)
    assert client == (
        nothing
        | dict.fromkeys(shared, SHARED)
        | dict.fromkeys([own, others], of_run)
        | {topics.dead_letters: {"Create", "Describe"}, topics.verdicts: {"Describe", "Read"}}
        | {topics.keys: {"Describe"}}
    )
    assert archiver == (
        nothing
        | {name: {"Describe"} for name in (*topics.shared, topics.dead_letters, topics.keys)}
        | dict.fromkeys([own, others], EVERY_OPERATION - {"Alter", "Create"})
        | {name: {"Describe", "Read"} for name in (topics.verdicts, topics.api_keys)}
        | {topics.catalog: {"Describe", "Read", "Write"}}
    )
    assert producer == nothing | {own: {"Describe", "Write"}}
    groups = [
        f"{prefix}{topics.prefix}.{name}" for prefix in ("", "x") for name in ("projector.e1", "archiver")
    ]
    may_use = [[await may_use_group(secured, role, group) for group in groups] for role in Role]
    assert may_use == [[True, True, False, False], [False] * 4, [False, True, False, False], [False] * 4]
    assert [await describes_brokers(secured, role) for role in Role] == [True, True, True, False]


async def use_everything(runfold: Runfold) -> None:
    """What agents do: runs, sessions and memories, and their deletion."""
    async with runfold.run(agent_id="a") as run:
        await run.publish(UserMessage(message="m"))
        assert len([event async for event in run.events()]) == 2
    session = await runfold.sessions.create(app="a", user="u", state={"user:k": 1})
    await runfold.sessions.append(session.session_id, UserMessage(message="m"))
    assert (await runfold.sessions.view(session.session_id)).state == {"user:k": 1}
    await runfold.sessions.delete(session.session_id)
    await runfold.memories.create_bank("b")
    await runfold.memories.create("b", Memory(fact="f", scope={"user": "u"}))
    assert len([run async for run in runfold.runs()]) >= 1


async def test_services_and_clients_do_all_that_they_did_before(secured: str, mongo: str, topics: Topics):
    settings = settings_of(Role.service, secured, topics, mongo)
    async with projections(settings) as stored, working(settings, stored.edition) as worker:
        async with Runfold.of(settings.log()) as runfold:
            await use_everything(runfold)
        async with Runfold.of(settings_of(Role.client, secured, topics).log()) as runfold:
            await runfold.memories.delete_bank("b", force=True)
            await use_everything(runfold)
            run = await runfold.open_run(agent_id="a")
            last = await run.publish(UserMessage(message="m"))
            await until(lambda: reaches(stored, run, last.offset), what="the fold")
        assert list(worker.quarantine.reasons()) == []


async def test_an_archiver_moves_runs_to_the_archive_and_removes_deleted_ones(
    secured: str, topics: Topics, tmp_path: Path
):
    rights = {
        "archive_url": f"file://{tmp_path}",
        "archive_after_seconds": 0.1,
        "archive_delete_seconds": 0.1,
    }
    settings = settings_of(Role.archiver, secured, topics, **rights)
    async with Runfold.of(settings_of(Role.service, secured, topics).log()) as runfold:
        run = await opened_run(runfold, "support.1", "Hello")
        await end(runfold, run)
        async with archiving(settings) as archiver:
            await gone(settings, [run])
            assert len(await archived_records(settings, run)) == 3
            await runfold.connection.announce(run.life.model_copy(update={"deleted": True}))

            async def is_removed() -> bool:
                return await archived_records(settings, run) == []

            await until(is_removed, what="the removal of the rows", seconds=SECONDS)

            async def is_content() -> bool:
                return await archiver.check_ready() == []

            await until(is_content, what="nothing in readiness")


async def test_a_producer_writes_to_its_runs_that_it_opens_over_http(
    secured: str, mongo: str, topics: Topics
):
    settings = settings_of(Role.service, secured, topics, mongo)
    async with (
        ready_api(settings) as api,
        projections(settings) as stored,
        working(settings, stored.edition),
        produced(secured) as producer,
    ):
        opened = await api.post("/v1/runs", json={"run_id": f"{RUNS}1", "agent_id": "travel"})
        again = await api.post("/v1/runs", json={"run_id": f"{RUNS}1", "agent_id": "travel"})
        assert (opened.status_code, again.status_code) == (201, 200)
        topic = opened.json()["topic"]
        assert topic == again.json()["topic"]
        last = await append(producer, topic, f"{RUNS}1", AssistantMessage(message="m"))
        rung = await api.post(f"/v1/runs/{RUNS}1/bell")
        read = await api.get(f"/v1/runs/{RUNS}1/events", params={"min_offset": last})
        unknown = await api.post(f"/v1/runs/{RUNS}2/bell")

        # The topic is sealed. The producer may not read the catalog, so it asks the API again.
        async with Runfold.of(settings.log()) as runfold:
            entry = await seal(runfold, (await runfold.get_run(f"{RUNS}1")).life)
        with pytest.raises(MessageSizeTooLargeError):
            await append(producer, topic, f"{RUNS}1", AssistantMessage(message="n"))
        sealed = await api.post("/v1/runs", json={"run_id": f"{RUNS}1", "agent_id": "travel"})
        assert sealed.json()["topic"] == f"{topic}.{entry.base}"
        last = await append(producer, sealed.json()["topic"], f"{RUNS}1", AssistantMessage(message="n"))
        await api.post(f"/v1/runs/{RUNS}1/bell")
        path = f"/v1/runs/{RUNS}1/events?min_offset={entry.base + last}"
        assert [event["offset"] for event in (await api.get(path)).json()["events"]] == [0, 1, entry.base]

    assert (rung.status_code, read.status_code, unknown.status_code) == (204, 200, 404)
    assert [event["event"]["type"] for event in read.json()["events"]] == ["run_opened", "assistant_message"]


async def test_a_producer_writes_to_nothing_else(secured: str, topics: Topics):
    async with Runfold.of(settings_of(Role.service, secured, topics).log()) as runfold:
        run = await runfold.open_run(run_id="support.1", agent_id="support")
        other = topics.run(run.run_id, run.life.log_id)
        async with produced(secured) as producer:
            for topic in (other, topics.catalog, *topics.shared, topics.dead_letters):
                with pytest.raises(TopicAuthorizationFailedError):
                    await append(producer, topic, run.run_id, AssistantMessage(message="m"))
        assert len([event async for event in run.events()]) == 1
    async with admin(secured, Role.producer) as client:
        created = await client.create_topics([NewTopic(topics.run(f"{RUNS}9", "0" * 32), 1, 1)])
        deleted = await client.delete_topics([other])
    assert [code for _, code, *_ in created.topic_errors] == [29]
    assert [code for _, code in deleted.topic_error_codes] == [29]
