"""The creation of topics on a cluster that cannot create them for the moment, or never can.

When a real controller fences a broker is chance, so the answers are written down here. They are
those of Kafka 4.3.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    InvalidReplicationFactorError,
    NoError,
    NotControllerError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
)

from runfold.log.admin import LogAdmin
from runfold.log.settings import LogSettings
from runfold_schemas.errors import ConfigurationError, UnavailableError

FENCED = (
    InvalidReplicationFactorError.errno,
    "Unable to replicate the partition 1 time(s): All brokers are currently fenced.",
)
TOO_FEW = (
    InvalidReplicationFactorError.errno,
    "The target replication factor of 3 cannot be reached because only 1 broker(s) are registered.",
)
CREATED = (NoError.errno, None)
EXISTS = (TopicAlreadyExistsError.errno, "Topic 'runfold.run.r.1' already exists.")


class Cluster:
    """Stands for the admin client: gives the answers to one request after another, the last one
    again and again.
    """

    def __init__(self, *answers: tuple[int, str | None], brokers: int = 1) -> None:
        self.answers = list(answers)
        self.brokers = brokers
        self.requests = 0

    async def create_topics(self, topics: list[Any], *, timeout_ms: int) -> SimpleNamespace:
        self.requests += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return SimpleNamespace(topic_errors=[(topic.name, *answer) for topic in topics])

    async def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"node_id": number} for number in range(self.brokers)]}


def admin(cluster: Cluster, **settings: Any) -> LogAdmin:
    return LogAdmin(LogSettings(**settings), cluster)


@pytest.mark.parametrize("after", [CREATED, EXISTS], ids=["then created", "then there"])
async def test_a_fenced_broker_is_asked_again(after: tuple[int, str | None]) -> None:
    cluster = Cluster(FENCED, after, brokers=0)

    await admin(cluster).create_run_topic("runfold.run.r.1")

    assert cluster.requests == 2


async def test_a_broker_that_returned_after_its_refusal_is_asked_again() -> None:
    older = (InvalidReplicationFactorError.errno, "Replication factor: 1 larger than available brokers: 0.")
    cluster = Cluster(older, CREATED, brokers=1)

    await admin(cluster).create_run_topic("runfold.run.r.1")

    assert cluster.requests == 2


async def test_a_controller_that_moves_is_asked_again() -> None:
    cluster = Cluster((NotControllerError.errno, "This is not the correct controller."), CREATED)

    await admin(cluster).create_run_topic("runfold.run.r.1")

    assert cluster.requests == 2


async def test_a_broker_that_stays_fenced_is_a_server_that_is_away() -> None:
    cluster = Cluster(FENCED, brokers=0)

    with pytest.raises(UnavailableError, match="All brokers are currently fenced"):
        await admin(cluster, publish_timeout_seconds=1).create_run_topic("runfold.run.r.1")


async def test_more_replicas_than_brokers_are_an_error_of_configuration() -> None:
    cluster = Cluster(TOO_FEW)

    with pytest.raises(ConfigurationError, match=r"the replication factor 3 is higher than .* brokers"):
        await admin(cluster, replication_factor=3).create_run_topic("runfold.run.r.1")

    assert cluster.requests == 1


async def test_a_refusal_that_stays_is_not_asked_again() -> None:
    cluster = Cluster((TopicAuthorizationFailedError.errno, "Authorization failed."))

    with pytest.raises(UnavailableError, match="Authorization failed"):
        await admin(cluster).create_run_topic("runfold.run.r.1")

    assert cluster.requests == 1
