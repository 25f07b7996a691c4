"""What is reported about a hosted tenant whose worker fails again and again."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from runfold.projector import reporting
from runfold.projector.fold_lag import Waiting
from runfold.projector.measures import Measures
from runfold.projector.reporting import Reporter
from runfold_schemas.topics import Partition

CATALOG = Partition("acme.catalog", 0)


def worker() -> Any:
    progress = SimpleNamespace(
        is_settled=True,
        waiting=lambda partitions: {CATALOG: Waiting(stored=0, end=50, log_time=1)},
        run_topics=0,
        edition="e",
        catalog={CATALOG: (7, 0)},
    )
    return SimpleNamespace(
        partitions={0},
        progress=progress,
        events=0,
        folded_events=SimpleNamespace(report=lambda: None),
        active_runs=0,
        backlog_runs=0,
        quarantine=SimpleNamespace(counts=Counter),
    )


class Reports:
    """Keeps what is saved."""

    def __init__(self, saved: dict[str, Any]) -> None:
        self._saved = saved

    async def create_indexes(self) -> None:
        pass

    async def save(self, worker_id: str, by_tenant: Mapping[str, Mapping[str, Any]]) -> None:
        self._saved.clear()
        self._saved.update(by_tenant)


async def test_a_tenant_keeps_its_lag_and_its_report_while_its_worker_fails(monkeypatch):
    saved: dict[str, Any] = {}
    monkeypatch.setattr(reporting, "ReportStore", lambda database: Reports(saved))
    hosted: dict[str, Any] = {"acme": worker()}
    failing: dict[str, datetime] = {}
    measures = Measures("runfold", lambda: None, lambda: hosted)
    reporter = Reporter(
        "p-0",
        database=dict,
        workers=lambda: {name: each for name, each in hosted.items() if each is not None},
        lags=lambda: measures.lags,
        watches=lambda: (),
        failing=lambda: failing,
        own="runfold",
    )
    measures.look()
    lag = measures.lags["acme"]
    await reporter.report()
    assert (saved["acme"]["lag_records"], saved["acme"]["stuck"]) == (50, [])

    hosted["acme"], failing["acme"] = None, datetime.now(UTC)
    measures.look()
    await reporter.report()

    assert measures.lags["acme"] is lag
    assert saved["acme"]["catalog"] == [[0, 7]]
    assert [each["what"] for each in saved["acme"]["stuck"]] == ["tenant"]
    hosted["acme"] = worker()
    measures.look()
    assert measures.lags["acme"] is lag

    hosted.clear()
    measures.look()
    await reporter.report()
    assert set(saved) == {"runfold"}
