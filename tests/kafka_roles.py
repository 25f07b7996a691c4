"""Programs with the four roles on a Kafka that refuses everything that no ACL allows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from aiokafka import AIOKafkaProducer
from tests.kafka_rights import execute
from tests.processes import DEADLINE_SECONDS
from tests.secured_kafka import by_password

from runfold import Runfold
from runfold.client.records import outgoing
from runfold.log.acls import Role, acls_of, commands
from runfold.settings import Settings
from runfold_schemas.codec import new_event
from runfold_schemas.data import Data
from runfold_schemas.topics import Topics

RUNS = "travel."
"""The runs of the producer. A dot is escaped in the names of topics."""


def settings_of(
    role: Role, secured: str, topics: Topics, mongo: str = "mongodb://nowhere", **settings: Any
) -> Settings:
    return Settings(
        kafka=secured,
        mongo=mongo,
        prefix=topics.prefix,
        database=topics.prefix,
        partitions=2,
        kafka_options=by_password(user=role),
        wait_timeout_seconds=10,
        publish_timeout_seconds=10,
        **settings,
    )


async def new_installation(secured: str) -> Topics:
    """An installation whose topics exist, and the rights of each role in it."""
    topics = Topics(f"t{uuid4().hex[:8]}")
    acls = {role: acls_of(role, topics, runs=RUNS if role is Role.producer else "") for role in Role}
    await asyncio.gather(*(execute(secured, commands(acls[role], kafka=secured, user=role)) for role in Role))
    async with Runfold.of(settings_of(Role.service, secured, topics).log()) as runfold:
        return runfold.connection.topics


@asynccontextmanager
async def produced(secured: str) -> AsyncIterator[AIOKafkaProducer]:
    options = by_password(user=Role.producer)
    producer = AIOKafkaProducer(bootstrap_servers=secured, enable_idempotence=True, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def append(producer: AIOKafkaProducer, topic: str, run_id: str, data: Data, **envelope: Any) -> int:
    """Appends an event by no client of ours. Returns its offset."""
    event = new_event(data, event_id=str(uuid4()), run_id=run_id, timestamp=datetime.now(UTC), **envelope)
    record = outgoing(event, source="producer")
    sent = producer.send_and_wait(
        topic, record.value, key=record.key, headers=list(record.headers), partition=0
    )
    return (await asyncio.wait_for(sent, DEADLINE_SECONDS)).offset
