"""A prefix of a log is read no further than it is needed, and not beyond its limit."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.builders import event

from runfold.client.prefixes import PrefixLimit, read_prefix
from runfold_projections.admission import Admitted
from runfold_projections.as_of import AsOf
from runfold_schemas.codec import Record, encode
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import UserMessage


class EndlessLog:
    """Each event begins a turn."""

    run_id = "run-1"
    has_key = True

    def __init__(self) -> None:
        self.taken = 0
        self.is_closed = False

    async def history(self, *, end: int | None = None) -> AsyncGenerator[Admitted, None]:
        try:
            while end is None or self.taken < end:
                said = event(UserMessage(message="hello"), turn_id=f"turn-{self.taken}")
                self.taken += 1
                yield Admitted(Record(self.taken - 1, 0, None, (), encode(said)), "accepted", said)
        finally:
            self.is_closed = True


@pytest.mark.parametrize(
    "limit", [PrefixLimit(records=9, bytes=10**6), PrefixLimit(records=10**6, bytes=2_500)]
)
@pytest.mark.parametrize("place", [AsOf(), AsOf(offset=10**6), AsOf(before_turn="unknown")])
async def test_a_log_that_is_too_long_is_not_taken_into_memory(place: AsOf, limit: PrefixLimit) -> None:
    log: Any = EndlessLog()

    with pytest.raises(InvalidEventError, match="has more than") as refused:
        await read_prefix(log, place, offset_name="at", limit=limit)

    assert refused.value.field == "at"
    assert log.taken <= 20
    assert log.is_closed


async def test_reading_ends_where_the_turn_begins() -> None:
    log: Any = EndlessLog()

    prefix = await read_prefix(log, AsOf(before_turn="turn-5"), limit=PrefixLimit(records=9, bytes=10**6))

    assert (prefix.end, len(prefix.records), log.taken) == (5, 5, 6)
    assert log.is_closed
