"""How the lag of a fold is computed from looks at what waits."""

import pytest

from runfold.projector.fold_lag import FoldLag, Waiting
from runfold_schemas.topics import Partition

RUN, OTHER = Partition("t.run.a", 0), Partition("t.run.b", 0)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lag(clock: Clock) -> FoldLag:
    return FoldLag(clock)


def looks(
    lag: FoldLag, clock: Clock, waiting: dict[Partition, Waiting], *, seconds: int, folded: int = 0
) -> None:
    for _ in range(seconds):
        clock.now += 1
        lag.look(waiting, folded=folded)


def test_a_fold_that_waits_for_nothing_has_no_lag(lag: FoldLag, clock: Clock):
    looks(lag, clock, {}, seconds=100)

    assert (lag.records, lag.seconds, lag.stalled_seconds) == (0, 0.0, 0.0)


def test_the_lag_grows_while_records_wait(lag: FoldLag, clock: Clock):
    looks(lag, clock, {RUN: Waiting(5, 8), OTHER: Waiting(0, 1)}, seconds=40)

    assert lag.records == 4
    assert lag.seconds == 39
    assert lag.stalled_seconds == 40


def test_a_fold_that_goes_on_is_not_stalled_although_it_is_behind(lag: FoldLag, clock: Clock):
    for stored in range(100):
        looks(lag, clock, {RUN: Waiting(stored, 1000)}, seconds=1, folded=stored)

    assert lag.records == 901
    assert lag.seconds == 99
    assert lag.stalled_seconds == 0


def test_the_age_is_that_of_the_oldest_record_that_still_waits(lag: FoldLag, clock: Clock):
    for end in range(1, 61):
        looks(lag, clock, {RUN: Waiting(max(0, end - 10), end, log_time=0)}, seconds=1, folded=end)

    assert 9 <= lag.seconds <= 20


def test_a_fold_that_begins_far_behind_learns_its_lag_from_the_records(lag: FoldLag, clock: Clock):
    looks(lag, clock, {RUN: Waiting(0, 5000)}, seconds=1)
    an_hour_ago = int((clock.now - 3600) * 1000)
    looks(lag, clock, {RUN: Waiting(100, 5000, an_hour_ago)}, seconds=1, folded=100)

    assert lag.seconds == pytest.approx(3601)


def test_a_fold_that_cannot_tell_what_waits_has_a_lag(lag: FoldLag, clock: Clock):
    looks(lag, clock, {}, seconds=1)
    clock.now += 4
    assert lag.seconds == 0
    clock.now += 30

    assert lag.seconds == 34
    assert lag.stalled_seconds == 34


def test_a_worker_that_starts_again_and_again_is_stalled(lag: FoldLag, clock: Clock):
    for _ in range(100):
        clock.now += 2  # no worker, so no look
        looks(lag, clock, {RUN: Waiting(7, None)}, seconds=1)
        looks(lag, clock, {RUN: Waiting(7, 9)}, seconds=1)

    assert lag.stalled_seconds > 390
    assert lag.seconds > 390
    assert lag.records == 2


def test_an_event_after_a_quiet_day_waits_since_it_was_seen(lag: FoldLag, clock: Clock):
    yesterday = int((clock.now - 86400) * 1000)
    looks(lag, clock, {}, seconds=5)
    looks(lag, clock, {RUN: Waiting(10, 11, yesterday)}, seconds=3)

    assert lag.seconds == 2
