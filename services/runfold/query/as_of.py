"""Where a history is cut off to show the run as it was: after an offset, at a time, after a turn or
before one.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from runfold.query.history import History, Slice
from runfold_projections.admission import Admitted
from runfold_schemas.errors import InvalidEventError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class AsOf:
    """At most one of these is given; none means the whole run. Raises `InvalidEventError` for
    more.
    """

    offset: int | None = None
    time: datetime | None = None
    turn: str | None = None
    before_turn: str | None = None

    def __post_init__(self) -> None:
        values = {
            "as_of_offset": self.offset,
            "as_of_time": self.time,
            "as_of_turn": self.turn,
            "before_turn": self.before_turn,
        }
        given = [name for name, value in values.items() if value is not None]
        if len(given) > 1:
            raise InvalidEventError(f"only one of {' and '.join(given)} can be given", field=given[1])

    async def end(self, history: History) -> int:
        """The end of the prefix. Raises `InvalidEventError` for a turn that the run does not
        have.
        """
        if self.offset is not None:
            return min(self.offset + 1, history.end)
        if self.time is not None:
            return await _end_at(history, self.time)
        if self.turn is not None:
            return await _end_of_turn(history, self.turn)
        if self.before_turn is not None:
            return await _begin_of_turn(history, self.before_turn)
        return history.end


async def _end_at(history: History, time: datetime) -> int:
    """Before the first record whose running-maximum append time is later: a broker's clock may have
    been set back.
    """
    milliseconds = (time - _EPOCH) // _MILLISECOND
    async for part in history.slices():
        if part.max_time > milliseconds:
            for one in part.admitted():
                if one.record.log_time > milliseconds:
                    return one.record.offset
    return history.end


async def _end_of_turn(history: History, turn_id: str) -> int:
    last: Slice | None = None
    async for part in history.slices():
        if turn_id in part.turns:
            last = part
    offsets = _offsets(last, turn_id)
    if not offsets:
        raise _unknown(history, turn_id, field="as_of_turn")
    return offsets[-1] + 1


async def _begin_of_turn(history: History, turn_id: str) -> int:
    async for part in history.slices():
        if turn_id in part.turns and (offsets := _offsets(part, turn_id)):
            return offsets[0]
    raise _unknown(history, turn_id, field="before_turn")


def _offsets(part: Slice | None, turn_id: str) -> list[int]:
    return [one.record.offset for one in part.admitted() if _is_of(one, turn_id)] if part else []


def _is_of(one: Admitted, turn_id: str) -> bool:
    return one.counts and one.event is not None and one.event.turn_id == turn_id


def _unknown(history: History, turn_id: str, *, field: str) -> InvalidEventError:
    return InvalidEventError(f"run {history.run_id!r} has no turn {turn_id!r}", field=field)
