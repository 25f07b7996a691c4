"""What an archiver takes from its partition of the catalog, in any order that compaction leaves."""

from itertools import permutations

import pytest

from runfold.archiver.known_runs import ListedTopics, PartitionRuns
from runfold.log.catalog import life_record, segments_key, segments_record
from runfold.log.publisher import Outgoing
from runfold_schemas.catalog import Life, Segments
from runfold_schemas.codec import Record
from runfold_schemas.topics import Topics

TOPICS = Topics("runfold", partitions=1)
LIFE = Life(run_id="r", log_id="0" * 32, agent_id="desk")
DELETED = LIFE.model_copy(update={"deleted": True})
FIRST = Segments(run_id="r", log_id=LIFE.log_id, base=100, end=5, sealed_base=0)
SECOND = Segments(run_id="r", log_id=LIFE.log_id, base=300, end=150, sealed_base=None)


def reading(*records: Outgoing, topics: tuple[str, ...] = ()) -> PartitionRuns:
    """A partition of which these records were read first."""
    partition = PartitionRuns(TOPICS, 0)
    read_all(partition, *records, topics=topics)
    return partition


def read_all(partition: PartitionRuns, *records: Outgoing, topics: tuple[str, ...] = ()) -> None:
    again, listed = partition.anew(), ListedTopics(TOPICS, topics)
    for offset, each in enumerate(records):
        again.take(Record(offset, 1_000 + offset, each.key, (), each.value), listed)
        again.position = offset + 1
    partition.read_again(again)


@pytest.mark.parametrize(
    "records", [*permutations([life_record(LIFE), segments_record(FIRST), segments_record(SECOND)])]
)
def test_an_entry_counts_wherever_it_lies_before_or_after_the_life(records: tuple[Outgoing, ...]) -> None:
    run = reading(*records, topics=(TOPICS.segment("r", LIFE.log_id, 300),)).runs["r"]

    assert run.entry == SECOND
    assert (run.open_base, run.is_open) == (300, True)


def test_a_deleted_run_with_an_entry_is_removed_once_more_and_others_if_the_archive_lacks_them() -> None:
    with_entry = reading(life_record(LIFE), segments_record(SECOND), life_record(DELETED))
    without = reading(life_record(DELETED))
    removed = reading(segments_record(SECOND), life_record(DELETED), Outgoing(segments_key("r"), None))

    assert (with_entry.deleted.runs, with_entry.deleted.doubtful) == ({"r": LIFE.log_id}, {})
    assert (without.deleted.runs, without.deleted.doubtful) == ({}, {"r": LIFE.log_id})
    assert (removed.deleted.runs, removed.deleted.doubtful) == ({}, {"r": LIFE.log_id})


def test_a_later_reading_notes_what_was_deleted_since_the_earlier_one() -> None:
    partition = reading(life_record(DELETED))
    partition.deleted.doubtful.clear()

    other = DELETED.model_copy(update={"run_id": "other"})
    entry = SECOND.model_copy(update={"run_id": "late"})
    read_all(partition, life_record(DELETED), life_record(other), segments_record(entry))

    assert partition.deleted.doubtful == {"other": LIFE.log_id}
    assert partition.deleted.entries == {"late": LIFE.log_id}
