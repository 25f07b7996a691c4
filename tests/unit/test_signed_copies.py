"""The comparison of a log's copies with its signed heads."""

from collections.abc import Sequence

import pytest

from runfold.store.page import packed_records
from runfold.verify.chains import KAFKA, MONGODB, Seen, SignedHead, compare
from runfold_projections.chain import START, digest_of, extend, head_of
from runfold_schemas.codec import Record

LOG = [Record(offset, 1000 + offset, None, (), b"message %d" % offset) for offset in range(20)]


def renumbered(log: Sequence[Record]) -> list[Record]:
    return [record._replace(offset=offset) for offset, record in enumerate(log)]


def copy_of(log: Sequence[Record]) -> dict[int, Seen]:
    packed = packed_records(log)
    return {
        record.offset: Seen(digest_of(whole), record.value or b"")
        for record, whole in zip(log, packed, strict=True)
    }


HEADS = [SignedHead(end, head_of(extend(START, packed_records(LOG[:end])))) for end in (10, 20)]

INSERTED = renumbered([*LOG[:12], Record(0, 1012, None, (), b"forged"), *LOG[12:]])
"""A log in Kafka that is longer than the signed one. A projector folds its last record."""


@pytest.mark.parametrize("stored", [LOG, [*LOG, INSERTED[-1]]], ids=["not folded", "folded"])
def test_an_inserted_record_is_named_whether_the_end_is_folded_or_not(stored: list[Record]):
    differences = list(compare(HEADS, {KAFKA: copy_of(INSERTED), MONGODB: copy_of(stored)}))

    assert differences == [
        ("inserted record", "Kafka: offset 12"),
        ("moved record", "Kafka: offsets 13 to 19"),
    ]


def test_a_record_moved_across_heads_is_named_at_both_places():
    swapped = [*LOG]
    swapped[3], swapped[12] = LOG[12]._replace(offset=3), LOG[3]._replace(offset=12)

    differences = list(compare(HEADS, {KAFKA: copy_of(swapped), MONGODB: copy_of(LOG)}))

    assert differences == [("moved record", "Kafka: offset 3"), ("moved record", "Kafka: offset 12")]
