"""`runfold serve tracer`: exports each run as a trace.

    catalog --group--> runs to export, in MongoDB --when they end or are quiet--> log --> OTLP

A position of the catalog is committed when its runs are noted in MongoDB. A note is removed when
the endpoint has taken the spans. So a run is exported at least once, also after a crash, and again
when it goes on. Exporting it again sends spans with the same ids.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn, Self

from prometheus_client import Counter

from runfold.client.runfold import Runfold
from runfold.http.app import new_app, serve
from runfold.identity.authenticator import authenticator_of, ready_when_known
from runfold.log.catalog import partition_of
from runfold.log.catalog_group import CatalogRecord, catalog_group
from runfold.log.driver import kafka_errors
from runfold.log.reader import LogGoneError
from runfold.prices import PriceTable, read_prices
from runfold.settings import Settings
from runfold.store.database import Database, connect
from runfold.store.pending_traces import PendingTrace, PendingTraces
from runfold.tracer.exporter import TraceExporter
from runfold.tracer.run_trace import RunTrace
from runfold_schemas.catalog import Bell, Life
from runfold_schemas.codec import UnreadableBatch
from runfold_schemas.errors import ConfigurationError, QuarantinedError, RunfoldError, UnavailableError

_GROUP: Final = "tracer"

_RETRY_SECONDS: Final = 2.0

_LOOK_SECONDS: Final = 1.0

_FAILURE_SECONDS: Final = 30.0
"""How long a run waits after an attempt that failed."""

_DEFECT_SECONDS: Final = 600.0

_AT_ONCE: Final = 50

_NOTED_AT_ONCE: Final = 500

_EXPORTED: Final = Counter("runfold_exported_spans", "Spans of runs that this tracer exported")

_log = logging.getLogger(__name__)


async def run(settings: Settings, *, since: timedelta | None = None) -> None:
    """Exports until the process is asked to stop. Of runs from before the first start, it exports
    those that had events in the time `since`.
    """
    tracer = Tracer(settings, since=since)
    authenticator = authenticator_of(settings)

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with authenticator or nullcontext(), tracer:
            yield

    app = new_app(
        "Runfold tracer",
        ready=ready_when_known(authenticator, tracer.check_ready),
        authenticate=authenticator,
        tenant=settings.prefix,
        lifespan=lifespan,
    )
    await serve(app, settings.http())


class Tracer:
    """Use it as an async context manager."""

    def __init__(
        self, settings: Settings, *, since: timedelta | None = None, exporter: TraceExporter | None = None
    ) -> None:
        """Raises `ConfigurationError` if the extra `otel` is not installed."""
        self._settings: Final = settings
        self._since = since
        self._exporter: Final = exporter or TraceExporter()
        self._prices: PriceTable | None = None if settings.prices is None else read_prices(settings.prices)
        # A publisher rings again only after a pause. An earlier export could be the last one.
        self._quiet_seconds: Final = max(settings.tracer_quiet_seconds, settings.publisher_park_seconds)
        self._partitions: frozenset[int] = frozenset()
        self._failure: RunfoldError | None = UnavailableError("Kafka", reason="not connected yet")
        self._working: asyncio.Task[NoReturn]

    async def __aenter__(self) -> Self:
        self._working = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._working.cancel()
        await asyncio.gather(self._working, return_exceptions=True)
        self._exporter.close()

    async def check_ready(self) -> list[str]:
        """Raises what keeps the tracer from working."""
        if self._failure is not None:
            raise self._failure
        return []

    async def _work(self) -> NoReturn:
        while True:
            try:
                await self._connect()
            except* RunfoldError as group:
                error = group.exceptions[0]
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                _log.warning("%s", error)
                self._failure = error if isinstance(error, RunfoldError) else None
            except* Exception as group:  # noqa: BLE001  # after any error, a later attempt may succeed
                _log.error("no traces are exported after an unexpected error", exc_info=group)
                self._failure = UnavailableError("The tracer", reason=type(group.exceptions[0]).__name__)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _connect(self) -> None:
        settings = self._settings
        async with (
            connect(settings.mongo, settings.database) as database,
            Runfold.of(settings.log("runfold/tracer")) as runfold,
        ):
            pending = await self._pending(database, runfold)
            with kafka_errors():
                async with (
                    catalog_group(
                        runfold.connection.settings,
                        _GROUP,
                        member_id=settings.worker_id,
                        session_timeout_seconds=settings.session_timeout_seconds,
                        on_assigned=self._take_partitions,
                        on_records=pending.note,
                    ) as failed,
                    asyncio.TaskGroup() as tasks,
                ):
                    self._failure = None
                    tasks.create_task(self._export_repeatedly(runfold, pending))
                    await failed

    async def _pending(self, database: Database, runfold: Runfold) -> "_PendingRuns":
        traces = PendingTraces(database)
        await traces.create_indexes()
        began = await traces.began(datetime.now(UTC))
        runs = _PendingRuns(traces, began, quiet_seconds=self._quiet_seconds)
        if self._since is not None:
            await runs.note_since(runfold, datetime.now(UTC) - self._since)
            self._since = None
        return runs

    async def _take_partitions(self, assigned: set[int]) -> None:
        self._partitions = frozenset(assigned)

    async def _export_repeatedly(self, runfold: Runfold, runs: "_PendingRuns") -> NoReturn:
        traces = runs.traces
        while True:
            due = await traces.due(self._partitions, limit=_AT_ONCE)
            for pending in due:
                try:
                    await self._export(runfold, runs, pending)
                except (UnavailableError, ConfigurationError):
                    raise
                except Exception:  # noqa: BLE001  # one run does not stop the others
                    _log.exception("run %s cannot be exported", pending.run_id)
                    await traces.postpone(pending, seconds=_DEFECT_SECONDS)
            if len(due) < _AT_ONCE:
                await asyncio.sleep(_LOOK_SECONDS)

    async def _export(self, runfold: Runfold, runs: "_PendingRuns", pending: PendingTrace) -> None:
        traces = runs.traces
        life = await runfold.connection.catalog.lookup(pending.run_id)
        if life is None or life.deleted:
            await traces.forget(pending)
            return
        trace = RunTrace(life, prices=self._prices, with_contents=self._settings.tracer_contents)
        try:
            async for admitted in runfold.connection.log_of(life).history():
                trace.take(admitted)
        except (LogGoneError, QuarantinedError) as error:
            _log.warning("run %s is not exported: %s", pending.run_id, error)
            await traces.forget(pending)
            return
        # The end of a run may be told again after the tracer's beginning.
        if trace.last_log_time and trace.last_log_time < (pending.since or runs.began):
            await traces.forget(pending)
            return
        if not trace.ended and (seconds := _quiet_for(trace)) < self._quiet_seconds:
            await traces.postpone(pending, seconds=self._quiet_seconds - seconds)
            return
        # What a log already had does not change, but the spans around it may last longer now.
        spans = [
            span
            for span in trace.spans()
            if span.last_offset >= pending.exported_to or span.error == "no_result"
        ]
        try:
            await self._exporter.export(trace.trace_id, spans)
        except UnavailableError as error:
            _log.warning("%s", error)
            await traces.postpone(pending, seconds=_FAILURE_SECONDS)
            return
        _EXPORTED.inc(len(spans))
        if trace.ended:
            await traces.forget(pending)
        else:
            await traces.settle(pending, exported_to=trace.next_offset)


def _quiet_for(trace: RunTrace) -> float:
    last = trace.last_log_time
    return float("inf") if last is None else (datetime.now(UTC) - last).total_seconds()


class _PendingRuns:
    """Notes runs for export, as the catalog names them."""

    def __init__(self, traces: PendingTraces, began: datetime, *, quiet_seconds: float) -> None:
        self.traces: Final = traces
        self.began: Final = began
        self._quiet: Final = timedelta(seconds=quiet_seconds)

    async def note(self, records: Sequence[CatalogRecord], _: Sequence[UnreadableBatch]) -> None:
        ended, going_on = dict[str, int](), dict[str, int]()
        began_ms = self.began.timestamp() * 1_000
        for record in records:
            entry = record.entry
            if record.record.log_time < began_ms or not isinstance(entry, Life | Bell):
                continue
            is_over = isinstance(entry, Life) and (entry.ended or entry.deleted)
            (ended if is_over else going_on)[entry.run_id] = record.at.partition
        now = datetime.now(UTC)
        await self.traces.note([*ended.items()], due=now)
        await self.traces.note([*going_on.items()], due=now + self._quiet)

    async def note_since(self, runfold: Runfold, since: datetime) -> None:
        """Notes the runs of the catalog that had events since then."""
        topics = runfold.connection.topics
        count, runs = 0, list[tuple[str, int]]()
        async for life in runfold.connection.catalog.lives():
            runs.append((life.run_id, partition_of(topics, life.run_id)))
            count += 1
            if len(runs) >= _NOTED_AT_ONCE:
                await self.traces.note(runs, due=datetime.now(UTC), since=since)
                runs = []
        await self.traces.note(runs, due=datetime.now(UTC), since=since)
        _log.info("%d runs are looked at for events since %s", count, since.isoformat())
