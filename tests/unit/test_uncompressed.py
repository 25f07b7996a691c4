"""Which topics the setting is asked for and set on, a few hundred in one request."""

import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidConfigurationError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)

from runfold.log.uncompressed import Uncompressed

TOPICS = [f"topic-{number:03}" for number in range(600)]


class Admin:
    """Answers as Kafka does for topics with these settings."""

    def __init__(self, settings: Mapping[str, str], *, refused: Mapping[str, int] | None = None) -> None:
        self.settings = dict(settings)
        self.refused = dict(refused or {})
        self.described: list[list[str]] = []
        self.altered: list[list[str]] = []

    async def describe_configs(self, resources: Sequence[ConfigResource]) -> list[Any]:
        names = [resource.name for resource in resources]
        self.described.append(names)
        found = [(0, None, 2, name, [("compression.type", self.settings[name])]) for name in names]
        return [SimpleNamespace(resources=found)]

    async def _send_request(self, request: Any) -> Any:
        asked = request._resources
        self.altered.append([name for _, name, _ in asked])
        answers = []
        for _, name, settings in asked:
            code = self.refused.get(name, 0)
            if not code:
                ((_, _, self.settings[name]),) = settings
            answers.append((code, None, 2, name))
        return SimpleNamespace(resources=answers)


def uncompressed(admin: Admin) -> Uncompressed:
    return Uncompressed(cast(AIOKafkaAdminClient, admin))


async def test_250_topics_are_asked_for_and_set_at_a_time_and_each_of_them_once():
    admin = Admin(dict.fromkeys(TOPICS, "producer") | {TOPICS[0]: "uncompressed"})
    own = uncompressed(admin)

    await own.settle(TOPICS)
    await own.settle([*TOPICS])

    assert [len(names) for names in admin.described] == [250, 250, 100]
    assert [len(names) for names in admin.altered] == [249, 250, 100]
    assert set(admin.settings.values()) == {"uncompressed"}


async def test_a_topic_that_comes_later_is_asked_for_alone():
    admin = Admin(dict.fromkeys(TOPICS[:3], "producer"))
    own = uncompressed(admin)
    await own.settle(TOPICS[:2])

    await own.settle(TOPICS[:3])

    assert admin.altered == [TOPICS[:2], [TOPICS[2]]]


async def test_without_the_right_there_is_one_warning_and_no_further_request(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.WARNING, "runfold.log.uncompressed")
    code = ClusterAuthorizationFailedError.errno
    admin = Admin(dict.fromkeys(TOPICS, "producer"), refused=dict.fromkeys(TOPICS, code))
    own = uncompressed(admin)

    await own.settle(TOPICS)
    await own.settle(TOPICS)

    assert [len(names) for names in admin.altered] == [250]
    assert [record.name for record in caplog.records] == ["runfold.log.uncompressed"]


async def test_an_error_of_one_topic_concerns_this_topic_alone(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "runfold.log.uncompressed")
    refused = {TOPICS[0]: InvalidConfigurationError.errno}
    admin = Admin(dict.fromkeys(TOPICS, "producer"), refused=refused)
    own = uncompressed(admin)

    await own.settle(TOPICS)
    await own.settle(TOPICS)

    assert [len(names) for names in admin.altered] == [250, 250, 100]
    assert [name for name in TOPICS if admin.settings[name] == "producer"] == [TOPICS[0]]
    assert [TOPICS[0] in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("error", [UnknownTopicOrPartitionError, RequestTimedOutError])
async def test_a_topic_that_is_being_deleted_or_a_busy_broker_is_asked_again(
    error: Any, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "runfold.log.uncompressed")
    admin = Admin(dict.fromkeys(TOPICS[:2], "producer"), refused={TOPICS[0]: error.errno})
    own = uncompressed(admin)
    await own.settle(TOPICS[:2])
    admin.refused.clear()

    await own.settle(TOPICS[:2])

    assert admin.altered == [TOPICS[:2], [TOPICS[0]]]
    assert caplog.records == []
