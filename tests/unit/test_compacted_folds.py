"""The fold of a compacted topic: a record that cannot be folded changes nothing, whatever it
causes.
"""

import pytest

from runfold.log.compacted import CompactedTopic, fold_records
from runfold_schemas.codec import Record


@pytest.mark.parametrize("error", [ValueError, KeyError, TypeError, RecursionError, AssertionError])
def test_a_record_that_cannot_be_folded_is_passed_over_and_named(
    caplog: pytest.LogCaptureFixture, error: type[Exception]
):
    def take(fold: list[int], record: Record) -> None:
        if record.offset == 7:
            raise error("not this one")
        fold.append(record.offset)

    topic, fold = CompactedTopic("topic", "API keys", list, take), list[int]()
    records = [Record(offset, 0, b"k", (), b"{}") for offset in (6, 7, 8)]

    assert fold_records(topic, fold, records) == 9

    assert fold == [6, 8]
    assert "the record at offset 7 of the API keys cannot be decoded" in caplog.messages
