"""Log lines that clients can cause are few."""

import asyncio
import logging

import pytest

from runfold.http.limit_log import LimitLog
from runfold.projector.dead_letters import DeadLetterLog
from runfold.telemetry.log_limit import LimitedLog
from runfold_projections.admission import Admitted
from runfold_schemas.codec import Record


def lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """The lines of one logger: connections of other tests in this process may log too."""
    return [record.getMessage() for record in caplog.records if record.name == logger]


def undecodable(offset: int, reason: str) -> Admitted:
    return Admitted(Record(offset, 0, None, (), b"x"), "undecodable", None, reason)


async def test_further_lines_are_summed_up_and_then_lines_are_logged_again(caplog):
    limited = LimitedLog(logging.getLogger("a"), "records", level=logging.WARNING, lines_max=2, seconds=0.05)
    for number in range(10):
        limited.log(f"key {number}", f"line {number}")
    assert lines(caplog, "a") == ["line 0", "line 1"]
    await asyncio.sleep(0.15)
    limited.log("key 0", "another line")
    assert lines(caplog, "a")[2:] == ["8 further records within 0.05 s, the last: line 9", "another line"]


async def test_the_first_dead_letter_of_each_topic_is_logged_with_its_place_and_reason(caplog):
    log = DeadLetterLog()
    log.report([("topic-a", undecodable(7, "not JSON")), ("topic-b", undecodable(8, "x" * 10_000))])
    log.report([("topic-a", undecodable(9, "not JSON"))] * 1000)
    first, second = lines(caplog, "runfold.projector.dead_letters")
    assert first == "the record at offset 7 of topic-a is a dead letter now: not JSON"
    assert "offset 8 of topic-b" in second
    assert len(second) < 300


def test_a_limit_that_is_reached_is_logged_once_until_there_is_room(caplog):
    log = LimitLog("connections", 10, setting="RUNFOLD_CONNECTIONS_MAX")
    for _ in range(3):
        log.refused()
    log.look(10)
    assert lines(caplog, "runfold.http.limit_log") == [
        "the limit of 10 connections is reached (RUNFOLD_CONNECTIONS_MAX): further ones are refused"
    ]
    log.look(8)
    assert lines(caplog, "runfold.http.limit_log")[1:] == [
        "there is room for connections again; 3 were refused"
    ]
    log.refused()
    log.look(1)
    assert len(lines(caplog, "runfold.http.limit_log")) == 2
