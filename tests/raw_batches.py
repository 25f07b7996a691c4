"""Batches as any program may send them: compressed, corrupt, with header names that are no text."""

import gzip
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import cramjam
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.codec import lz4_encode, snappy_encode
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.util import calc_crc32c, encode_varint
from tests.processes import until

from runfold.log.uncompressed import _AlterRequest
from runfold_schemas.topics import RECORD_BYTES_MAX, Partition

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_AT = 17
ATTRIBUTES_AT = 21

_UNKNOWN_TOPIC, _NOT_LEADER, _TOO_LARGE = 3, 6, 10


def zstd_encode(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


CODECS: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "gzip": (1, gzip.compress),
    "snappy": (2, snappy_encode),
    "lz4": (3, lz4_encode),
    "zstd": (4, zstd_encode),
}


class Raw(NamedTuple):
    """A record before it is in a batch."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def varint(value: int) -> bytes:
    encoded = bytearray()
    encode_varint(value, encoded.append)
    return bytes(encoded)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_record(record: Raw, offset: int) -> bytes:
    pairs = b"".join(sized(name) + sized(value) for name, value in record.headers)
    body = b"\x00" + varint(0) + varint(offset) + sized(record.key) + sized(record.value)
    body += varint(len(record.headers)) + pairs
    return varint(len(body)) + body


def encode_records(records: Sequence[Raw]) -> bytes:
    return b"".join(encode_record(record, offset) for offset, record in enumerate(records))


def batch(count: int, payload: bytes, *, codec: int = 0, base_offset: int = 0) -> bytes:
    """A batch in format 2 with this payload, which is compressed already where there is a codec."""
    rest = struct.pack(">hiqqqhii", codec, count - 1, 1, 1, -1, -1, -1, count) + payload
    return struct.pack(">qiibI", base_offset, len(rest) + 9, -1, 2, calc_crc32c(rest)) + rest


def compressed(records: Sequence[Raw], codec: str, *, base_offset: int = 0) -> bytes:
    number, encode = CODECS[codec]
    return batch(len(records), encode(encode_records(records)), codec=number, base_offset=base_offset)


def plain(records: Sequence[Raw], *, base_offset: int = 0) -> bytes:
    return batch(len(records), encode_records(records), base_offset=base_offset)


class Sender:
    """Appends batches as they are, and changes single settings of topics."""

    def __init__(self, client: AIOKafkaClient, admin: AIOKafkaAdminClient) -> None:
        self._client = client
        self._admin = admin

    async def try_to_send(self, at: Partition, data: bytes) -> int:
        """Kafka's error code."""
        await self._client.set_topics([at.topic])
        while (leader := self._client.cluster.leader_for_partition(at)) in (None, -1):
            await self._client.force_metadata_update()
        request = ProduceRequest(None, -1, 30_000, [(at.topic, [(at.partition, data)])])
        response = await self._client.send(leader, request)
        return response.topics[0][1][0][1]

    async def send(self, at: Partition, data: bytes) -> None:
        """Tries again while the broker has not made the log of a new topic yet.

        A batch that unpacks to too much is refused if a projector has altered the topic again. A
        projector does so once more when its partitions were taken from it for a while.
        """

        async def is_sent() -> bool:
            error = await self.try_to_send(at, data)
            assert error in (0, _UNKNOWN_TOPIC, _NOT_LEADER, _TOO_LARGE), f"Kafka's error {error}"
            if error == _TOO_LARGE:
                await self.set_compression(at.topic)
            return not error

        await until(is_sent, what=f"a batch in {at}")

    async def create(self, topic: str) -> None:
        """A run's topic, as an earlier version created it."""
        settings = {
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": "1",
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": str(RECORD_BYTES_MAX),
            "compression.type": "producer",
        }
        new = NewTopic(topic, num_partitions=1, replication_factor=1, topic_configs=settings)
        answer = await self._admin.create_topics([new])
        assert [entry[1] for entry in answer.topic_errors] == [0]

    async def set_compression(self, topic: str, value: str = "producer") -> None:
        """As topics were that an earlier version created."""
        resource = (ConfigResourceType.TOPIC, topic, [("compression.type", 0, value)])

        # The controller answers before the broker applies the setting, and a sweep may alter it.
        async def is_applied() -> bool:
            answer = await self._admin._send_request(_AlterRequest([resource]))
            assert [entry[0] for entry in answer.resources] == [0]
            return (await self.settings_of(topic))["compression.type"] == value

        await until(is_applied, what=f"the setting of {topic}")

    async def settings_of(self, topic: str) -> dict[str, str]:
        (answer,) = await self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return {entry[0]: entry[1] for entry in answer.resources[0][4]}


@asynccontextmanager
async def sender(kafka: str) -> AsyncIterator[Sender]:
    client, admin = AIOKafkaClient(bootstrap_servers=kafka), AIOKafkaAdminClient(bootstrap_servers=kafka)
    try:
        await client.bootstrap()
        await admin.start()
        yield Sender(client, admin)
    finally:
        await client.close()
        await admin.close()
