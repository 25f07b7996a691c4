"""Lists all topics, each with the leader of its first partition.

aiokafka decodes the metadata of 10,000 topics in one go, which holds the event loop up for more
than 0.1 s. Here the answer is read in portions, and only what is needed of it.
"""

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from io import BytesIO
from typing import Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.api import Request
from aiokafka.protocol.metadata import MetadataRequest_v5, MetadataResponse_v5

_PORTION: Final = 500
"""The number of topics that are read without a pause: about 2 ms."""

_NO_LEADER: Final = -1

_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_PARTITION = struct.Struct(">hii")


async def topic_leaders(client: AIOKafkaClient) -> AsyncIterator[tuple[str, int]]:
    """All topics, each with the broker that leads its first partition, -1 if there is none. Raises
    `KafkaError`.
    """
    for number, entry in enumerate(_entries((await _answer(client)).content), 1):
        yield entry
        if not number % _PORTION:
            await asyncio.sleep(0)


async def _answer(client: AIOKafkaClient) -> "_Response":
    brokers = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(brokers)
    for broker in brokers:
        with suppress(KafkaError, TimeoutError, OSError):
            answer: _Response = await client.send(broker, _ListTopics())
            return answer
    raise KafkaConnectionError("no broker answered the request for all topics")


def _entries(content: bytes) -> Iterator[tuple[str, int]]:
    at = _INT.size  # the time for which the client should pause
    at = _behind_brokers(content, at)
    at = _behind_text(content, at) + _INT.size  # the cluster's id, and the controller
    (topics,) = _INT.unpack_from(content, at)
    at += _INT.size
    for _ in range(topics):
        begin = at + 2 * _SHORT.size
        at = begin + _SHORT.unpack_from(content, at + _SHORT.size)[0]
        name = content[begin:at].decode()
        (partitions,) = _INT.unpack_from(content, at + 1)  # behind whether the topic is internal
        at += 1 + _INT.size
        first = _NO_LEADER
        for _ in range(partitions):
            error, number, leader = _PARTITION.unpack_from(content, at)
            at += _PARTITION.size
            for _ in range(3):  # the replicas: all, those in sync, those offline
                at += _INT.size * (1 + _INT.unpack_from(content, at)[0])
            if number == 0 and not error:
                first = leader
        yield name, first


def _behind_brokers(content: bytes, at: int) -> int:
    (brokers,) = _INT.unpack_from(content, at)
    at += _INT.size
    for _ in range(brokers):
        at = _behind_text(content, at + _INT.size)  # the id and the host
        at = _behind_text(content, at + _INT.size)  # the port and the rack
    return at


def _behind_text(content: bytes, at: int) -> int:
    (size,) = _SHORT.unpack_from(content, at)
    return at + _SHORT.size + max(int(size), 0)


class _Response(MetadataResponse_v5):  # type: ignore[misc]  # aiokafka is untyped
    """An answer that is not decoded yet."""

    content: bytes

    @classmethod
    def decode(cls, data: BytesIO | bytes) -> "_Response":
        response = cls(0, [], "", 0, [])
        response.content = data.read() if isinstance(data, BytesIO) else data
        return response


class _Request(MetadataRequest_v5):  # type: ignore[misc]  # aiokafka is untyped
    RESPONSE_TYPE = _Response


class _ListTopics(Request[_Request]):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 3

    def build(self, version: type[_Request]) -> _Request:
        return version(None, False)
