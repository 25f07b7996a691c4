"""Outages of servers: a line for the beginning, and a line for the end with the duration."""

import pytest

from runfold.telemetry.outages import Outages


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Those about servers without an address: connections of other tests may log as well."""
    return [line for line in caplog.messages if " at 127.0.0.1" not in line]


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_is_two_lines_however_many_attempts_fail(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    outages = Outages(clock)
    outages.answered("Kafka")
    for _ in range(5):
        outages.failed("Kafka", "refused")
    outages.failed("MongoDB", "x" * 1_000)
    clock.now += 8.04
    for _ in range(5):
        outages.answered("Kafka")

    began, other, ended = lines(caplog)
    assert began == "Kafka does not answer: refused"
    assert len(other) < 300
    assert ended == "Kafka answers again after 8.0 s"


def test_a_server_that_comes_and_goes_does_not_fill_the_log(caplog: pytest.LogCaptureFixture):
    clock = Clock()
    outages = Outages(clock)
    for _ in range(50):
        outages.failed("Kafka", "reset")
        clock.now += 0.1
        outages.answered("Kafka")
    outages.failed("Kafka", "reset")
    assert len(lines(caplog)) == 2
    clock.now += 1
    outages.failed("Kafka", "refused")
    clock.now += 29
    outages.answered("Kafka")

    assert lines(caplog) == [
        "Kafka does not answer: reset",
        "Kafka answers again after 0.1 s",
        "Kafka does not answer: refused",
        "Kafka answers again after 30.0 s, and had 49 short outages before",
    ]


def test_states_say_since_when_a_server_is_away_and_why():
    clock = Clock()
    outages = Outages(clock)
    outages.answered("MongoDB at m:1")
    outages.failed("Kafka at k:1", "refused")
    clock.now += 5
    outages.failed("Kafka at k:1", "still refused")

    kafka, mongodb = outages.states()
    assert (kafka.server, kafka.is_away, kafka.last_error) == ("Kafka at k:1", True, "still refused")
    assert kafka.since is not None
    assert kafka.last_error_at is not None
    assert (kafka.last_error_at - kafka.since).total_seconds() == pytest.approx(5, abs=0.5)
    assert (mongodb.is_away, mongodb.since, mongodb.last_error) == (False, None, None)
    outages.answered("Kafka at k:1")
    assert not outages.states()[0].is_away
    assert outages.states()[0].last_error == "still refused"


def test_an_address_that_nobody_asks_any_more_is_left_out_if_other_nodes_answer():
    clock = Clock()
    outages = Outages(clock)
    outages.failed("Kafka at bootstrap:1", "refused")
    outages.failed("MongoDB's primary", "the servers elect another one")
    clock.now += 30
    assert [state.server for state in outages.states() if state.is_away] == [
        "Kafka at bootstrap:1",
        "MongoDB's primary",
    ]
    outages.answered("Kafka at node:1")
    outages.answered("MongoDB at m:1")

    assert [state.server for state in outages.states() if state.is_away] == ["MongoDB's primary"]


def test_a_server_that_is_not_asked_again_is_not_away_for_ever():
    clock = Clock()
    outages = Outages(clock)
    outages.failed("the embedding model", "refused")
    assert [state.is_away for state in outages.states()] == [True]

    clock.now += 4_000

    assert outages.states() == []
