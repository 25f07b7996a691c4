"""What the catalog says of runs' lives, taken to MongoDB; and said again where something else was
said behind it.
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
    """Runs that nothing was known of."""
    deleted: list[Life]
    """Lives that are over for good, whether this was known or not."""


class CatalogFold:
    def __init__(self, topics: Topics, runs: RunStore, writer: Writer) -> None:
        self._topics = topics
        self._runs = runs
        self._writer = writer

    async def take(self, entries: Sequence[tuple[Life, int]]) -> Taken:
        """Takes lives, each with the broker's time of it, in their order."""
        lives = [(life, time) for life, time in entries if self._can_have_log(life)]
        deleted = {(life.run_id, life.log_id): life for life, _ in lives if life.deleted}
        standing = [(life, time) for life, time in lives if (life.run_id, life.log_id) not in deleted]
        first_logs = {life.run_id: life.log_id for life, _ in reversed(lives)}
        first = {life.run_id: (life, time) for life, time in reversed(standing)}
        added = await self._runs.add(
            [
                _unfolded(life, announced_ms=time)
                for life, time in first.values()
                if life.log_id == first_logs[life.run_id]
            ]
        )
        await self._restate([life for life, _ in standing])
        late = await self._deleted_with_session([life.run_id for life, _ in standing])
        return Taken(added, [*deleted.values(), *late])

    def _can_have_log(self, life: Life) -> bool:
        """Whether there can be such a topic: anybody may write to the catalog."""
        try:
            return is_topic_name(self._topics.run(life.run_id, life.log_id))
        except InvalidIdError:
            return False

    async def _restate(self, lives: Sequence[Life]) -> None:
        """Says again what stands of a run where something else was said behind it, for compaction
        to keep.
        """
        run_ids = [life.run_id for life in lives]
        standing, deleted = await self._runs.get_many(run_ids), await self._runs.deleted(run_ids)
        # Somebody opened the run a second time: the first life stands.
        await self._writer.announce(
            standing[life.run_id].life
            for life in lives
            if life.run_id in standing and standing[life.run_id].log_id != life.log_id
        )
        # Or has not heard that it was deleted.
        await self._writer.announce_deleted(
            [
                life.model_copy(update={"log_id": deleted[life.run_id]})
                for life in lives
                if life.run_id in deleted
            ]
        )

    async def _deleted_with_session(self, run_ids: Sequence[str]) -> list[Life]:
        """Those of these runs whose session was deleted, behind their announcement, while nothing
        was stored of them.
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


def _unfolded(life: Life, *, announced_ms: int) -> RunState:
    return RunState(
        log_id=life.log_id,
        partition=partition_of(life.run_id),
        active=True,
        record=RunRecord(run_id=life.run_id, agent_id=life.agent_id, session_id=life.session_id),
        announced_ms=announced_ms,
    )
