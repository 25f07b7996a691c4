"""The ids of topics, and their deletion by id. Kafka gives each topic an id, so a topic that was
created again under the same name is never deleted by mistake.

aiokafka has neither request in a version with ids, so both are defined here.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from runfold.log.driver import kafka_errors

_NO_ID: Final = bytes(16)

_UNKNOWN_ID: Final = 100
"""The error of Kafka's protocol for an id that no topic has."""

_TOPICS_MAX: Final = 250
"""The number of topics in one request."""


async def topic_ids(client: AIOKafkaClient, names: Collection[str]) -> dict[str, bytes]:
    """The ids of those of the topics that exist. Raises `UnavailableError`."""
    ids: dict[str, bytes] = {}
    ordered = sorted(set(names))
    with kafka_errors():
        for first in range(0, len(ordered), _TOPICS_MAX):
            request = _Metadata(ordered[first : first + _TOPICS_MAX])
            answer: Any = await client.send(client.get_random_node(), request)
            for code, name, topic_id, *_ in answer.topics:
                error = for_code(code)
                if not code:
                    ids[name] = topic_id
                elif error is not UnknownTopicOrPartitionError:
                    raise error(name)
    return ids


async def delete_topics(
    client: AIOKafkaClient, ids: Mapping[str, bytes], *, timeout_seconds: float
) -> dict[str, str]:
    """Deletes the topics that have these ids, each under its name. Returns why topics were not
    deleted, by name. A topic that is gone counts as deleted. Raises `UnavailableError`.
    """
    names = {topic_id: name for name, topic_id in ids.items()}
    refused: dict[str, str] = {}
    ordered = sorted(names)
    with kafka_errors():
        for first in range(0, len(ordered), _TOPICS_MAX):
            request = _Delete(ordered[first : first + _TOPICS_MAX], int(1000 * timeout_seconds))
            answer: Any = await client.send(client.get_random_node(), request)
            for _, topic_id, code, message, _ in answer.responses:
                error: type[KafkaError] = for_code(code)
                if code and code != _UNKNOWN_ID and error is not UnknownTopicOrPartitionError:
                    refused[names[topic_id]] = message or error.__name__
    return refused


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka is untyped
    """The 16 bytes of an id."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: Any) -> bytes:
        return bytes(data.read(16))


_TEXT: Final = CompactString("utf-8")


class _MetadataResponse_v12(Response):  # type: ignore[misc]  # noqa: N801 - aiokafka's names
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", _TEXT),
                ("port", Int32),
                ("rack", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", _TEXT),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _MetadataRequest_v12(RequestStruct):  # type: ignore[misc]  # noqa: N801 - aiokafka's names
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = _MetadataResponse_v12
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", _TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _Metadata(Request[_MetadataRequest_v12]):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 3

    def __init__(self, names: Collection[str]) -> None:
        self._topics: list[Any] = [(_NO_ID, name, {}) for name in names]

    def build(self, request_struct_class: type[_MetadataRequest_v12]) -> _MetadataRequest_v12:
        return request_struct_class(self._topics, False, False, {})


class _DeleteResponse_v6(Response):  # type: ignore[misc]  # noqa: N801 - aiokafka's names
    API_KEY = 20
    API_VERSION = 6
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "responses",
            CompactArray(
                ("name", _TEXT),
                ("topic_id", _Uuid),
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _DeleteRequest_v6(RequestStruct):  # type: ignore[misc]  # noqa: N801 - aiokafka's names
    FLEXIBLE_VERSION = True
    API_KEY = 20
    API_VERSION = 6
    RESPONSE_TYPE = _DeleteResponse_v6
    SCHEMA = Schema(
        ("topics", CompactArray(("name", _TEXT), ("topic_id", _Uuid), ("tags", TaggedFields))),
        ("timeout_ms", Int32),
        ("tags", TaggedFields),
    )


class _Delete(Request[_DeleteRequest_v6]):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 20

    def __init__(self, ids: Collection[bytes], timeout_ms: int) -> None:
        self._topics: list[Any] = [(None, topic_id, {}) for topic_id in ids]
        self._timeout_ms = timeout_ms

    def build(self, request_struct_class: type[_DeleteRequest_v6]) -> _DeleteRequest_v6:
        return request_struct_class(self._topics, self._timeout_ms, {})
