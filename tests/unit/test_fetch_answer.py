"""The records of one partition in the answer to a fetch, read in portions."""

from collections.abc import Sequence
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raw_batches import Raw, batch, compressed, plain

from runfold.log.fetch_answer import Budget, PartitionAnswer
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition

AT = Partition("runfold.run.a.b", 0)

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def batches(sizes: Sequence[int], *, first: int = 0, codec: str | None = None) -> list[bytes]:
    """Batches of so many records each, one behind the other."""
    made, offset = [], first
    for size in sizes:
        records = [Raw(str(offset + number).encode()) for number in range(size)]
        made.append(plain(records, base_offset=offset) if codec is None else compressed(records, codec))
        offset += size
    return made


def damaged(whole: bytes) -> bytes:
    return whole[:-1] + bytes([whole[-1] ^ 1])


def answer(data: bytes, *, offset: int = 0, end: int = 1_000) -> PartitionAnswer:
    return PartitionAnswer(AT, data, offset=offset, end=end, skipped=lambda _: ())


def read(reader: PartitionAnswer, **budget: int) -> list[Record]:
    records: list[Record] = []
    while not reader.is_read:
        records += reader.take(Budget(**budget))
    return records


@given(sizes=SIZES, portion=st.integers(1, 10), offset=st.integers(0, 8))
def test_any_portions_give_the_records_behind_the_position(sizes: list[int], portion: int, offset: int):
    reader = answer(b"".join(batches(sizes)), offset=offset)

    records = read(reader, records=portion)

    assert [record.offset for record in records] == list(range(offset, sum(sizes)))
    assert [record.value for record in records] == [str(record.offset).encode() for record in records]
    assert reader.next_offset == max(offset, sum(sizes))


@given(sizes=SIZES, portion=st.integers(1, 10))
def test_a_portion_has_no_more_than_its_budget(sizes: list[int], portion: int):
    reader = answer(b"".join(batches(sizes)))

    while not reader.is_read:
        assert len(reader.take(Budget(records=portion))) <= portion


@given(sizes=SIZES, taken=st.integers(1, 10), other=st.integers(0, 30))
def test_what_another_session_has_read_meanwhile_is_passed_over(sizes: list[int], taken: int, other: int):
    reader = answer(b"".join(batches(sizes)))
    before = reader.take(Budget(records=taken))

    reader.skip_to(other)
    after = read(reader)

    assert [record.offset for record in after] == list(range(max(len(before), other), sum(sizes)))


def test_a_batch_that_cannot_be_read_is_passed_over():
    whole, broken, last = batches([2, 2, 2])
    reader = answer(whole + damaged(broken) + last)

    records = read(reader)

    assert [record.offset for record in records] == [0, 1, 4, 5]
    assert [(batch.offset, batch.next_offset) for batch in reader.take_unreadable()] == [(2, 4)]
    assert reader.take_unreadable() == ()


@pytest.mark.parametrize("position", [2, 3])
def test_a_damaged_batch_behind_which_another_session_is_costs_no_record(position: int):
    broken, whole = batches([2, 2])
    reader = answer(damaged(broken) + whole)

    reader.skip_to(position)

    assert [record.offset for record in read(reader)] == list(range(position, 4))
    assert reader.take_unreadable() == ()


def test_the_rest_of_a_damaged_batch_is_passed_over_behind_the_position():
    broken, whole = batches([4, 2])
    reader = answer(damaged(broken) + whole)

    reader.skip_to(2)

    assert [record.offset for record in read(reader)] == [4, 5]
    assert [(batch.offset, batch.next_offset) for batch in reader.take_unreadable()] == [(2, 4)]


def test_a_batch_that_another_session_passed_over_while_this_one_waited_costs_no_record():
    (whole,) = batches([2], first=1)
    reader = answer(batch(1, b"not compressed", codec=1) + whole)
    assert reader.take(Budget(unpacked_bytes=0)) == []

    reader.skip_to(1)

    assert [record.offset for record in read(reader)] == [1, 2]
    assert reader.take_unreadable() == ()


def test_a_batch_without_length_costs_no_record_that_another_session_has_read():
    reader = answer(bytes(20))

    reader.skip_to(3)

    assert (read(reader), reader.next_offset, reader.take_unreadable()) == ([], 3, ())


def test_a_damaged_batch_leads_never_beyond_the_end():
    (broken,) = batches([2])
    reader = answer(damaged(broken), end=1)

    assert read(reader) == []
    assert reader.next_offset == 1


def test_a_batch_that_is_cut_off_waits_for_the_next_fetch():
    first, second = batches([2, 2])
    reader = answer(first + second[:-3])

    assert [record.offset for record in read(reader)] == [0, 1]
    assert reader.next_offset == 2


@pytest.mark.parametrize("codec", ["gzip"])
def test_a_portion_unpacks_no_more_than_its_budget(codec: str):
    (packed,) = batches([3], codec=codec)
    reader = answer(packed)

    assert reader.take(Budget(unpacked_bytes=0)) == []
    assert not reader.is_read
    assert len(read(reader)) == 3


def test_a_batch_that_cannot_be_read_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture):
    first, second = (
        Partition(f"runfold.run.a.{uuid4()}", 0),
        Partition(f"runfold.run.b.{uuid4()}", 0),
    )
    for at in (first, first, second):
        reader = PartitionAnswer(at, damaged(batches([2])[0]), offset=0, end=1_000, skipped=lambda _: ())
        read(reader)

    own = [record.getMessage() for record in caplog.records if first.topic in record.getMessage()]
    others = [record.getMessage() for record in caplog.records if second.topic in record.getMessage()]
    numbers = [int(message.rpartition("number ")[2].split()[0]) for message in (*own, *others)]
    assert len(own) == len(others) == 1
    assert numbers[1] == numbers[0] + 1
