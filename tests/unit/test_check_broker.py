"""A client refuses to start if any broker creates topics by itself."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError

from runfold.log.admin import LogAdmin
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ConfigurationError, UnavailableError

Setting = str | Exception


def _admin(*brokers: Setting) -> LogAdmin:
    async def describe(resources: list[Any]) -> list[Any]:
        [resource] = resources
        setting = brokers[int(resource.name)]
        if isinstance(setting, Exception):
            raise setting
        entries = [("auto.create.topics.enable", setting)]
        return [SimpleNamespace(resources=[(0, None, 4, resource.name, entries)])]

    nodes = [SimpleNamespace(nodeId=number) for number in range(len(brokers))]
    cluster = SimpleNamespace(brokers=lambda: nodes)
    client: Any = SimpleNamespace(_client=SimpleNamespace(cluster=cluster), describe_configs=describe)
    return LogAdmin(LogSettings(), client)


@pytest.mark.parametrize("brokers", [["false"], ["false", "false"], ["false", KafkaConnectionError()]])
async def test_brokers_that_create_no_topics_by_themselves_are_fine(brokers: list[Setting]):
    await _admin(*brokers).check_broker()


@pytest.mark.parametrize("brokers", [["true"], ["false", "true"], [KafkaConnectionError(), "true"]])
async def test_one_broker_that_creates_topics_by_itself_is_refused(brokers: list[Setting]):
    with pytest.raises(ConfigurationError, match=r"auto\.create\.topics\.enable=true"):
        await _admin(*brokers).check_broker()


@pytest.mark.parametrize("brokers", [[], [KafkaConnectionError(), KafkaConnectionError()]])
async def test_without_an_answer_kafka_is_unavailable(brokers: list[Setting]):
    with pytest.raises(UnavailableError):
        await _admin(*brokers).check_broker()
