"""Prefixes of a run's log, read from Kafka."""

from contextlib import aclosing
from datetime import datetime
from typing import Any, NamedTuple, TypedDict, cast

from runfold.client.run_log import RunLog
from runfold.encryption.hiding import hide_run, hide_value, hide_values
from runfold_projections.admission import Admitted
from runfold_projections.as_of import AsOf
from runfold_projections.providers import EncodeOptions
from runfold_projections.run import RunRecord, fold
from runfold_projections.state import Value, own_changes, without_temporary
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import AnyEvent


class AsOfOptions(TypedDict, total=False):
    """The end of what is read of a run, by one of these. By default its end as it is now."""

    as_of_offset: int | None
    """The last offset that is included."""
    as_of_time: datetime | None
    """Before the first record that was appended after this time."""
    as_of_turn: str | None
    """Before the event that begins the turn after this one. An event without a `turn_id` belongs to
    the turn of the event before it.
    """
    before_turn: str | None
    """Before the first event of this turn."""


def as_of(options: AsOfOptions) -> AsOf:
    """Raises `InvalidEventError` for two options."""
    return AsOf(
        offset=options.get("as_of_offset"),
        time=options.get("as_of_time"),
        turn=options.get("as_of_turn"),
        before_turn=options.get("before_turn"),
    )


class LedgerOptions(EncodeOptions, AsOfOptions, total=False):
    """How a ledger becomes a request, and the moment that it shows."""


def split_options(options: LedgerOptions) -> tuple[AsOf, EncodeOptions]:
    """Raises `InvalidEventError` for two moments."""
    place = {name: value for name, value in options.items() if name in AsOfOptions.__annotations__}
    others = {name: value for name, value in options.items() if name not in place}
    return as_of(cast("AsOfOptions", place)), cast("EncodeOptions", others)


class RunView(NamedTuple):
    """A run as it was at one moment."""

    record: RunRecord
    """`record.next_offset` is the first offset that is not included."""
    state: dict[str, Any]
    """The run's own state. `app:` and `user:` keys are not part of it, because other runs change
    them too.
    """
    offsets: dict[str, int]
    """The offset of the event that set each key."""


class Prefix(NamedTuple):
    """All records of a log before `end`, with their outcomes."""

    records: list[Admitted]
    end: int
    is_revealed: bool
    """Whether the records were opened. Then a text that looks like ciphertext is none."""

    def entries(self) -> list[tuple[int, AnyEvent]]:
        """The events that count, with their offsets."""
        return [
            (each.record.offset, each.event)
            for each in self.records
            if each.counts and each.event is not None
        ]

    def view(self, run_id: str) -> RunView:
        record = fold(RunRecord(run_id=run_id), self.records).model_copy(update={"next_offset": self.end})
        values: dict[str, Value] = {}
        for each in self.records:
            values.update(own_changes(each))
        state = {key: value.value for key, value in values.items()}
        return RunView(
            record if self.is_revealed else hide_run(record),
            state if self.is_revealed else hide_values(state),
            {key: value.offset for key, value in values.items()},
        )


class PrefixLimit(NamedTuple):
    """The longest prefix that is taken into memory."""

    records: int
    bytes: int


async def read_prefix(
    log: RunLog, as_of: AsOf, *, offset_name: str = "as_of_offset", limit: PrefixLimit | None = None
) -> Prefix:
    """The run as it was. The end is fixed when the reading begins. `offset_name` is the name of the
    caller's parameter. Raises `UnavailableError`, and `InvalidEventError` for an offset or a turn
    that the log does not have, and at the first record beyond the limit.
    """
    offset = as_of.offset
    end = None if offset is None else max(offset, 0) + 1
    records: list[Admitted] = []
    size, turn = 0, as_of.named_turn
    async with aclosing(log.history(end=end)) as history:
        async for admitted in history:
            records.append(admitted)
            if turn is not None and as_of.before_turn is not None:
                turn.take(admitted)
                if turn.begin is not None:
                    break
            size += len(admitted.record.value or b"")
            if limit is not None and (len(records) > limit.records or size > limit.bytes):
                raise InvalidEventError(
                    f"run {log.run_id!r} has more than {limit.records:,} events or {limit.bytes:,} bytes"
                    " before that place, which is too long for a copy",
                    field=offset_name,
                )
    log_end = records[-1].record.offset + 1 if records else 0
    if offset is not None and log_end <= offset:
        log_end = await log.end()
    check_offset(as_of, log.run_id, log_end=log_end, name=offset_name)
    end = as_of.end(log.run_id, records, log_end=log_end)
    return Prefix([each for each in records if each.record.offset < end], end, log.has_key)


def check_offset(as_of: AsOf, run_id: str, *, log_end: int, name: str = "as_of_offset") -> None:
    """Raises `InvalidEventError` for an offset that the log does not have."""
    if as_of.offset is not None and not 0 <= as_of.offset < log_end:
        raise InvalidEventError(
            f"run {run_id!r} has no offset {as_of.offset}: its log ends at {log_end}", field=name
        )


class StateChange(NamedTuple):
    """A change of one key of state, by an event that counts."""

    offset: int
    log_time: int
    """When the event was appended to the log, in milliseconds since 1970."""
    event_id: str
    type: str
    value: Any


def changes_of(prefix: Prefix, key: str) -> list[StateChange]:
    """The changes of a key by events of the run, the first one first. Late events change no
    state.
    """
    return [
        StateChange(
            *each.record[:2],
            each.event.event_id,
            each.event.type,
            delta[key] if prefix.is_revealed else hide_value(delta[key]),
        )
        for each in prefix.records
        if each.outcome == "accepted"
        and each.event is not None
        and key in (delta := without_temporary(each.event.state_delta or {}))
    ]
