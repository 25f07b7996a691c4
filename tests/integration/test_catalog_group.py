"""The consumer group on the catalog while Kafka gives its partitions to members anew."""

from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.group import LeaveGroupRequest
from tests.partitions import partition_of
from tests.processes import until

from runfold import Runfold
from runfold.log.catalog_group import CatalogRecord, catalog_group
from runfold_schemas.codec import UnreadableBatch

GROUP = "takers"


@pytest.fixture
async def runfold(kafka: str) -> AsyncIterator[Runfold]:
    async with Runfold(kafka, prefix=f"t{uuid4().hex[:8]}", create_topics=True) as runfold:
        yield runfold


async def remove_members(kafka: str, group_id: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        coordinator = await admin.find_coordinator(group_id)
        described = (await admin.describe_consumer_groups([group_id]))[0].groups[0]
        for member_id, *_ in described[-1]:
            left = await admin._send_request(LeaveGroupRequest(group_id, member_id), coordinator)
            assert left.error_code == 0
    finally:
        await admin.close()


async def committed(kafka: str, group_id: str, at: TopicPartition) -> int:
    async with AIOKafkaConsumer(bootstrap_servers=kafka, group_id=group_id) as consumer:
        return await consumer.committed(at) or 0


async def test_a_member_that_must_join_anew_takes_again_what_it_could_not_commit(runfold: Runfold):
    settings = runfold.connection.settings
    group_id = f"{settings.prefix}.{GROUP}"
    taken: list[str] = []

    async def take(records: Sequence[CatalogRecord], _: Sequence[UnreadableBatch]) -> None:
        if not taken:
            await remove_members(settings.kafka, group_id)
        taken.extend(str(record.record.key) for record in records)

    async def assigned(_: set[int]) -> None:
        pass

    run = await runfold.open_run(agent_id="a")
    async with catalog_group(
        settings,
        GROUP,
        member_id=None,
        session_timeout_seconds=30,
        on_assigned=assigned,
        on_records=take,
    ) as failed:

        async def came_again() -> bool:
            assert not failed.done(), failed.exception()
            return len(taken) > 1

        await until(came_again, what="the same record once more")
        catalog = TopicPartition(runfold.connection.topics.catalog, partition_of(run.run_id))

        async def is_committed() -> bool:
            return await committed(settings.kafka, group_id, catalog) == 1

        await until(is_committed, what="the commit of the record")
    assert len(set(taken)) == 1
