"""Streams of contents that memories are generated of from time to time: `ingestEvents`.

A stream, by its bank, scope and name, is a run of its own, so that its log has everything: the
contents, the rule, each trigger and each answer. A trigger expects the log as it was seen, so of
several processes one wins; so does a new rule, which is decided about anew if it loses. A bank that
is created anew with the id of another one has nothing of its streams.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from runfold.client.run import Position
from runfold.generation.answering import derived_id, log_run_id
from runfold.generation.generator import content_event
from runfold.generation.logs import open_log
from runfold.generation.options import GenerationOptions, StreamContent
from runfold.generation.trigger_log import TriggerLog
from runfold.generation.trigger_runner import TriggerRunner
from runfold.generation.triggers import STREAM, StreamSettings, TriggerRule, due
from runfold_projections.memory import BankRecord
from runfold_schemas.codec import first_fault, new_data
from runfold_schemas.errors import InvalidEventError, RejectedError, UnavailableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import RunLabeled

_log = logging.getLogger(__name__)

__all__ = ["IngestStreams", "StreamContent", "stream_run_id"]


class IngestStreams:
    """The streams of all banks. What becomes due later is run by `runner`."""

    def __init__(self, runner: TriggerRunner) -> None:
        self._runner = runner

    async def ingest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        stream_id: str,
        contents: Sequence[StreamContent],
        *,
        rule: TriggerRule | None = None,
        default_rule: TriggerRule | None = None,
        options: GenerationOptions | None = None,
        force_flush: bool = False,
    ) -> Position | None:
        """Appends the contents to the stream, all or none, and gives the position of the last one.

        Returns when they are durable; where memories are generated at once (by `force_flush`, or by
        a rule without conditions, which is the default), when those can be read. Where the model or
        MongoDB is away, the contents stay in the stream and it is tried again later. Rule and
        options count until others are given; `default_rule` is that of a new stream that is given
        none.

        Raises `NoModelError`, `BankNotFoundError`, `InvalidEventError`, `EventTooLargeError`,
        `UnavailableError`, and at once what a generation does.
        """
        generator = self._runner.generator()
        _ = generator.model
        bank = await generator.memories.bank(bank_id)
        log = await self._log(bank, scope, stream_id)
        events = [_event(log, one) for one in contents]
        if rule or options or log.state.settings is None:
            await _settle(log, bank, scope, rule=rule, default_rule=default_rule, options=options)
        positions = await log.run.publish_batch(events)
        await log.catch_up()
        if force_flush or due(log.state, log.state.content_at) == "flush":
            try:
                await log.flush()
            except UnavailableError as error:
                if not contents:
                    raise
                # Who is told to retry would ingest the contents a second time.
                _log.warning("memories of run %s are generated later: %s", log.run.run_id, error)
        self._runner.look()
        return positions[-1] if contents else None

    async def _log(self, bank: BankRecord, scope: Mapping[str, str], stream_id: str) -> TriggerLog:
        runfold = self._runner.generator().runfold
        run_id = stream_run_id(bank.created_by, scope, stream_id)
        run = await open_log(runfold, bank_id=bank.bank_id, run_id=run_id, kind="stream")
        log = self._runner.log_of(run.life)
        if not log.state.next_offset:
            await log.catch_up()
        return log


def stream_run_id(bank_created_by: str, scope: Mapping[str, str], stream_id: str) -> str:
    """The run whose log the stream is, once something was ingested into it: of the bank that this
    event has made.
    """
    return log_run_id(bank_created_by, stream_id, json.dumps(scope, sort_keys=True))


def _event(log: TriggerLog, one: StreamContent) -> AnyEvent:
    event_id = None if one.event_id is None else derived_id("content", log.run.run_id, one.event_id)
    return log.run.event(content_event(one.content), event_id=event_id, timestamp=one.event_time)


async def _settle(
    log: TriggerLog,
    bank: BankRecord,
    scope: Mapping[str, str],
    *,
    rule: TriggerRule | None,
    default_rule: TriggerRule | None,
    options: GenerationOptions | None,
) -> None:
    """Says in the log what is new of the stream itself, and leaves what somebody else says of it at
    the same time.
    """
    while True:
        state = await log.catch_up()
        known = state.settings
        settings = _settings(
            scope=dict(scope),
            rule=rule or (known.rule if known else default_rule or TriggerRule()),
            options=options or (known.options if known else GenerationOptions()),
            bank_created_by=bank.created_by,
        )
        if settings == known:
            return
        said = settings.model_dump(mode="json", exclude_unset=True)
        labeled = new_data(RunLabeled, labels={}, metadata={STREAM: said})
        with suppress(RejectedError):
            await log.run.publish(labeled, expected_offset=state.last_offset)
            return


def _settings(**given: Any) -> StreamSettings:
    try:
        return StreamSettings(**given)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error
