"""Rights on Kafka for tests: given by the commands that `runfold acls` prints, and asked of the
broker.
"""

import argparse
import asyncio
import shlex
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import GroupAuthorizationFailedError, GroupCoordinatorNotAvailableError
from aiokafka.protocol.admin import CreateAclsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String
from tests.querying import POLL_SECONDS
from tests.secured_kafka import ADMIN, by_password

RESOURCES = {"topic": 2, "group": 3, "cluster": 4}
PATTERNS = {"literal": 3, "prefixed": 4}
OPERATIONS = {
    "All": 2,
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Delete": 6,
    "Alter": 7,
    "Describe": 8,
    "ClusterAction": 9,
    "DescribeConfigs": 10,
    "AlterConfigs": 11,
    "IdempotentWrite": 12,
    "CreateTokens": 13,
    "DescribeTokens": 14,
}
ALLOW = 3
_REFUSED, _CLUSTER_REFUSED = 29, 31
CLUSTER = "kafka-cluster"


@asynccontextmanager
async def admin(secured: str, user: str = ADMIN) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=secured, **by_password(user=user))
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def execute(secured: str, commands: Iterable[str]) -> None:
    """Does what `kafka-acls.sh` does, which is no part of the libraries that the tests have."""
    parser = argparse.ArgumentParser()
    for name in ("--bootstrap-server", "--allow-principal", "--topic", "--group"):
        parser.add_argument(name)
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--operation", action="append")
    parser.add_argument("--resource-pattern-type", default="literal", choices=PATTERNS)
    async with admin(secured) as client:
        for command in commands:
            tool, *words = shlex.split(command)
            assert tool == "kafka-acls.sh"
            given = parser.parse_args(words)
            kind = "cluster" if given.cluster else "topic" if given.topic else "group"
            name = CLUSTER if given.cluster else given.topic or given.group
            pattern = PATTERNS[given.resource_pattern_type]
            for operation in given.operation:
                request = CreateAclsRequest(
                    RESOURCES[kind], name, pattern, given.allow_principal, "*", OPERATIONS[operation], ALLOW
                )
                answer = await client._send_request(request)  # aiokafka has no method for ACLs
                assert "error_code=0" in str(answer), answer


async def rights(secured: str, user: str, topics: Iterable[str]) -> dict[str, set[str]]:
    """The operations that the broker allows the user on each topic. All topics exist."""
    async with admin(secured, user) as client:
        answer = await client._send_request(_RightsRequest(list(topics)))
        while not {topic[0] for topic in answer.topics} <= {0, _REFUSED}:  # a new topic has no leader yet
            await asyncio.sleep(POLL_SECONDS)
            answer = await client._send_request(_RightsRequest(list(topics)))
    return {topic[1]: _names(topic[4]) if not topic[0] else set() for topic in answer.topics}


async def describes_brokers(secured: str, user: str) -> bool:
    """Whether the user may read the configuration of a broker."""
    async with admin(secured, user) as client:
        (answer,) = await client.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")])
    code = answer.resources[0][0]
    assert code in (0, _CLUSTER_REFUSED), answer
    return code == 0


async def may_use_group(secured: str, user: str, group: str) -> bool:
    async with admin(secured, user) as client:
        while True:
            try:
                await client.find_coordinator(group)
            except GroupAuthorizationFailedError:
                return False
            except GroupCoordinatorNotAvailableError:  # the broker makes its topic of groups
                await asyncio.sleep(POLL_SECONDS)
            else:
                return True


def _names(bits: int) -> set[str]:
    return {name for name, number in OPERATIONS.items() if bits != -(2**31) and bits & (1 << number)}


class _RightsResponse8(Response):
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(("id", Int32), ("host", String()), ("port", Int32), ("rack", String())),
        ),
        ("cluster_id", String()),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String()),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _RightsRequest8(RequestStruct):
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _RightsResponse8
    SCHEMA = Schema(
        ("topics", Array(String())),
        ("creates", Boolean),
        ("includes_cluster", Boolean),
        ("includes_topics", Boolean),
    )


class _RightsRequest(Request[_RightsRequest8]):
    """Metadata, with the rights of the login that asks."""

    API_KEY = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(self, struct: type) -> _RightsRequest8:
        return struct(self._topics, False, True, True)
