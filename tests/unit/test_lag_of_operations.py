"""The lag in what operators see: its time is unknown if nobody can tell it."""

from datetime import UTC, datetime
from typing import Any

from runfold.query.operations import _lag, _without_projector
from runfold.store.reports import Report


def report(*, age_seconds: float, partitions: list[int], catalog: list[list[int]], **fields: Any) -> Report:
    lag = {"lag_records": 0, "lag_seconds": 0.5}
    shown = {"partitions": partitions, "catalog": catalog, **lag, **fields}
    return Report(shown, datetime.now(UTC), age_seconds)


def seconds(*reports: Report, missed: int) -> float | None:
    alive = [each for each in reports if each.age_seconds < 20]
    return _lag(alive, _without_projector(reports, 3), missed=missed).seconds


def test_the_time_is_that_of_the_reports():
    working = report(age_seconds=1, partitions=[0, 1], catalog=[[0, 7], [1, 7]])
    away = report(age_seconds=90, partitions=[2], catalog=[[2, 5]])

    assert seconds(working, away, missed=0) == 0.5
    assert seconds(working, away, missed=3) == 90.5


def test_the_time_is_unknown_if_nobody_ever_reported_about_a_partition():
    working = report(age_seconds=1, partitions=[0, 1], catalog=[[0, 7], [1, 7]])

    assert seconds(missed=0) is None
    assert seconds(missed=4) is None
    assert seconds(working, missed=4) is None
    assert _lag([working], None, missed=0).seconds is None
