"""A Kafka of several brokers on this machine, whose partitions a test can move from one to another.

Each broker is a service of its own that a test can kill and start again. Node 1 is the controller
as well.
"""

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.admin import AlterPartitionReassignmentsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Schema, String
from tests.processes import until

from runfold.local import Service, free_port
from runfold.local.kafka import SETTINGS
from runfold.local.kafka_classes import kafka_java
from runfold.local.readiness import ready_line
from runfold.local.service import run_to_end
from runfold_schemas.topics import Partition

HEAP_MB: Final = 192

REPLICATED: Final = {
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    # A broker that was killed is refused until the controller gives up its last life.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Every five minutes, a controller would move leaders back to where they were before.
    "auto.leader.rebalance.enable": "false",
}
"""The settings of two brokers of which either can be away."""


class Cluster:
    """Started brokers. Their numbers begin at 1."""

    def __init__(self, brokers: Mapping[int, Service], ports: Mapping[int, int]) -> None:
        self.brokers = brokers
        self.addresses = {node: f"127.0.0.1:{port}" for node, port in ports.items()}

    @property
    def kafka(self) -> str:
        """The bootstrap address."""
        return ",".join(self.addresses.values())

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    async def create(self, topic: str, *, leaders: list[int], replicas: int = 1) -> None:
        """A topic with one partition for each of `leaders`, which is also its first replica."""
        nodes = sorted(self.brokers)
        assignments = {
            partition: sorted(nodes, key=lambda node: (node != leader, node))[:replicas]
            for partition, leader in enumerate(leaders)
        }
        async with self.admin() as admin:
            await admin.create_topics([NewTopic(topic, -1, -1, replica_assignments=assignments)])
        for partition, leader in enumerate(leaders):
            await self._is_led(Partition(topic, partition), leader)

    async def move(self, at: Partition, leader: int) -> None:
        """Makes another broker the leader of a partition, and waits until both brokers know it.

        The partition's replicas stay as many as they were. A single replica is copied to `leader`.
        """
        async with self.admin() as admin:
            replicas = (await _replicas(admin, at))[1]
            others = [node for node in replicas if node != leader][: len(replicas) - 1]
            assignment = (at.topic, [(at.partition, [leader, *others], {})], {})
            request = AlterPartitionReassignmentsRequest(30_000, [assignment], {})
            answer = await admin._send_request(request)  # aiokafka has no method for it
            assert answer.error_code == 0, answer
            if len(replicas) > 1:
                await admin._send_request(_ElectLeaders([(at.topic, [at.partition])]))
        await self._is_led(at, leader)

    async def are_up(self) -> None:
        """Waits until every broker knows of every other one that it is there."""
        async with self.admin() as admin:
            for node in self.brokers:

                async def knows_all(node: int = node) -> bool:
                    answer = await _metadata(admin, node, [])
                    return {broker[0] for broker in answer.brokers} == set(self.brokers)

                await until(knows_all, what=f"all brokers at broker {node}")

    async def leader(self, at: Partition) -> int:
        async with self.admin() as admin:
            return (await _replicas(admin, at))[0]

    async def _is_led(self, at: Partition, leader: int) -> None:
        """Waits until every broker knows the partition's leader, and no replica that is on the
        way.
        """
        async with self.admin() as admin:
            for node in self.brokers:

                async def knows(node: int = node) -> bool:
                    led_by, replicas = await _replicas(admin, at, node)
                    return led_by == leader == replicas[0]

                await until(knows, what=f"the leader {leader} of {at} at broker {node}")


async def _replicas(
    admin: AIOKafkaAdminClient, at: Partition, node: int | None = None
) -> tuple[int, list[int]]:
    """The leader of a partition and its replicas, as that broker knows them. -1 is no leader."""
    node = admin._client.get_random_node() if node is None else node
    [(*_, partitions)] = (await _metadata(admin, node, [at.topic])).topics
    found = [(leader, replicas) for _, number, leader, replicas, *_ in partitions if number == at.partition]
    return found[0] if found else (-1, [-1])


async def _metadata(admin: AIOKafkaAdminClient, node: int, topics: list[str]) -> Any:
    while not await admin._client.ready(node):
        await asyncio.sleep(0.05)
    return await admin._client.send(node, MetadataRequest(topics))


@asynccontextmanager
async def cluster(
    folder: Path, *, settings: Mapping[str, str], own: Sequence[Mapping[str, str]] = ({}, {})
) -> AsyncIterator[Cluster]:
    """Brokers with these settings beside those of the local stack, and each with its own."""
    java = await kafka_java(heap_mb=HEAP_MB, progress=print)
    nodes = range(1, len(own) + 1)
    ports, controller_port = {node: free_port() for node in nodes}, free_port()
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    services = {}
    for node in nodes:
        place = {
            "node.id": str(node),
            "process.roles": "broker,controller" if node == 1 else "broker",
            "log.dirs": str(folder / f"kafka-{node}"),
            "listeners": f"PLAINTEXT://127.0.0.1:{ports[node]}"
            + (f",CONTROLLER://127.0.0.1:{controller_port}" if node == 1 else ""),
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports[node]}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        }
        properties = folder / f"kafka-{node}.properties"
        lines = [
            f"{name}={value}\n" for name, value in (SETTINGS | place | {**settings, **own[node - 1]}).items()
        ]
        properties.write_text("".join(lines))
        services[node] = Service(
            f"Kafka {node}",
            java.command("kafka.Kafka", str(properties)),
            ready=ready_line("Kafka Server started"),
            log=folder / f"kafka-{node}.log",
            stops_slowly=True,
        )
    await asyncio.gather(
        *(
            run_to_end(
                "Kafka's storage tool",
                java.command(
                    "kafka.tools.StorageTool",
                    "format",
                    f"--cluster-id={cluster_id}",
                    f"--config={folder / f'kafka-{node}.properties'}",
                ),
            )
            for node in nodes
        )
    )
    try:
        await asyncio.gather(*(service.start() for service in services.values()))
        yield Cluster(services, ports)
    finally:
        # No test needs these logs any more.
        await asyncio.gather(*(service.kill() for service in services.values()))


class _ElectLeadersResponse(Response):
    API_KEY = 43
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "results",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", String("utf-8")),
                    ),
                ),
            ),
        ),
    )


class _ElectLeadersStruct(RequestStruct):
    API_KEY = 43
    API_VERSION = 1
    RESPONSE_TYPE = _ElectLeadersResponse
    SCHEMA = Schema(
        ("election_type", Int8),
        ("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))),
        ("timeout_ms", Int32),
    )


class _ElectLeaders(Request[_ElectLeadersStruct]):
    """Makes the first replica of each partition its leader, which aiokafka has no request for."""

    API_KEY = 43

    def __init__(self, topics: list[tuple[str, list[int]]]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_ElectLeadersStruct]) -> _ElectLeadersStruct:
        return request_struct_class(0, self._topics, 30_000)
