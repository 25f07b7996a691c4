"""Streams of contents, from which memories are generated from time to time: `ingestEvents`.

A stream has a bank, a scope and a name. It is a run of its own, whose log contains everything: the
contents, the rule, each trigger and each answer. Triggers and rules are published with
`expected_offset`, so if several processes publish at the same time, one succeeds; a process that
fails to publish a rule reads the log and tries again. If a bank is deleted and created anew with
the same id, the new bank does not have the streams of the old one.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from pydantic import ValidationError

from runfold.client.appender import Appender, Position
from runfold.client.runfold import Runfold
from runfold.encryption.subjects import subject_of_scope
from runfold.generation.answering import derived_id, log_run_id
from runfold.generation.generator import content_event
from runfold.generation.logs import open_log
from runfold.generation.options import GenerationOptions, StreamContent
from runfold.generation.trigger_log import TriggerLog
from runfold.generation.trigger_runner import TriggerRunner
from runfold.generation.triggers import STREAM, StreamSettings, TriggerRule, due
from runfold_projections.memory import BankRecord
from runfold_schemas.codec import first_fault, new_data
from runfold_schemas.errors import InvalidEventError, InvalidIdError, RejectedError, UnavailableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.runs import RunLabeled

_log = logging.getLogger(__name__)

__all__ = ["IngestStreams", "StreamContent", "stream_run_id"]


class IngestStreams:
    """The streams of all banks. Generations that become due later are run by `runner`."""

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
        """Appends the contents to the stream, all or none. Returns the position of the last one.

        Returns when the contents are durable. If memories are generated at once (with
        `force_flush`, or by a rule without conditions, which is the default), returns when these
        can be read. If the model or MongoDB is unavailable, the contents are stored and memories
        are generated later. A rule and options are valid until others are given; `default_rule` is
        the rule of a new stream if no rule is given.

        Raises `NoModelError`, `BankNotFoundError`, `InvalidEventError`, `EventTooLargeError` and
        `UnavailableError`, and the errors of a generation that runs at once.
        """
        generator = self._runner.generator()
        _ = generator.model
        bank = await generator.memories.bank(bank_id)
        log = await self._log(bank, scope, stream_id)
        events = [_event(log, content) for content in contents]
        if rule or options or log.state.settings is None:
            await _update_settings(log, bank, scope, rule=rule, default_rule=default_rule, options=options)
        positions = await log.appender.append_batch(events, subject=subject_of_scope(bank_id, scope))
        await log.catch_up()
        if force_flush or due(log.state, log.state.content_at) == "flush":
            try:
                await log.flush()
            except UnavailableError as error:
                if not contents:
                    raise
                # After an error, the caller would ingest the contents a second time.
                _log.warning("memories of run %s will be generated later: %s", log.appender.run_id, error)
        self._runner.look()
        return positions[-1] if contents else None

    async def _log(self, bank: BankRecord, scope: Mapping[str, str], stream_id: str) -> TriggerLog:
        runfold = self._runner.generator().runfold
        run = await _open_stream(runfold, bank, scope, stream_id)
        log = self._runner.trigger_log_of(run.life)
        if not log.state.next_offset:
            await log.catch_up()
        return log


async def _open_stream(
    runfold: Runfold, bank: BankRecord, scope: Mapping[str, str], stream_id: str
) -> Appender:
    for number in count():
        run_id = stream_run_id(bank.created_by, scope, stream_id, number)
        try:
            return await open_log(runfold, bank_id=bank.bank_id, run_id=run_id, kind="stream")
        except InvalidIdError as error:
            # The log was deleted, for example with its user, and its id is not used again.
            if error.name != "run_id":
                raise
    raise AssertionError("there are endlessly many numbers")


def stream_run_id(bank_created_by: str, scope: Mapping[str, str], stream_id: str, number: int = 0) -> str:
    """The id of the run that is the stream's log, for the bank that was created by this event. The
    run exists if something was ingested. `number` counts the logs before that were deleted.
    """
    numbered = [str(number)] if number else []
    return log_run_id(bank_created_by, stream_id, json.dumps(scope, sort_keys=True), *numbered)


def _event(log: TriggerLog, content: StreamContent) -> AnyEvent:
    event_id = (
        None if content.event_id is None else derived_id("content", log.appender.run_id, content.event_id)
    )
    return log.appender.event(content_event(content.content), event_id=event_id, timestamp=content.event_time)


async def _update_settings(
    log: TriggerLog,
    bank: BankRecord,
    scope: Mapping[str, str],
    *,
    rule: TriggerRule | None,
    default_rule: TriggerRule | None,
    options: GenerationOptions | None,
) -> None:
    """Publishes the stream's settings if they change. Settings that another process publishes at
    the same time are kept, as far as they are not given here.
    """
    while True:
        state = await log.catch_up()
        current = state.settings
        settings = _checked_settings(
            scope=dict(scope),
            rule=rule or (current.rule if current else default_rule or TriggerRule()),
            options=options or (current.options if current else GenerationOptions()),
            bank_created_by=bank.created_by,
        )
        if settings == current:
            return
        document = settings.model_dump(mode="json", exclude_unset=True)
        labeled = new_data(RunLabeled, labels={}, metadata={STREAM: document})
        with suppress(RejectedError):
            subject = subject_of_scope(bank.bank_id, scope)
            await log.appender.append(labeled, expected_offset=state.last_offset, subject=subject)
            return


def _checked_settings(**fields: Any) -> StreamSettings:
    try:
        return StreamSettings(**fields)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error
