"""Names of segments' topics, and the entry of the catalog, which only moves forward."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.records import modest

from runfold.log.catalog import entry_of, folded_segments, segments_key, segments_record
from runfold_schemas.catalog import Segments
from runfold_schemas.topics import OFFSET_MAX, RunTopic, SegmentTopic, Topics, base_of

LOG_ID = "0198c0de000070008000000000000000"
KAFKA_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

ids = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=15)
bases = st.integers(min_value=1, max_value=OFFSET_MAX)


@modest
@given(ids, bases)
def test_parsing_a_segments_topic_gives_its_run_and_base(run_id, base):
    topics = Topics("test")
    name = topics.segment(run_id, LOG_ID, base)

    assert KAFKA_NAME.fullmatch(name)
    assert topics.parse_segment(name) == SegmentTopic(RunTopic(run_id, LOG_ID), base)
    assert base_of(name) == base
    assert topics.has(name)
    # A version without segments, and a sweep, take it for no run's topic.
    assert topics.parse_run(name) is None


def test_the_first_segment_has_the_topic_of_the_run():
    topics = Topics("test")
    name = topics.segment("r", LOG_ID, 0)

    assert name == topics.run("r", LOG_ID)
    assert topics.parse_segment(name) == SegmentTopic(RunTopic("r", LOG_ID), 0)
    assert base_of(name) == 0


def test_a_hash_stands_for_a_run_whose_later_topics_would_have_too_long_a_name():
    topics = Topics("a" * 32)
    long, other = "é" * 28 + "abcdef", "é" * 28 + "abcdeg"
    name = topics.segment(long, LOG_ID, OFFSET_MAX)

    assert len(topics.run(long, LOG_ID)) < 249 < len(f"{topics.run(long, LOG_ID)}.{OFFSET_MAX}")
    assert KAFKA_NAME.fullmatch(name)
    assert name != topics.segment(other, LOG_ID, OFFSET_MAX)
    assert topics.has(name)
    assert topics.parse_segment(name) is None
    assert base_of(name) == OFFSET_MAX


@pytest.mark.parametrize("text", [".0", ".01", ".-1", ".1x", ".1.2", "."])
def test_a_name_with_another_end_is_no_segments_topic(text):
    topics = Topics("test")

    assert topics.parse_segment(topics.run("r", LOG_ID) + text) is None
    assert not topics.has(topics.run("r", LOG_ID) + text)


@pytest.mark.parametrize(
    "wrong", [{"base": 0}, {"end": 100}, {"end": 4, "sealed_base": 5}, {"base": -1}, {"end": -1}]
)
def test_an_entry_whose_parts_overlap_is_refused(wrong):
    with pytest.raises(ValidationError):
        Segments(**{"run_id": "r", "log_id": LOG_ID, "base": 100, "end": 10, **wrong})


def segments(base: int, *, end: int, sealed_base: int | None, log_id: str = LOG_ID) -> Segments:
    return Segments(run_id="r", log_id=log_id, base=base, end=end, sealed_base=sealed_base)


def folded(*entries: Segments) -> Segments | None:
    current = None
    for entry in entries:
        record = segments_record(entry)
        assert record.key == segments_key("r")
        assert entry_of(record.key, record.value) == entry
        current = folded_segments(current, segments_key("r"), record.value)
    return current


SEALED = segments(100, end=10, sealed_base=0)
ARCHIVED = segments(100, end=10, sealed_base=None)
SEALED_AGAIN = segments(900, end=120, sealed_base=100)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([SEALED], SEALED),
        ([SEALED, ARCHIVED], ARCHIVED),
        ([ARCHIVED, SEALED], ARCHIVED),
        ([SEALED, segments(101, end=11, sealed_base=0)], SEALED),
        ([SEALED, segments(90, end=9, sealed_base=0)], SEALED),
        ([ARCHIVED, SEALED_AGAIN], SEALED_AGAIN),
        ([SEALED_AGAIN, ARCHIVED, SEALED], SEALED_AGAIN),
        ([ARCHIVED, segments(900, end=120, sealed_base=None)], segments(900, end=120, sealed_base=None)),
    ],
)
def test_an_entry_only_moves_forward(entries, expected):
    assert folded(*entries) == expected


def test_what_is_no_entry_of_the_run_changes_nothing():
    other = segments_record(Segments(run_id="s", log_id=LOG_ID, base=5000, end=10))

    assert folded_segments(SEALED, segments_key("r"), None) == SEALED
    assert folded_segments(SEALED, segments_key("r"), b"{") == SEALED
    assert folded_segments(SEALED, segments_key("r"), other.value) == SEALED
    assert folded_segments(SEALED, segments_key("s"), segments_record(SEALED).value) == SEALED
