"""The notes of what workers have in hand: the sizes of records, and the processes that are dead."""

from typing import cast

import pytest

from runfold.log.fetch_answer import FetchedRecords
from runfold.projector import holding
from runfold.projector.holding import ALONE_BYTES, LARGE_BYTES, Holding, alone, large, portions, size_of
from runfold.store.holdings import Held, HoldingStore
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition

AT = Partition("topic", 0)


def record(offset: int, *, value: int = 0, key: int = 0, headers: int = 0, header_bytes: int = 0) -> Record:
    pairs = tuple(("", bytes(header_bytes)) for _ in range(headers))
    return Record(offset, 0, bytes(key), pairs, bytes(value))


def test_keys_and_headers_count():
    assert size_of([record(0, value=1, key=10, headers=2, header_bytes=100)]) == 215
    assert size_of([Record(0, 0, None, (("name", None),), None)]) == 6


@pytest.mark.parametrize(
    "large_record",
    [
        record(7, headers=LARGE_BYTES),
        record(7, headers=1, header_bytes=LARGE_BYTES),
        record(7, key=LARGE_BYTES + 1),
        Record(7, 0, None, (("n" * LARGE_BYTES, None),), None),
    ],
    ids=["many headers", "value of a header", "key", "name of a header"],
)
def test_a_batch_is_noted_if_any_part_of_a_record_is_large(large_record: Record):
    part = FetchedRecords(AT, [large_record], 8)

    assert large([part]) == [Held("topic", 0, 7, 8)]


def test_a_record_that_is_large_by_its_key_is_alone():
    records = [record(0), record(1, key=ALONE_BYTES + 1), record(2)]

    divided = portions(records, count_max=10)

    assert [[each.offset for each in portion] for portion in divided] == [[0], [1], [2]]
    assert alone(AT, divided[1], ()) == [Held("topic", 0, 1, 2)]


class Notes:
    """The note of another process, which changes as long as the process lives."""

    def __init__(self, held: Held, *, lives: int, is_let_go: bool) -> None:
        self.held = held
        self.looks = 0
        self._lives = lives
        self._is_let_go = is_let_go

    async def of_others(self, holder: str) -> list[tuple[str, Held]]:
        return [("other", self.held)]

    async def last_change(self, holder: str, held: Held) -> int | None:
        self.looks += 1
        if self.looks > self._lives:
            return None if self._is_let_go else self._lives
        return self.looks


@pytest.mark.parametrize(
    ("lives", "is_let_go", "is_condemned"), [(20, False, True), (20, True, False), (0, False, True)]
)
async def test_a_record_is_condemned_if_the_process_that_had_it_is_dead(
    monkeypatch: pytest.MonkeyPatch, lives: int, is_let_go: bool, is_condemned: bool
):
    monkeypatch.setattr(holding, "_TIDY_SECONDS", 0.01)
    suspect = Held("topic", 0, 7, 8, 1)
    notes = Notes(suspect, lives=lives, is_let_go=is_let_go)
    own = Holding(cast(HoldingStore, notes), dead_seconds=0.1)
    inherited = await own.inherit(lambda _: True)

    assert await own.is_condemned(AT, [record(7)], inherited[AT]) is is_condemned
    assert notes.looks > lives
    assert not await own.is_condemned(AT, [record(6)], inherited[AT])
