"""A broker that is too busy to create topics is asked again and pressed less; other errors are told
at once.
"""

import asyncio
from types import SimpleNamespace

import pytest

from runfold.log import admin as admin_module
from runfold.log.admin import LogAdmin
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ConfigurationError, UnavailableError

OK, EXISTS, TIMED_OUT, REPLICATION = 0, 36, 7, 38
FENCED = "Unable to replicate the partition 1 time(s): All brokers are currently fenced."


class Client:
    """Answers each request for topics with the next of `answers`, the last one again and again.
    Each request takes `seconds` of its clock. The cluster has one broker.
    """

    def __init__(self, *answers: tuple[int, str | None], seconds: float = 0.0) -> None:
        self.answers = list(answers)
        self.seconds = seconds
        self.now = 0.0
        self.sizes: list[int] = []

    async def create_topics(self, topics: list[object], **_: object) -> SimpleNamespace:
        self.sizes.append(len(topics))
        await asyncio.sleep(0)
        self.now += self.seconds
        code, message = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return SimpleNamespace(topic_errors=[("t", code, message)] * len(topics))

    async def describe_cluster(self) -> dict[str, list[dict[str, int]]]:
        return {"brokers": [{"node_id": 1}]}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "_BUSY_SECONDS", 0.01)


async def test_a_fenced_broker_is_asked_again_until_the_topic_exists() -> None:
    client = Client((REPLICATION, FENCED), (TIMED_OUT, None), (EXISTS, None))

    await LogAdmin(LogSettings(), client).create_run_topic("t")

    assert client.sizes == [1, 1, 1]


async def test_a_broker_that_stays_busy_is_unavailable_after_the_publish_timeout() -> None:
    client = Client((REPLICATION, FENCED))

    with pytest.raises(UnavailableError, match="fenced"):
        await LogAdmin(LogSettings(publish_timeout_seconds=0.05), client).create_run_topic("t")


async def test_too_few_brokers_are_an_error_of_the_configuration() -> None:
    client = Client((REPLICATION, "only 1 broker(s) are registered"))

    with pytest.raises(ConfigurationError, match="RUNFOLD_REPLICATION_FACTOR"):
        await LogAdmin(LogSettings(replication_factor=3), client).create_run_topic("t")

    assert client.sizes == [1]


async def test_a_broker_that_returned_after_its_refusal_is_asked_again() -> None:
    client = Client((REPLICATION, "Replication factor: 1 larger than available brokers: 0."), (OK, None))

    await LogAdmin(LogSettings(), client).create_run_topic("t")

    assert client.sizes == [1, 1]


async def test_a_slow_broker_gets_smaller_requests_and_a_fast_one_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client((OK, None), seconds=admin_module._SLOW_SECONDS + 0.1)
    monkeypatch.setattr(admin_module, "time", SimpleNamespace(monotonic=lambda: client.now))
    admin = LogAdmin(LogSettings(), client)

    await asyncio.gather(*(admin.create_run_topic("t") for _ in range(200)))
    client.seconds = 0.0
    await asyncio.gather(*(admin.create_run_topic("t") for _ in range(60)))

    assert client.sizes == [100, 50, 25, 12, 10, 3, 10, 20, 30]
