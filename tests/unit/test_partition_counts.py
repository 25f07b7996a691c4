"""The number of partitions of the shared topics is read from Kafka, and any other is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.log.catalog import partition_of, skip_partition
from runfold.log.partition_counts import settle
from runfold.log.settings import LogSettings
from runfold.log.shared import deciding, partitions_of, shared_partitions
from runfold_schemas.catalog import Skip
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.topics import Partition, Topics

COUNTS = st.sampled_from([1, 2, 12])
NAMES = ("p.runs", "p.sessions", "p.memories", "p.banks")


@given(key=st.text(min_size=1, max_size=50), count=COUNTS)
def test_a_key_belongs_to_one_partition_of_those_that_there_are(key: str, count: int) -> None:
    topics = Topics("p", count)

    assert partition_of(topics, key) in range(count)
    # 12 is a multiple of the others, and only the remainder depends on the number.
    assert partition_of(topics, key) == partition_of(Topics("q", 12), key) % count
    assert deciding(topics, key) in partitions_of(topics, topics.deciding(key))


@given(count=COUNTS)
def test_all_partitions_of_the_shared_topics_are_followed(count: int) -> None:
    expected = {Partition(name, number) for name in NAMES[1:] for number in range(count)}

    assert set(shared_partitions(Topics("p", count))) == expected


@given(run_id=st.uuids().map(str), count=COUNTS)
def test_the_skips_of_a_run_lie_where_its_life_lies(run_id: str, count: int) -> None:
    topics = Topics("p", count)

    skip = Skip(topic=topics.run(run_id, "l"), offset=0, next_offset=1)

    assert skip_partition(topics, skip) == partition_of(topics, run_id)


def test_nothing_is_hashed_by_an_unknown_number() -> None:
    topics = LogSettings(prefix="p").topics

    for use in (
        lambda: partition_of(topics, "k"),
        lambda: partitions_of(topics, topics.banks),
        lambda: deciding(topics, "k"),
    ):
        with pytest.raises(RuntimeError, match=r"partitions of p\.runs was not read"):
            use()


@given(count=COUNTS, existing=st.sets(st.sampled_from(NAMES)), expected=st.booleans())
def test_the_number_of_existing_topics_counts(count: int, existing: set[str], expected: bool) -> None:
    settings = LogSettings(prefix="p", partitions=count if expected else None)

    settled = settle(settings, {**dict.fromkeys(existing, count), "p.dead-letters": 1})

    assert settled.partitions == (count if expected or existing else None)
    assert settled.topics.prefix == "p"


@pytest.mark.parametrize("name", NAMES)
def test_a_topic_with_another_number_than_the_others_is_refused(name: str) -> None:
    counts = {**dict.fromkeys(NAMES, 12), name: 13}

    with pytest.raises(ConfigurationError, match=r"p\.\w+ has 1[23] partitions, and p\.runs has 1[23]"):
        settle(LogSettings(prefix="p"), counts)


@pytest.mark.parametrize("count", [1, 24])
def test_another_number_than_the_configured_one_is_refused(count: int) -> None:
    with pytest.raises(ConfigurationError, match=f"p.runs has {count} partitions, and 12 are configured"):
        settle(LogSettings(prefix="p", partitions=12), dict.fromkeys(NAMES, count))
