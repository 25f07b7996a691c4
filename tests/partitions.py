"""The partitions of keys in the topics of a test, which have the default number of partitions."""

from runfold.log import catalog
from runfold_schemas.topics import PARTITIONS_DEFAULT, Topics


def topics_of(prefix: str = "p") -> Topics:
    """The topics of a prefix whose number of partitions nobody has configured."""
    return Topics(prefix, PARTITIONS_DEFAULT)


def partition_of(key: str) -> int:
    """The partition of a key."""
    return catalog.partition_of(topics_of(), key)
