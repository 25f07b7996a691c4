"""The list of all topics is read from Kafka's answer by hand, so it is compared with aiokafka."""

from io import BytesIO

from aiokafka.protocol.metadata import MetadataResponse_v5
from hypothesis import given
from hypothesis import strategies as st

from runfold.log.topic_list import _entries, _Response

INTS = st.integers(-1, 2**31 - 1)
REPLICAS = st.lists(INTS, max_size=3)
PARTITIONS = st.lists(
    st.tuples(st.sampled_from([0, 0, 5, 9]), st.integers(0, 20), INTS, REPLICAS, REPLICAS, REPLICAS),
    max_size=4,
    unique_by=lambda partition: partition[1],
)
TOPICS = st.lists(st.tuples(st.integers(0, 90), st.text(max_size=30), st.booleans(), PARTITIONS), max_size=5)
BROKERS = st.lists(
    st.tuples(INTS, st.text(max_size=20), st.integers(0, 65535), st.none() | st.text(max_size=9)), max_size=3
)


@given(brokers=BROKERS, cluster=st.none() | st.text(max_size=9), topics=TOPICS)
def test_all_topics_are_read_as_aiokafka_reads_them(brokers: object, cluster: object, topics: object):
    content = MetadataResponse_v5(7, brokers, cluster, 1, topics).encode()

    decoded = MetadataResponse_v5.decode(BytesIO(content))
    leaders = [
        (name, next((leader for error, number, leader, *_ in places if not number and not error), -1))
        for _, name, _, places in decoded.topics
    ]
    assert list(_entries(_Response.decode(BytesIO(content)).content)) == leaders
