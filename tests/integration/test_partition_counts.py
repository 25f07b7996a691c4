"""A prefix keeps the number of partitions that its shared topics were created with."""

from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from tests.commands import command
from tests.memory_verbs import check_memories_rebuild, memories_by
from tests.processes import DEADLINE_SECONDS, projector, until
from tests.querying import projected, query
from tests.servers import OwnSettings
from tests.session_stores import at_work
from tests.session_verbs import check_rebuild, differences, opened

from runfold import Memory, Runfold, UserMessage
from runfold.query.reading import Reading
from runfold.settings import Settings
from runfold.verify.memories import verify_memories
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.topics import PARTITIONS_DEFAULT

RUNS = 6


async def test_a_client_creates_the_topics_with_the_default_number(own_settings: OwnSettings) -> None:
    async with Runfold.of(own_settings().log()) as runfold:
        assert runfold.connection.topics.partitions == PARTITIONS_DEFAULT


@pytest.mark.parametrize("count", [1, 2])
async def test_everything_works_with_another_number(own_settings: OwnSettings, count: int) -> None:
    settings = own_settings(wait_timeout_seconds=20)
    async with (
        Runfold.of(own_settings(partitions=count).log()) as first,
        Runfold(settings.kafka, prefix=settings.prefix) as second,
    ):
        assert second.connection.topics.partitions == count
        async with projected(settings) as stored:
            await _publish_with_both(first, second)
            await _share(settings)
            await _read(settings, second)
            assert await differences(settings, stored.stores) == []
            compared = await verify_memories(settings.log(), stored.stores, wait_seconds=DEADLINE_SECONDS)
            assert compared[1] == []
        await check_rebuild(settings)
        await check_memories_rebuild(settings)


async def _publish_with_both(first: Runfold, second: Runfold) -> None:
    for number in range(RUNS):
        run = await first.open_run(agent_id="desk", run_id=f"run-{number}")
        await run.publish(UserMessage(message="from the first client"))
        same = await second.get_run(run.run_id)
        await same.publish(UserMessage(message="from the second client"))
        await run.complete()


async def _share(settings: Settings) -> None:
    """Sessions with shared state, memories and banks, by each of the ways."""
    for way in ("log", "stored", "http"):
        async with opened(way, settings) as sessions, memories_by(way, settings) as memories:
            for user in ("ann", "ben", "cleo"):
                state = {"user:city": user, "app:way": way, "own": 1}
                made = await sessions.create(app="shop", user=user, state=state)
                note = UserMessage(message="hello")
                await sessions.append(made.record.session_id, note, state_delta={"user:last": way})
                bank = (await memories.create_bank(f"{way}-{user}")).bank_id
                await memories.create(bank, Memory(fact="likes tea", scope={"user": user}), memory_id="tea")


async def _read(settings: Settings, runfold: Runfold) -> None:
    assert {run.run_id async for run in runfold.runs()} >= {f"run-{number}" for number in range(RUNS)}
    async with query(settings) as client:
        for number in range(RUNS):
            answer = await client.get(f"/v1/runs/run-{number}/events", params={"min_offset": 3})
            assert len(answer.json()["events"]) == 4
    for way in ("log", "stored", "http"):
        async with opened(way, settings) as sessions, memories_by(way, settings) as memories:
            listed, _ = await sessions.list(limit=100)
            assert {one.record.user for one in listed} == {"ann", "ben", "cleo"}
            assert len(listed) == 9
            assert await sessions.user_state("shop", "ann") == {"user:city": "ann", "user:last": "http"}
            assert await sessions.app_state("shop") == {"app:way": "http"}
            assert (await memories.get("log-ben", "tea")).memory.fact == "likes tea"


async def test_the_commands_work_with_one_partition(own_settings: OwnSettings, tmp_path: Path) -> None:
    async with Runfold.of(own_settings(partitions=1).log()) as runfold:
        for number in range(RUNS):
            run = await runfold.open_run(agent_id="desk", run_id=f"run-{number}")
            await run.publish(UserMessage(message="m"))
        session = await runfold.sessions.create(app="shop", user="ann", state={"user:a": 1})
        await runfold.memories.create_bank("desk")
    # The commands of an operator who knows the prefix alone.
    settings = own_settings(retire_seconds=10)
    async with at_work([projector(settings, tmp_path / "projector.log")]):
        for arguments, printed in (
            (["verify"], f"{RUNS + 1} runs, 1 sessions"),
            (["rebuild"], "rebuilt"),
            (["verify"], "0 differences"),
            (["rebuild", "run-3"], "run-3"),
            (["quarantine", "ls"], "nothing is in quarantine"),
            (["sessions"], session.record.session_id),
        ):
            code, output = await command(settings, *arguments)
            assert (code, printed in output) == (0, True), output


async def test_a_reader_that_starts_before_the_topics_exist_learns_their_number(
    own_settings: OwnSettings,
) -> None:
    settings = own_settings(wait_timeout_seconds=20)
    async with Reading(settings) as reading:
        assert await reading.stored_sessions.find("s") is None
        async with projected(own_settings(partitions=1)), opened("log", settings) as sessions:
            await sessions.create(app="shop", user="ann", session_id="s")

            async def is_found() -> bool:
                return await reading.stored_sessions.find("s") is not None

            await until(is_found, what="the session")
            assert (await reading.shared.topics()).partitions == 1


@pytest.mark.parametrize("topic", ["runs", "sessions", "memories", "banks"])
async def test_partitions_added_to_one_topic_are_refused(own_settings: OwnSettings, topic: str) -> None:
    settings = own_settings()
    async with Runfold.of(settings.log()):
        pass

    await _add_partitions(settings, [topic])

    with pytest.raises(ConfigurationError, match=rf"\.{topic} has 13 partitions|\.runs has 13\. All"):
        async with Runfold.of(settings.log()):
            pass
    async with Reading(settings) as reading:
        with pytest.raises(ConfigurationError, match="13"):
            await reading.stored_sessions.find("s")


async def test_a_number_that_is_not_the_configured_one_is_refused(own_settings: OwnSettings) -> None:
    async with Runfold.of(own_settings(partitions=1).log()):
        pass

    with pytest.raises(ConfigurationError, match="has 1 partitions, and 12 are configured"):
        async with Runfold.of(own_settings(partitions=12).log()):
            pass


async def test_partitions_added_to_all_topics_are_refused_by_services_with_their_database(
    own_settings: OwnSettings,
) -> None:
    settings = own_settings()
    async with projected(settings), opened("log", settings) as sessions:
        await sessions.create(app="shop", user="ann", session_id="s")

    await _add_partitions(settings, ["runs", "sessions", "memories", "banks"])

    refused = "runs has 13 partitions, and MongoDB was folded from topics with 12"
    with pytest.raises(ConfigurationError, match=refused):
        async with projected(settings):
            pass
    async with Reading(settings) as reading:
        with pytest.raises(ConfigurationError, match=refused):
            await reading.stored_sessions.find("s")


async def _add_partitions(settings: Settings, names: list[str]) -> None:
    """What `kafka-topics --alter --partitions 13` does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        topics = [f"{settings.prefix}.{name}" for name in names]
        await admin.create_partitions({topic: NewPartitions(13) for topic in topics})

        async def are_known() -> bool:
            return all(len(each["partitions"]) == 13 for each in await admin.describe_topics(topics))

        await until(are_known, what="the new partitions in the metadata")
    finally:
        await admin.close()
