"""The catalog's records of what operators skipped."""

import pytest
from tests.partitions import partition_of, topics_of

from runfold.log.catalog import entry_of, skip_partition, skip_record
from runfold.log.catalog_group import CatalogRecord
from runfold.log.catalog_view import CatalogView
from runfold.log.settings import LogSettings
from runfold_schemas.catalog import Skip
from runfold_schemas.codec import Record
from runfold_schemas.topics import PARTITIONS_DEFAULT, Partition

TOPICS = topics_of()


def test_a_skip_comes_back_as_it_was_written():
    skip = Skip(topic=TOPICS.run("r", "l"), offset=3, next_offset=5)

    record = skip_record(skip)

    assert entry_of(record.key, record.value) == skip
    assert skip.offsets == range(3, 5)


def test_two_skips_of_one_topic_have_two_keys_so_that_compaction_keeps_both():
    keys = {skip_record(Skip(topic="t", offset=offset, next_offset=9)).key for offset in (1, 2)}

    assert len(keys) == 2


def test_a_skip_lies_where_the_lives_of_its_run_or_partition_are_read():
    assert skip_partition(TOPICS, Skip(topic=TOPICS.run("r", "l"), offset=0, next_offset=1)) == partition_of(
        "r"
    )
    assert skip_partition(TOPICS, Skip(topic=TOPICS.sessions, partition=7, offset=0, next_offset=1)) == 7


@pytest.mark.parametrize("value", [b"", b"{}", b'{"topic":"t","offset":2,"next_offset":2}', b"[1]"])
def test_what_is_no_skip_is_no_entry(value):
    assert entry_of(b"skip:t:0:2", value) is None


@pytest.mark.parametrize("topic", [TOPICS.run("r", "l"), TOPICS.sessions, TOPICS.catalog])
def test_every_reader_ignores_a_skip_in_another_partition(topic):
    skip = Skip(topic=topic, partition=0, offset=3, next_offset=5)
    own = skip_partition(TOPICS, skip)
    outgoing = skip_record(skip)
    record = Record(7, 0, outgoing.key, (), outgoing.value)

    followed = set()
    for number in range(PARTITIONS_DEFAULT):
        at = Partition(TOPICS.catalog, number)
        view = CatalogView(LogSettings(prefix="p", partitions=PARTITIONS_DEFAULT))
        view._take(record, at)
        by_view = view.skipped(skip.at) == {range(3, 5)}
        assert by_view == (CatalogRecord(TOPICS, at, record).entry == skip)
        followed |= {number} if by_view else set()

    assert followed == {own}
