"""How an installation works, for one tenant: its projectors, what waits, what is set aside, and the
last rebuild and verify.

Projectors that are alive have reported their lag. For a partition of the catalog without a living
projector, the lag is counted here: what the catalog has beyond the last report, and what the logs
of its active runs have beyond their states.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, get_args

from runfold.archive.opening import opened
from runfold.archive.state import read_state
from runfold.documents.operations import (
    ArchiveDocument,
    EditionsDocument,
    Lag,
    OperationsDocument,
    OperationsStatus,
    ProjectorDocument,
    RebuildDocument,
    ServerDocument,
    StuckDocument,
    TopicsDocument,
    VerifyDocument,
)
from runfold.log.catalog import partition_of
from runfold.query.dead_letters import DeadLetters
from runfold.query.log_ends import ConnectedEnds
from runfold.query.stored_runs import StoredRuns
from runfold.settings import Settings
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.store.reports import JOB_AWAY_SECONDS, Report, ReportStore
from runfold.telemetry import outages
from runfold.telemetry.outages import ServerState
from runfold_schemas.errors import UnavailableError
from runfold_schemas.lists import QuarantineKind
from runfold_schemas.topics import Partition, Topics

AWAY_SECONDS: Final = 20.0
"""A projector whose last report is older is away. Projectors report every 5 s."""

LATE_SECONDS: Final = 60.0
"""A lag beyond this time is a reason."""

_RUNS_MAX: Final = 5_000
"""The number of runs without a projector whose logs are looked at."""

_KAFKA_SECONDS: Final = 5.0

_ARCHIVE_SECONDS: Final = 5.0


_PARKED: Final[Mapping[str, Any]] = {
    "status": "parked",
    "edition": None,
    "active_runs": 0,
    "backlog_runs": 0,
    "run_topics": 0,
    "lag_records": 0,
    "lag_seconds": 0.0,
    "catalog": [],
    "stuck": [],
}

_OF_SERVER: Final = ("server", "since", "last_error", "last_error_at")

_COPIED: Final = ("started_at", "edition", "partitions", "active_runs", "backlog_runs")


class _WithoutProjector(NamedTuple):
    """The partitions of the catalog without a living projector, and their last reports."""

    partitions: set[int]
    seen: Mapping[int, Report]
    """The last report about each partition, if there was one."""


class OperationsReader:
    """`installation` has the reports of projectors; all else is the tenant's."""

    def __init__(
        self,
        settings: Settings,
        *,
        installation: StoredRuns,
        stored: StoredRuns,
        ends: ConnectedEnds,
        dead_letters: DeadLetters,
    ) -> None:
        self._tenant = settings.prefix
        self._archive_url = settings.archive_url
        self._erase_seconds = settings.archive_erase_seconds
        self._topics = settings.log("runfold/query").topics
        self._installation = installation
        self._stored = stored
        self._ends = ends
        self._dead_letters = dead_letters

    async def read(self) -> OperationsDocument:
        """Everything as of now. Raises `UnavailableError` if MongoDB does not answer."""
        reports = ReportStore(self._installation.database)
        jobs = ReportStore(self._stored.database)
        pointer = await Editions(self._stored.database).pointer()
        partitions = pointer.partitions or 0 if pointer is not None else 0
        mine = await self._projectors(reports, partitions)
        without_projector = _without_projector(mine, partitions)
        edition = Edition.of(self._stored.database, pointer.current) if pointer is not None else None
        missed, dead_letters, archive = await asyncio.gather(
            _soon(self._missed(edition, without_projector)),
            _soon(self._dead_letters.count()),
            self._archive(edition),
        )
        alive = [report for report in mine if _is_alive(report)]
        document = OperationsDocument(
            as_of=datetime.now(UTC),
            servers=self._servers(),
            projectors=[_projector(report) for report in mine],
            partitions_without_projector=sorted(without_projector.partitions),
            lag=_lag(alive, without_projector if pointer is not None else None, missed=missed or 0),
            stuck=[each for report in alive for each in _stuck(report, self._topics)],
            runs=await edition.runs.count_by_status() if edition is not None else {},
            topics=TopicsDocument(runs=sum(report.fields["run_topics"] for report in alive)),
            quarantine=await _quarantine(edition),
            dead_letters=dead_letters,
            archive=archive,
            editions=EditionsDocument(**pointer._asdict()) if pointer is not None else EditionsDocument(),
            rebuild=_rebuild(await jobs.job("rebuild", self._tenant)),
            verify_report=_verify(await jobs.job("verify", self._tenant)),
        )
        document.reasons = _reasons(
            document, knows_kafka=missed is not None, erase_seconds=self._erase_seconds
        )
        document.status = _status(document)
        return document

    def _servers(self) -> list[ServerDocument]:
        """Further tenants do not get the addresses of the installation."""
        if self._tenant == self._installation.log_settings.topics.prefix:
            return [_server(state) for state in outages.states()]
        kinds = {outages.kind_of(state.server): state for state in outages.states() if state.is_away}
        return [
            _server(state._replace(server=kind, last_error=None)) for kind, state in sorted(kinds.items())
        ]

    async def _archive(self, edition: Edition | None) -> ArchiveDocument | None:
        if self._archive_url is None:
            return None
        logs = await edition.segments.count() if edition is not None else 0
        try:
            async with asyncio.timeout(_ARCHIVE_SECONDS):
                state = await read_state(opened(self._archive_url, self._tenant))
        except UnavailableError as error:
            return ArchiveDocument(status="away", last_error=error.reason, logs=logs)
        except TimeoutError:
            return ArchiveDocument(status="away", last_error="it does not answer soon", logs=logs)
        return ArchiveDocument(status="ok", logs=logs, **state._asdict())

    async def _projectors(self, reports: ReportStore, partitions: int) -> Sequence[Report]:
        """The reports about this tenant. While it is parked, its host has none about it."""
        own = self._installation.log_settings.topics.prefix
        mine = await reports.projectors(self._tenant)
        if mine or self._tenant == own:
            return mine
        pointer = await Editions(self._installation.database).pointer()
        if pointer is None or pointer.partitions is None:
            return []
        place = partition_of(Topics(own, pointer.partitions), self._tenant)
        for report in await reports.projectors(own):
            if _is_alive(report) and place in report.fields["partitions"]:
                parked = {**report.fields, **_PARKED, "partitions": list(range(partitions))}
                return [report._replace(fields=parked)]
        return []

    async def _missed(self, edition: Edition | None, without_projector: _WithoutProjector) -> int:
        """The number of records that no living projector folds."""
        ends = await self._ends.get()
        if edition is None or not without_projector.partitions:
            return 0
        partitions = [Partition(self._topics.catalog, number) for number in without_projector.partitions]
        taken = {number: _taken(report, number) for number, report in without_projector.seen.items()}
        catalog = await ends.ends_of(partitions)
        missed = sum(max(0, end - taken.get(at.partition, 0)) for at, end in catalog.items())
        positions = await edition.runs.active_ends(without_projector.partitions, limit=_RUNS_MAX)
        topics = {
            self._topics.run(run_id, log_id): position for run_id, (log_id, position) in positions.items()
        }
        reached = await ends.ends(topics)
        return missed + sum(max(0, reached[topic] - position) for topic, position in topics.items())


async def _soon(answer: Awaitable[int]) -> int | None:
    """None if Kafka does not answer all of it soon, or refuses a topic to this login."""
    try:
        async with asyncio.timeout(_KAFKA_SECONDS):
            return await answer
    except (UnavailableError, TimeoutError):
        return None


def _server(state: ServerState) -> ServerDocument:
    status: Literal["ok", "away"] = "away" if state.is_away else "ok"
    return ServerDocument(status=status, **{name: getattr(state, name) for name in _OF_SERVER})


def _is_alive(report: Report) -> bool:
    return report.age_seconds < AWAY_SECONDS


def _without_projector(reports: Sequence[Report], partitions: int) -> _WithoutProjector:
    alive = {number for report in reports if _is_alive(report) for number in report.fields["partitions"]}
    missing = set(range(partitions)) - alive
    seen: dict[int, Report] = {}
    for report in sorted(reports, key=lambda report: report.seen_at):
        seen |= {number: report for number, _ in report.fields["catalog"] if number in missing}
    return _WithoutProjector(missing, seen)


def _taken(report: Report, number: int) -> int:
    return next((int(position) for at, position in report.fields["catalog"] if at == number), 0)


def _lag(alive: Sequence[Report], without_projector: _WithoutProjector | None, *, missed: int) -> Lag:
    """The lag, whose time is unknown if nobody has ever reported about a partition. Without
    `without_projector`, the partitions are unknown too.
    """
    ages = [report.fields["lag_seconds"] for report in alive]
    is_known = without_projector is not None and without_projector.partitions <= without_projector.seen.keys()
    if missed and without_projector is not None:
        ages += [
            report.age_seconds + report.fields["lag_seconds"] for report in without_projector.seen.values()
        ]
    return Lag(
        records=missed + sum(report.fields["lag_records"] for report in alive),
        seconds=round(max(ages, default=0.0), 3) if is_known else None,
    )


def _projector(report: Report) -> ProjectorDocument:
    fields = report.fields
    status = fields.get("status") or ("working" if fields["partitions"] else "waiting")
    return ProjectorDocument(
        worker_id=fields["worker_id"],
        status=status if _is_alive(report) else "away",
        seen_at=report.seen_at,
        lag=Lag(records=fields["lag_records"], seconds=round(fields["lag_seconds"], 3)),
        **{name: fields[name] for name in _COPIED},
    )


def _stuck(report: Report, topics: Topics) -> list[StuckDocument]:
    worker_id = report.fields["worker_id"]
    return [
        StuckDocument(worker_id=worker_id, run_id=_run_id_of(each["name"], topics), **each)
        for each in report.fields["stuck"]
    ]


def _run_id_of(topic: str, topics: Topics) -> str | None:
    run = topics.parse_run(topic)
    return run.run_id if run is not None else None


async def _quarantine(edition: Edition | None) -> dict[str, int]:
    entries = await edition.quarantine.all() if edition is not None else []
    counts = Counter(entry.kind for entry in entries)
    return {kind: counts[kind] for kind in get_args(QuarantineKind)}


def _rebuild(report: Report | None) -> RebuildDocument | None:
    if report is None:
        return None
    fields = dict(report.fields)
    if fields["status"] == "running" and report.age_seconds > JOB_AWAY_SECONDS:
        fields["status"] = "away"
    return RebuildDocument.model_validate({**fields, "seen_at": report.seen_at})


def _verify(report: Report | None) -> VerifyDocument | None:
    if report is None:
        return None
    return VerifyDocument.model_validate({**report.fields, "ended_at": report.seen_at})


def _reasons(document: OperationsDocument, *, knows_kafka: bool, erase_seconds: float) -> list[str]:
    reasons = [
        f"{each.server} does not answer: {each.last_error}"
        for each in document.servers
        if each.status == "away"
    ]
    if not knows_kafka and not reasons:
        reasons.append("Kafka does not answer")
    if document.editions.current is None:
        reasons.append("nothing was ever projected: start a projector")
    reasons += [
        f"projector {each.worker_id} is away since {each.seen_at:%Y-%m-%dT%H:%M:%SZ}"
        for each in document.projectors
        if each.status == "away"
    ]
    if missing := document.partitions_without_projector:
        reasons.append(f"no projector owns {len(missing)} partitions of the catalog")
    if (seconds := document.lag.seconds) is not None and seconds > LATE_SECONDS:
        reasons.append(f"{document.lag.records} records wait, for up to {seconds:.0f} s")
    reasons += [f"{each.reason}: {each.name}" if each.name else each.reason for each in document.stuck]
    if document.archive is not None and document.archive.status == "away":
        reasons.append(f"the archive does not answer: {document.archive.last_error}")
    # An archiver writes at least four times in that time.
    since = document.archive.committed_at if document.archive is not None else None
    if since is not None and (document.as_of - since).total_seconds() > erase_seconds:
        reasons.append(
            f"no archiver has worked since {since:%Y-%m-%dT%H:%M:%SZ}: deleted runs stay in the archive"
        )
    if aside := sum(document.quarantine.values()):
        reasons.append(f"{aside} entries are in quarantine")
    if document.rebuild is not None and document.rebuild.status in ("failed", "away"):
        reasons.append(f"the last rebuild is {document.rebuild.status}")
    if document.verify_report is not None and document.verify_report.differences:
        reasons.append(f"the last verify found {document.verify_report.differences} differences")
    return reasons


def _status(document: OperationsDocument) -> OperationsStatus:
    if document.partitions_without_projector or document.editions.current is None:
        return "failing"
    return "degraded" if document.reasons else "ok"
