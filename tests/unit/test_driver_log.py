"""Which of aiokafka's lines are lowered to DEBUG."""

import inspect
import logging

import pytest
from aiokafka import TopicPartition, cluster
from aiokafka.producer import sender

from runfold.log.driver import _NewTopics, quieten_aiokafka

RETRIED = "Got error produce response on topic-partition %s, retrying. Error: %s"


@pytest.fixture
def log() -> logging.Logger:
    quieten_aiokafka()
    log = logging.getLogger("aiokafka.producer.sender")
    before = log.level
    yield log
    log.setLevel(before)


def test_a_retry_on_a_new_run_is_for_who_asks_for_debug(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
):
    about = (TopicPartition("runfold.run.r-1.x", 0), "NotLeaderForPartitionError")

    log.setLevel(logging.INFO)
    log.warning(RETRIED, *about)
    assert caplog.records == []

    log.setLevel(logging.DEBUG)
    log.warning(RETRIED, *about)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]


def test_any_other_line_is_as_it_was(log: logging.Logger, caplog: pytest.LogCaptureFixture):
    log.setLevel(logging.INFO)

    log.warning(RETRIED, TopicPartition("somebody's", 0), "NotLeaderForPartitionError")
    log.error("Unexpected error")

    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]


def test_the_lines_are_those_that_aiokafka_has():
    source = inspect.getsource(cluster) + inspect.getsource(sender).replace(
        '"\n                        "', ""
    )

    assert _NewTopics._EXPECTED
    for line in _NewTopics._EXPECTED:
        assert line in source
