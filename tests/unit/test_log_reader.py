"""Reading a log: a topic that a broker does not know, and records that are in memory already."""

from typing import Any

import pytest
from tests.builders import event

from runfold.log import reader
from runfold.log.leaders import LeaderSearch
from runfold.log.reader import LogGoneError
from runfold.query.history import LogHistory
from runfold_projections.admission import Admission
from runfold_projections.run import RunRecord
from runfold_schemas.codec import Record, encode
from runfold_schemas.events import UserMessage
from runfold_schemas.topics import Partition

AT = Partition("runfold.run.a.b", 0)


class Leaders:
    """A client whose broker does not know the topic."""

    def leader(self, _: Partition) -> None:
        return None

    def forget(self, _: Partition) -> None:
        pass

    async def find(self, _: list[Partition]) -> LeaderSearch:
        return LeaderSearch(missing={AT})


async def test_a_topic_is_gone_only_if_it_is_missing_for_a_while(monkeypatch: pytest.MonkeyPatch):
    leaders: Any = Leaders()
    log = reader._Log(leaders, AT, 3)
    assert await log.take(5) is None

    monkeypatch.setattr(reader, "_GONE_SECONDS", 0.0)
    with pytest.raises(LogGoneError):
        await log.take(5)


async def test_an_event_that_was_read_already_is_not_read_again():
    hello = event(UserMessage(message="hello"))
    record = Record(2, 0, None, (), encode(hello))
    kept = [Admission(hello.run_id).admit(record)]
    no_kafka: Any = None
    history = LogHistory(
        no_kafka, AT.topic, RunRecord(run_id=hello.run_id), end=3, skipped_in=no_kafka, kept=kept
    )

    assert await history.event(2) == hello
