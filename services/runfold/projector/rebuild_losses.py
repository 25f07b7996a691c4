"""Runs and partitions of which MongoDB, or the catalog, has more than Kafka: after a torn restore,
in which Kafka's backup is older than MongoDB's, or lacks topics.

A rebuild folds what Kafka has. So it asks first: a run without its log is kept as a read-only run,
or it is dropped. A log that has lost its last events counts as it is.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Final, Literal, NamedTuple

from runfold.log.admin import LogAdmin
from runfold.log.archived_logs import NoArchiveError
from runfold.log.catalog import life_record, partition_of
from runfold.log.catalog_view import CatalogView
from runfold.log.ends import LogEnds
from runfold.log.leaders import Leaders
from runfold.log.partition_counts import counted
from runfold.log.publisher import Publisher
from runfold.log.settings import LogSettings
from runfold.log.verdict_log import VerdictLog
from runfold.log.verdicts import Verdicts
from runfold.store.edition import Edition
from runfold.store.state import own_scope
from runfold_schemas.catalog import Life, Segments
from runfold_schemas.errors import InvalidIdError, RunfoldError, UnavailableError
from runfold_schemas.topics import Partition, RunTopic, Topics

Missing = Literal["keep", "drop"]

NAMED_MAX: Final = 20

_LOOK_SECONDS: Final = 0.1
_DELETING_SECONDS: Final = 30.0


class Shortened(NamedTuple):
    """A run's log, or a partition of a shared topic, that ends before its stored position."""

    key: str | Partition
    """The run's id, or the partition."""
    end: int
    stored: int

    def __str__(self) -> str:
        name = self.key if isinstance(self.key, str) else f"{self.key.topic}-{self.key.partition}"
        return f"{name} ends at {self.end:,} of {self.stored:,}"


class RebuildLosses(NamedTuple):
    """What a rebuild would lose."""

    runs: list[RunTopic]
    """Runs whose topic does not exist."""
    shortened: list[Shortened]

    def __bool__(self) -> bool:
        return bool(self.runs or self.shortened)

    def lines(self) -> Iterator[str]:
        """What is missing, in words."""
        if self.runs:
            yield f"{len(self.runs):,} runs have no log in Kafka:"
            yield from _named(run.run_id for run in self.runs)
        if self.shortened:
            yield f"{len(self.shortened):,} logs end before what MongoDB has of them:"
            yield from _named(str(each) for each in self.shortened)


_CHOICE: Final = (
    "Nothing was changed. Restore the logs, or run `runfold rebuild --missing keep`, which keeps runs"
    " without a log as they are stored, read-only, or `--missing drop`, which deletes them. Logs that lost"
    " their end count as they are, in both cases."
)


class RebuildLossesError(RunfoldError):
    """A rebuild would lose what only MongoDB has, and nobody has said what to do with it."""

    def __init__(self, losses: RebuildLosses) -> None:
        super().__init__("\n".join([*losses.lines(), _CHOICE]))
        self.losses = losses


async def find_losses(log: LogSettings, stores: Edition) -> RebuildLosses:
    """What is missing now. Runs that an earlier rebuild has kept without a log are among it."""
    log = await counted(log)
    async with LogEnds.connect(log) as ends, CatalogView.connect(log) as catalog:
        first = await _look(log, stores, ends, catalog)
        if not first:
            return first
        # Runs may be opened or deleted meanwhile, so only what is missing twice counts.
        second = await _look(log, stores, ends, catalog)
    return RebuildLosses(
        [run for run in first.runs if run in set(second.runs)],
        [each for each in second.shortened if each.key in {before.key for before in first.shortened}],
    )


async def _look(log: LogSettings, stores: Edition, ends: LogEnds, catalog: CatalogView) -> RebuildLosses:
    # MongoDB and the catalog are read before Kafka's topics, because a topic exists before both
    # know it.
    topics = log.topics
    stored = await stores.runs.ends(range(topics.partitions))
    positions = await stores.shared_positions.positions()
    runs = {RunTopic(run_id, log_id): position for run_id, (log_id, position) in stored.items()}
    async with aclosing(catalog.lives()) as lives:
        async for life in lives:
            if life.run_id not in stored:
                runs[RunTopic(life.run_id, life.log_id)] = 0
    existing = set((await ends.run_topics()).values())
    known = {run: position for run, position in runs.items() if position >= 0 and _has_topic(topics, run)}
    end_of = await ends.ends(topics.run(*run) for run in known.keys() & existing)
    archived = await _archived(log, known.keys() - existing, catalog)
    end_of |= {
        topics.run(*run): max(entry.end, _in_gap(entry, known[run])) for run, entry in archived.items()
    }
    partitions = await ends.ends_of(positions)
    shortened = [
        Shortened(run.run_id, end_of[topics.run(*run)], position)
        for run, position in known.items()
        if (run in existing or run in archived) and end_of[topics.run(*run)] < position
    ]
    shortened += [
        Shortened(at, partitions.get(at, 0), position)
        for at, position in positions.items()
        if partitions.get(at, 0) < position
    ]
    return RebuildLosses(sorted(known.keys() - existing - archived.keys()), shortened)


async def _archived(
    log: LogSettings, missing: Iterable[RunTopic], catalog: CatalogView
) -> dict[RunTopic, Segments]:
    """Those of the runs without a topic that are archived. Raises `NoArchiveError` if they cannot
    be read.
    """
    archived = {}
    for run in missing:
        entry = await catalog.look_up_segments(run.run_id)
        if entry is not None and entry.log_id == run.log_id:
            if log.archived is None:
                raise NoArchiveError(run.run_id, end=entry.end)
            archived[run] = entry
    return archived


def _in_gap(entry: Segments, position: int) -> int:
    """The position if it is in the gap before the next segment, where nothing was lost."""
    return position if position < entry.base else 0


def _has_topic(topics: Topics, run: RunTopic) -> bool:
    """Whether the ids can name a topic. Any program may write to the catalog."""
    try:
        topics.run(*run)
    except InvalidIdError:
        return False
    return True


async def keep(log: LogSettings, missing: Sequence[RunTopic], *, old: Edition, new: Edition) -> None:
    """Copies what `old` has of these runs to `new`, and marks the runs as read-only. Announces
    their end, so that nobody publishes to them.
    """
    others = await new.runs.with_logs({run.log_id for run in missing})
    shared = {run.log_id for run in others.keys() - set(missing)}
    for run in missing:
        # The new edition has the data of a log that another run has, too.
        if run.log_id not in shared:
            await new.pages.copy(old.pages.documents(run.log_id))
            await new.values.copy(await old.values.documents(own_scope(run.log_id)))
        await new.runs.keep_without_log(run.run_id, await old.runs.document(run.run_id))
    await _announce(log, missing, old, ended=True)


async def drop(log: LogSettings, missing: Sequence[RunTopic], *, old: Edition, new: Edition) -> None:
    """Announces that these runs are deleted, and waits until they are in `new`. Raises
    `UnavailableError`.
    """
    await _announce(log, missing, old, deleted=True)
    run_ids = {run.run_id for run in missing}
    deadline = time.monotonic() + _DELETING_SECONDS
    while left := run_ids - (await new.runs.deleted(run_ids)).keys():
        if time.monotonic() > deadline:
            reason = f"{len(left)} deletions were not folded within {_DELETING_SECONDS:g} s"
            raise UnavailableError("The rebuild", reason=reason)
        await asyncio.sleep(_LOOK_SECONDS)


async def _announce(log: LogSettings, missing: Sequence[RunTopic], stores: Edition, **changes: bool) -> None:
    topics = log.topics
    async with (
        LogAdmin.connect(log) as admin,
        CatalogView.connect(log) as catalog,
        Publisher.connect(log) as publisher,
        Leaders.connect(log) as leaders,
    ):
        verdicts = VerdictLog(log, Verdicts(log), admin=admin, publisher=publisher, leaders=leaders)
        run_ids = {run.run_id for run in missing}
        async with aclosing(catalog.lives()) as lives:
            listed = {life.run_id: life async for life in lives if life.run_id in run_ids}
        changed = []
        for run in missing:
            document = await stores.runs.document(run.run_id)
            agent = document.get("agent_id") or ""
            life = listed.get(run.run_id) or await catalog.lookup(run.run_id)
            life = life or Life(run_id=run.run_id, log_id=run.log_id, agent_id=agent)
            if not life.deleted and life.log_id == run.log_id:
                changed.append(life.model_copy(update=changes))
        await verdicts.delete(life for life in changed if life.deleted)
        acks = [
            await publisher.send(
                topics.catalog, life_record(life), partition=partition_of(topics, life.run_id)
            )
            for life in changed
        ]
        for ack in acks:
            await publisher.wait(ack)


def _named(names: Iterable[str]) -> Iterator[str]:
    listed = list(names)
    yield from (f"  {name}" for name in listed[:NAMED_MAX])
    if len(listed) > NAMED_MAX:
        yield f"  and {len(listed) - NAMED_MAX:,} more"
