"""Prefixes of a history, which show the run as it was: up to an offset, a time or a turn, or before
a turn.
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
    """The end of a prefix by at most one of these fields; without any, the whole run. Raises
    `InvalidEventError` for two fields.
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
        names = [name for name, value in values.items() if value is not None]
        if len(names) > 1:
            raise InvalidEventError(f"only one of {' and '.join(names)} can be given", field=names[1])

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
    """The first record that was appended later. A broker's clock may have been set back, so records
    after it are not looked at.
    """
    milliseconds = (time - _EPOCH) // _MILLISECOND
    async for slice_ in history.slices():
        if slice_.max_time > milliseconds:
            for admitted in slice_.admitted():
                if admitted.record.log_time > milliseconds:
                    return admitted.record.offset
    return history.end


async def _end_of_turn(history: History, turn_id: str) -> int:
    last: Slice | None = None
    async for slice_ in history.slices():
        if turn_id in slice_.turns:
            last = slice_
    offsets = _offsets(last, turn_id)
    if not offsets:
        raise _unknown_turn(history, turn_id, field="as_of_turn")
    return offsets[-1] + 1


async def _begin_of_turn(history: History, turn_id: str) -> int:
    async for slice_ in history.slices():
        if turn_id in slice_.turns and (offsets := _offsets(slice_, turn_id)):
            return offsets[0]
    raise _unknown_turn(history, turn_id, field="before_turn")


def _offsets(slice_: Slice | None, turn_id: str) -> list[int]:
    if slice_ is None:
        return []
    return [admitted.record.offset for admitted in slice_.admitted() if _is_of_turn(admitted, turn_id)]


def _is_of_turn(admitted: Admitted, turn_id: str) -> bool:
    return admitted.counts and admitted.event is not None and admitted.event.turn_id == turn_id


def _unknown_turn(history: History, turn_id: str, *, field: str) -> InvalidEventError:
    return InvalidEventError(f"run {history.run_id!r} has no turn {turn_id!r}", field=field)
