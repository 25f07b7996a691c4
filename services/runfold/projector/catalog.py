"""Folds the lives of runs from the catalog into MongoDB. If a later record of the catalog
contradicts the life that counts, the life is published again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from runfold.log.catalog import is_topic_name, partition_of
from runfold.projector.writer import Writer
from runfold.store.runs import RunState, RunStore
from runfold_projections.run import RunRecord
from runfold_schemas.catalog import Life
from runfold_schemas.errors import InvalidIdError
from runfold_schemas.sessions import is_session_run
from runfold_schemas.topics import Topics


class Taken(NamedTuple):
    added: list[RunState]
    """Runs that were not stored before."""
    deleted: list[Life]
    """Lives that are deleted, whether this was stored before or not."""


class CatalogFold:
    """The fold of the catalog's lives."""

    def __init__(self, topics: Topics, runs: RunStore, writer: Writer) -> None:
        self._topics = topics
        self._runs = runs
        self._writer = writer

    async def take(self, entries: Sequence[tuple[Life, int]]) -> Taken:
        """Takes lives in the order of the catalog, each with the broker's time in milliseconds
        since 1970.
        """
        lives = [(life, time) for life, time in entries if self._can_have_log(life)]
        deleted = {(life.run_id, life.log_id): life for life, _ in lives if life.deleted}
        existing = [(life, time) for life, time in lives if (life.run_id, life.log_id) not in deleted]
        first_logs = {life.run_id: life.log_id for life, _ in reversed(lives)}
        first = {life.run_id: (life, time) for life, time in reversed(existing)}
        added = await self._runs.add(
            [
                self._unfolded(life, announced_ms=time)
                for life, time in first.values()
                if life.log_id == first_logs[life.run_id]
            ]
        )
        await self._restate([life for life, _ in lives])
        late = await self._delete_with_session([life.run_id for life, _ in existing])
        return Taken(added, [*deleted.values(), *late])

    def _can_have_log(self, life: Life) -> bool:
        """Whether Kafka allows the topic's name. Any program may write to the catalog."""
        try:
            return is_topic_name(self._topics.run(life.run_id, life.log_id))
        except InvalidIdError:
            return False

    async def _restate(self, lives: Sequence[Life]) -> None:
        """Publishes the life that counts again if one of `lives` contradicts it, because compaction
        keeps the last record.
        """
        run_ids = [life.run_id for life in lives]
        stored, deleted = await self._runs.get_many(run_ids), await self._runs.deleted(run_ids)
        # A second client opened the run, or its log was deleted. The first life counts.
        await self._writer.announce(
            stored[life.run_id].life
            for life in lives
            if life.run_id in stored and stored[life.run_id].log_id != life.log_id
        )
        # A client did not know that the run was deleted.
        await self._writer.announce_deleted(
            [
                life.model_copy(update={"log_id": deleted[life.run_id]})
                for life in lives
                if life.run_id in deleted and not (life.deleted and life.log_id == deleted[life.run_id])
            ]
        )

    async def _delete_with_session(self, run_ids: Sequence[str]) -> list[Life]:
        """Announces the deletion of runs whose session was deleted after their announcement, but
        before they were stored. Returns their lives.
        """
        states = [
            state
            for state in (await self._runs.get_many(run_ids)).values()
            if state.record.session_id is not None and not is_session_run(state.run_id, state.log_id)
        ]
        if not states:
            return []
        deletions = await self._runs.session_deletions({state.record.session_id or "" for state in states})
        lives = [
            state.life
            for state in states
            if deletions.get(state.record.session_id or "", -1) >= state.announced_ms
        ]
        await self._writer.announce_deleted(lives)
        return lives

    def _unfolded(self, life: Life, *, announced_ms: int) -> RunState:
        return RunState(
            log_id=life.log_id,
            partition=partition_of(self._topics, life.run_id),
            active=True,
            record=RunRecord(run_id=life.run_id, agent_id=life.agent_id, session_id=life.session_id),
            announced_ms=announced_ms,
        )
