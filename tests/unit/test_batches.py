"""Batches as they lie in a topic, read within limits."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st
from tests.raw_batches import CODECS, Raw, batch, compressed, encode_record, plain

from runfold.log import compression
from runfold.log.batches import LARGE_BYTES, RawBatch, has_large_record
from runfold.log.compression import UNPACKED_BYTES_MAX, UnpackError

BYTES = st.none() | st.binary(max_size=40)
NAMES = st.text(max_size=5).map(str.encode)
RECORDS = st.lists(
    st.builds(Raw, BYTES, BYTES, st.lists(st.tuples(NAMES, BYTES), max_size=3)), min_size=1, max_size=5
)


@given(records=RECORDS, base_offset=st.integers(0, 2**60))
def test_records_are_those_of_aiokafka(records: list[Raw], base_offset: int):
    data = plain(records, base_offset=base_offset)

    theirs = [(r.offset, r.timestamp, r.key, tuple(r.headers), r.value) for r in DefaultRecordBatch(data)]
    assert [tuple(record) for record in RawBatch(data)] == theirs


@pytest.mark.parametrize("codec", CODECS)
@given(records=RECORDS)
def test_any_codec_gives_the_records_of_the_batch(codec: str, records: list[Raw]):
    assert list(RawBatch(compressed(records, codec))) == list(RawBatch(plain(records)))


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_a_damaged_batch_is_refused_or_read_and_nothing_else(codec: str, data: st.DataObject):
    whole = bytearray(compressed([Raw(b"v" * 50, b"k", [(b"h", b"w")])] * 3, codec))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(21, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(17, len(whole)))])
    try:
        records = list(RawBatch(cut))
    except UnpackError:
        return
    assert all(0 <= record.offset < 2**31 for record in records)


@given(junk=st.binary(max_size=200), count=st.integers(-1, 5), codec=st.integers(0, 7))
def test_junk_is_refused_or_read_and_nothing_else(junk: bytes, count: int, codec: int):
    try:
        list(RawBatch(batch(count, junk, codec=codec)))
    except UnpackError:
        return


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_is_unpacked_up_to_the_limit(codec: str):
    number, encode = CODECS[codec]
    too_much = encode_record(Raw(bytes(UNPACKED_BYTES_MAX)), 0)
    enough = encode_record(Raw(bytes(UNPACKED_BYTES_MAX - 100)), 0)

    with pytest.raises(UnpackError, match="more than 33,554,432 bytes"):
        RawBatch(batch(1, encode(too_much), codec=number))
    assert RawBatch(batch(1, encode(enough), codec=number)).unpacked_bytes == len(enough)


def test_a_batch_of_too_many_records_or_headers_is_refused():
    with pytest.raises(UnpackError, match="200,000 records"):
        RawBatch(compressed([Raw(None)] * 200_000, "lz4"))
    with pytest.raises(UnpackError, match="1,000,001 headers"):
        list(RawBatch(compressed([Raw(None, None, [(b"", None)] * 1_000_001)], "lz4")))


@pytest.mark.parametrize("codec", ["lz4", "snappy", "zstd"])
def test_without_the_codecs_the_reason_names_the_extra(monkeypatch: pytest.MonkeyPatch, codec: str):
    data = compressed([Raw(b"v" * 100)], codec)
    gzip = compressed([Raw(b"v" * 100)], "gzip")
    monkeypatch.setattr(compression, "cramjam", None)

    with pytest.raises(UnpackError, match=r"pip install runfold\[server\]"):
        RawBatch(data)
    assert len(list(RawBatch(gzip))) == 1


def test_a_header_name_that_is_no_text_has_escapes():
    (record,) = RawBatch(plain([Raw(b"v", None, [(b"h\xff\xc3\xa9", b"w")])]))

    assert record.headers == (("h\\xffé", b"w"),)


@given(sizes=st.lists(st.sampled_from([0, 100, 9_000, LARGE_BYTES - 100, LARGE_BYTES + 100]), max_size=8))
def test_a_large_record_is_found_wherever_it_is(sizes: list[int]):
    data = plain([Raw(bytes(size)) for size in sizes])

    assert has_large_record(data) == any(size > LARGE_BYTES for size in sizes)


@given(junk=st.binary(max_size=50))
def test_looking_for_a_large_record_in_junk_ends(junk: bytes):
    has_large_record(batch(1, junk * 20_000))


def test_a_record_of_too_many_headers_is_refused_before_they_are_read():
    records = [Raw(b"first"), Raw(b"", None, [(b"", b"")] * 10_001)]

    reading = iter(RawBatch(plain(records)))
    assert next(reading).value == b"first"
    with pytest.raises(UnpackError, match="a record has 10,001 headers"):
        next(reading)
