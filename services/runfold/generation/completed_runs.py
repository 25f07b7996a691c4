"""Generates memories from completed runs, for the agents that a bank names: `BankConfig.agents`.

The catalog contains which runs have ended. The processes read it as one consumer group, whose
position is committed when the trigger is in a log. So memories are generated from every run that
completes after its agent was named, even if no process was running at that moment. The ids of log
and trigger are derived from the run's, so there is one generation for each run and bank, however
often the catalog is read.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn, Self

from runfold.client.memories import Memories
from runfold.client.runfold import Runfold
from runfold.client.sessions import Sessions
from runfold.generation.answering import derived_id, log_run_id, trigger_options
from runfold.generation.logs import open_log
from runfold.generation.options import GenerationOptions
from runfold.generation.trigger_runner import TriggerRunner
from runfold.log.catalog_group import CatalogRecord, catalog_group
from runfold.log.driver import kafka_errors
from runfold.log.reader import LogGoneError
from runfold.settings import Settings
from runfold_projections.memory import BankRecord
from runfold_schemas.catalog import Life
from runfold_schemas.codec import UnreadableBatch, new_data
from runfold_schemas.errors import InvalidEventError, RunEndedError, RunfoldError, SessionNotFoundError
from runfold_schemas.memories import GenerationRequested, is_generation_log
from runfold_schemas.runs import RunFailed, RunOpened

_GROUP: Final = "generation"

_RETRY_SECONDS: Final = 2.0

_PAGE: Final = 500

_log = logging.getLogger(__name__)


class CompletedRuns:
    """Use it as an async context manager, inside of `runner`, which answers the triggers."""

    def __init__(self, settings: Settings, runner: TriggerRunner) -> None:
        self._settings = settings
        self._runner = runner
        self._watching: asyncio.Task[NoReturn]

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> NoReturn:
        while True:
            try:
                log = self._runner.generator().runfold.connection.settings
                with kafka_errors():
                    async with catalog_group(
                        log,
                        _GROUP,
                        member_id=self._settings.worker_id,
                        session_timeout_seconds=self._settings.session_timeout_seconds,
                        on_assigned=_ignore_assignment,
                        on_records=self._publish_triggers,
                    ) as failed:
                        await failed
            except RunfoldError as error:
                _log.info("completed runs cannot be read yet: %s", error)
            except Exception:  # noqa: BLE001  # after any error, a later attempt may succeed
                _log.exception("completed runs cannot be read yet")
            await asyncio.sleep(_RETRY_SECONDS)

    async def _publish_triggers(self, records: Sequence[CatalogRecord], _: Sequence[UnreadableBatch]) -> None:
        """Returns when for every run that ended, and for each bank that names its agent, a trigger
        is in a log.
        """
        ended = [
            entry
            for record in records
            if isinstance(entry := record.entry, Life)
            and entry.ended
            and not entry.deleted
            and not is_generation_log(entry.run_id)
        ]
        while ended:
            try:
                await self._publish_for_banks(ended)
                ended = []
            except RunfoldError as error:
                _log.warning("triggers for completed runs cannot be published yet: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:  # noqa: BLE001  # FastStream would skip the runs silently
                _log.exception("triggers for completed runs cannot be published yet")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _publish_for_banks(self, ended: Iterable[Life]) -> None:
        generator = self._runner.generator()
        banks = [bank for bank in await _banks(generator.memories) if bank.config.agents]
        for life in ended:
            for bank in banks:
                if life.agent_id in bank.config.agents:
                    await self._publish_or_skip(bank, life)

    async def _publish_or_skip(self, bank: BankRecord, life: Life) -> None:
        """Skips a run if its error is final: all runs after it would wait for ever."""
        try:
            await self._publish(bank, life)
        except RunfoldError as error:
            if error.retriable:
                raise
            _log.warning("no memories are generated from run %s: %s", life.run_id, error)
        except Exception:  # noqa: BLE001  # a defect that shows with one run does not stop the others
            _log.exception("no memories are generated from run %s", life.run_id)

    async def _publish(self, bank: BankRecord, life: Life) -> None:
        generator = self._runner.generator()
        runfold = generator.runfold
        part = await _own_part(runfold, life)
        if part is None:
            return
        name = ("run_completed", bank.created_by, life.log_id)
        run = await open_log(runfold, bank_id=bank.bank_id, run_id=log_run_id(*name), kind="run_completed")
        try:
            request = new_data(
                GenerationRequested,
                bank_id=bank.bank_id,
                scope=_scope(life, await _user(generator.sessions, life)),
                first_offset=part.start,
                end_offset=part.stop,
                reason="run_completed",
                options=trigger_options(
                    GenerationOptions(), run_id=life.run_id, bank_created_by=bank.created_by
                ),
            )
            await run.append(request, event_id=derived_id(*name))
        except RunEndedError:
            return  # the trigger was answered long ago
        except InvalidEventError as error:
            _log.warning("no memories are generated from run %s: %s", life.run_id, error)
            await run.append(RunFailed(error=str(error)))
            return
        log = self._runner.trigger_log_of(run.life)
        log.own_triggers.add(derived_id(*name))
        await log.catch_up()
        self._runner.look()


async def _banks(memories: Memories) -> list[BankRecord]:
    banks, cursor = list[BankRecord](), None
    while True:
        page, cursor = await memories.banks(limit=_PAGE, cursor=cursor)
        banks += page
        if cursor is None:
            return banks


async def _own_part(runfold: Runfold, life: Life) -> range | None:
    """The offsets up to the completion of the run, in a fork without the copies. None if the run
    ended otherwise, or was deleted.
    """
    begin = 0
    try:
        async for admitted in runfold.connection.log_of(life).history():
            event = admitted.event
            if admitted.outcome != "accepted" or event is None:
                continue
            if isinstance(event.data, RunOpened) and event.data.forked_from is not None:
                begin = 1 + event.data.forked_from.events
            if event.type == "run_completed":
                return range(begin, admitted.record.offset)
    except LogGoneError:
        pass
    return None


async def _user(sessions: Sessions, life: Life) -> str | None:
    """The user of the run, or of its session."""
    if life.user_id or life.session_id is None:
        return life.user_id
    try:
        return (await sessions.view(life.session_id)).record.user
    except SessionNotFoundError:
        return None


def _scope(life: Life, user: str | None) -> dict[str, str]:
    """The scope of a run's memories: the run's user; without a user, the agent."""
    return {"app_name": life.agent_id, "user_id": user} if user else {"agent_id": life.agent_id}


async def _ignore_assignment(assigned: set[int]) -> None:
    """Nothing depends on the partitions that are assigned."""
