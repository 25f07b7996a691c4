"""Consumer groups as Kafka sees them."""

from aiokafka.admin import AIOKafkaAdminClient

from runfold.settings import Settings


async def has_members(settings: Settings, group: str, members: int) -> bool:
    """Whether the group has as many members, and each has its partitions."""
    client = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await client.start()
    try:
        (answer,) = await client.describe_consumer_groups([group])
    finally:
        await client.close()
    (_, _, state, _, _, found) = answer.groups[0]
    return state == "Stable" and len(found) == members
