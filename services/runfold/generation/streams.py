"""Streams of contents that memories are generated of from time to time: `ingestEvents`.

A stream, by its bank, scope and name, is a run of its own, so that its log has everything: the contents, the rule, each trigger and
each answer. A trigger expects the log as it was seen, so of several processes one wins.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from pydantic import ValidationError

from runfold.generation.answering import derived_id, log_run_id
from runfold.generation.generator import said_by
from runfold.generation.logs import open_log
from runfold.generation.options import GenerationOptions, Ingested
from runfold.generation.tending import Tending
from runfold.generation.trigger_log import TriggerLog
from runfold.generation.triggers import STREAM, StreamSettings, TriggerRule, due
from runfold.run import Position
from runfold_schemas.codec import first_fault, new_data
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent, RunLabeled

__all__ = ["IngestStreams", "Ingested", "stream_run_id"]


class IngestStreams:
    """The streams of all banks. What becomes due later is run by `tending`."""

    def __init__(self, tending: Tending) -> None:
        self._tending = tending

    async def ingest(
        self,
        bank_id: str,
        scope: Mapping[str, str],
        stream_id: str,
        contents: Sequence[Ingested],
        *,
        rule: TriggerRule | None = None,
        default_rule: TriggerRule | None = None,
        options: GenerationOptions | None = None,
        force_flush: bool = False,
    ) -> Position | None:
        """Appends the contents to the stream, all or none, and gives the position of the last one.

        Returns when they are durable; where memories are generated at once (by `force_flush`, or by a rule without conditions,
        which is the default), when those can be read. If that fails, the contents stay in the stream and it is tried again
        later. Rule and options count until others are given; `default_rule` is that of a new stream that is given none.

        Raises `NoModelError`, `BankNotFoundError`, `InvalidEventError`, `EventTooLargeError`, `UnavailableError`, and at once
        what a generation does.
        """
        generator = self._tending.generator()
        _ = generator.model
        await generator.memories.bank(bank_id)
        log = await self._log(bank_id, scope, stream_id)
        settings = _settings(scope, rule, options, default_rule=default_rule, known=log.state.settings)
        events = list(_events(log, settings, contents))
        positions = await log.run.publish_batch(events)
        await log.catch_up()
        if force_flush or due(log.state, log.state.content_at) == "flush":
            await log.flush()
        self._tending.look()
        return positions[-1] if contents else None

    async def _log(self, bank_id: str, scope: Mapping[str, str], stream_id: str) -> TriggerLog:
        runfold = self._tending.generator().runfold
        run_id = stream_run_id(bank_id, scope, stream_id)
        run = await open_log(runfold, bank_id=bank_id, run_id=run_id, kind="stream")
        log = self._tending.log_of(run.life)
        if not log.state.next_offset:
            await log.catch_up()
        return log


def stream_run_id(bank_id: str, scope: Mapping[str, str], stream_id: str) -> str:
    """The run whose log the stream is, once something was ingested into it."""
    return log_run_id(bank_id, stream_id, json.dumps(scope, sort_keys=True))


def _settings(
    scope: Mapping[str, str],
    rule: TriggerRule | None,
    options: GenerationOptions | None,
    *,
    default_rule: TriggerRule | None,
    known: StreamSettings | None,
) -> StreamSettings:
    rule = rule or (known.rule if known else default_rule or TriggerRule())
    options = options or (known.options if known else GenerationOptions())
    try:
        return StreamSettings(scope=dict(scope), rule=rule, options=options)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error


def _events(log: TriggerLog, settings: StreamSettings, contents: Sequence[Ingested]) -> Iterator[AnyEvent]:
    """The contents as events, behind what is new of the stream itself."""
    run = log.run
    if settings != log.state.settings:
        said = settings.model_dump(mode="json", exclude_unset=True)
        yield run.event(new_data(RunLabeled, labels={}, metadata={STREAM: said}))
    for one in contents:
        event_id = None if one.event_id is None else derived_id("content", run.run_id, one.event_id)
        yield run.event(said_by(one.content), event_id=event_id, timestamp=one.event_time)
