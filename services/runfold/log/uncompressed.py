"""Sets `compression.type=uncompressed` on topics that lack it. The broker then unpacks what other
producers compress, so that clients without the codecs read it, and refuses a batch that unpacks to
more than the topic allows.

Only this setting is altered. aiokafka's `alter_configs` would reset all other settings of a topic,
so the request of Kafka's protocol that alters one setting is defined here.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Schema, String

from runfold.log.driver import kafka_errors

COMPRESSION: Final = {"compression.type": "uncompressed"}
"""The setting, for new topics."""

_TOPICS_MAX: Final = 250
"""The number of topics in one request."""

_SET: Final = 0
"""The operation of Kafka's protocol that sets a value."""

_FOR_ALL_TOPICS: Final = (
    ClusterAuthorizationFailedError,
    TopicAuthorizationFailedError,
    PolicyViolationError,
)
"""What Kafka refuses for one topic so, it refuses for the others too."""

_log = logging.getLogger(__name__)


class Uncompressed:
    """Remembers which topics have the setting, so that each topic is asked about once."""

    def __init__(self, client: AIOKafkaAdminClient) -> None:
        self._client = client
        self._settled: set[str] = set()
        self._refused = False

    async def settle(self, topics: Collection[str]) -> None:
        """Sets what is missing on `topics`, which are all topics of the caller. Without the right,
        it logs a warning and tries no more. Raises `UnavailableError`.
        """
        self._settled.intersection_update(topics)
        missing = sorted(set(topics) - self._settled)
        for begin in range(0, len(missing), _TOPICS_MAX):
            if self._refused:
                return
            with kafka_errors():
                try:
                    await self._settle(missing[begin : begin + _TOPICS_MAX])
                except IncompatibleBrokerVersion as error:
                    self._give_up(str(error))

    async def _settle(self, topics: Collection[str]) -> None:
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, COMPRESSION) for name in topics]
        (described,) = await self._client.describe_configs(resources)
        wrong = []
        for code, message, _, name, entries in described.resources:
            if code:
                self._note_error(name, code, message)
            elif (COMPRESSION.items()) <= {entry[0]: entry[1] for entry in entries}.items():
                self._settled.add(name)
            else:
                wrong.append(name)
        if wrong and not self._refused:
            await self._alter(wrong)

    async def _alter(self, topics: Iterable[str]) -> None:
        request = new_alter_request(dict.fromkeys(topics, COMPRESSION))
        answer = await self._client._send_request(request)  # noqa: SLF001 - aiokafka shows no other way
        for code, message, _, name in answer.resources:
            if code:
                self._note_error(name, code, message)
            else:
                self._settled.add(name)

    def _note_error(self, topic: str, code: int, message: str | None) -> None:
        error: KafkaError = for_code(code)(message or topic)
        if isinstance(error, _FOR_ALL_TOPICS):
            self._give_up(str(error))
        # The topic may be deleted meanwhile, and the next sweep asks again.
        elif not isinstance(error, UnknownTopicOrPartitionError) and not error.retriable:
            self._settled.add(topic)
            _log.warning("topic %s keeps its compression.type: %s", topic, error)

    def _give_up(self, reason: str) -> None:
        if not self._refused:
            self._refused = True
            _log.warning(
                "topics keep their compression.type, because Kafka refuses to set it: %s. Compressed records"
                " of other producers stay unreadable for clients without cramjam; to change that, set"
                " compression.type=uncompressed on all topics of Runfold, or allow the projector to describe"
                " and alter their configuration",
                reason,
            )


def new_alter_request(changes: Mapping[str, Mapping[str, str]]) -> Any:
    """A request that sets these settings of topics, and leaves others as they are."""
    return _AlterRequest(
        [
            (ConfigResourceType.TOPIC, topic, [(name, _SET, value) for name, value in settings.items()])
            for topic, settings in changes.items()
        ]
    )


class _AlterResponse_v0(Response):  # type: ignore[misc]  # noqa: N801 - aiokafka's names
    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "resources",
            Array(
                ("error_code", Int16),
                ("error_message", String("utf-8")),
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
            ),
        ),
    )


class _AlterRequest_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801 - aiokafka's names
    """IncrementalAlterConfigs."""

    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = _AlterResponse_v0
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
                (
                    "configs",
                    Array(
                        ("name", String("utf-8")),
                        ("operation", Int8),
                        ("value", String("utf-8")),
                    ),
                ),
            ),
        ),
        ("validate_only", Boolean),
    )


class _AlterRequest(Request[_AlterRequest_v0]):  # type: ignore[misc]  # aiokafka is untyped
    API_KEY = 44

    def __init__(self, resources: list[Any]) -> None:
        self._resources = resources

    def build(self, request_struct_class: type[_AlterRequest_v0]) -> _AlterRequest_v0:
        return request_struct_class(self._resources, False)
