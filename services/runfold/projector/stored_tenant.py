"""What is stored of a parked tenant, and whether its worker has anything to do."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple, Self

from runfold.log.ends import LogEnds
from runfold.log.shared import partitions_of, shared_partitions
from runfold.projector.stored_ends import StoredEnds
from runfold.store.database import Database
from runfold.store.edition import Edition
from runfold.store.editions import Editions
from runfold.store.quarantine import Quarantined, degradation, no_topic, run_id_of
from runfold_schemas.topics import Partition, RunTopic, Topics


class StoredTenant(NamedTuple):
    """A tenant as it is stored at one time."""

    edition: str | None
    """None before the tenant's first worker."""
    positions: Mapping[Partition, int]
    """The ends of its shared topics, up to which everything is stored."""
    has_work: bool
    expires_at: datetime | None
    """When its next session expires."""
    reasons: list[str]
    """What readiness says of its quarantine."""
    without_topic: frozenset[str]
    """The topics that are missing. Each run of them is in quarantine until it has its topic."""

    @classmethod
    async def of(cls, topics: Topics, database: Database, ends: LogEnds) -> Self:
        """Raises `UnavailableError`."""
        partitions = [*partitions_of(topics, topics.catalog), *shared_partitions(topics)]
        # The ends come last: what is beyond a position by then is work.
        edition = await Editions(database).current()
        stored: dict[Partition, int] = {}
        has_work, expires_at = False, None
        aside: list[Quarantined] = []
        if edition is not None:
            stores = Edition.of(database, edition)
            numbers = range(topics.partitions)
            aside = await stores.quarantine.all()
            # A run that is set aside stays active, so that it goes on when it is released.
            names = [entry.name for entry in aside if entry.kind == "run"]
            has_work = await stores.runs.has_active(numbers, except_for=names) or bool(
                await stores.quarantine.requests(numbers)
            )
            expires_at = await stores.sessions.next_expiry()
            stored = await stores.shared_positions.positions(partitions)
            stored |= await stores.shared_positions.catalog_positions(partitions)
        reached = await ends.ends_of(partitions)
        # A topic that does not exist is created by the worker.
        has_news = any(at not in reached or reached[at] > stored.get(at, 0) for at in partitions)
        return cls(
            edition,
            reached,
            has_work or has_news,
            expires_at,
            reasons=degradation([entry.id for entry in aside]),
            without_topic=frozenset(each.topic for each in aside if each.reason == no_topic(each.topic)),
        )


class ParkedLook:
    """Looks again and again for work that no record of a shared topic announces: records in runs'
    logs, topics that were missing, requests of operators, and another edition.
    """

    def __init__(self, stored: StoredTenant, topics: Topics, database: Database, ends: LogEnds) -> None:
        self._edition = stored.edition
        self._without_topic = stored.without_topic
        self._topics = topics
        self._editions = Editions(database)
        self._ends = ends
        self._stores = Edition.of(database, stored.edition) if stored.edition is not None else None
        self._stored_ends = StoredEnds(ends, self._stores.runs) if self._stores is not None else None

    async def has_work(self) -> bool:
        """Raises `UnavailableError`."""
        if await self._editions.current() != self._edition:
            return True
        topics = await self._ends.run_topics()
        if self._stores is None or self._stored_ends is None:
            return bool(topics)
        if not self._without_topic.isdisjoint(topics):
            return True
        if await self._stores.quarantine.requests(range(self._topics.partitions)):
            return True
        return await self._has_unannounced(topics, self._stores, self._stored_ends)

    async def _has_unannounced(
        self, topics: Mapping[str, RunTopic], stores: Edition, stored_ends: StoredEnds
    ) -> bool:
        findings = await stored_ends.compare(topics)
        if findings.deleted or findings.unknown:
            return True
        changed = set(map(run_id_of, findings.changed))
        return bool(changed) and changed != await stores.quarantine.existing(changed)
