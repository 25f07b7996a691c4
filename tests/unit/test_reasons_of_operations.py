"""Why operators should look at an installation."""

from datetime import UTC, datetime, timedelta

from runfold.documents.operations import (
    ArchiveDocument,
    EditionsDocument,
    Lag,
    OperationsDocument,
    TopicsDocument,
)
from runfold.query.operations import _reasons

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def reasons(*, age: timedelta | None) -> list[str]:
    """The reasons of an installation whose archive was last written so long ago."""
    written = NOW - age if age is not None else None
    document = OperationsDocument(
        as_of=NOW,
        servers=[],
        projectors=[],
        partitions_without_projector=[],
        lag=Lag(records=0, seconds=0.0),
        stuck=[],
        runs={},
        topics=TopicsDocument(runs=0),
        quarantine={},
        dead_letters=0,
        archive=ArchiveDocument(status="ok", logs=1, committed_at=written),
        editions=EditionsDocument(current="first"),
        rebuild=None,
        verify_report=None,
    )
    return _reasons(document, knows_kafka=True, erase_seconds=3600)


def test_an_archive_that_no_archiver_writes_is_a_reason():
    assert reasons(age=None) == reasons(age=timedelta(minutes=59)) == []
    assert reasons(age=timedelta(minutes=61)) == [
        "no archiver has worked since 2026-03-01T10:59:00Z: deleted runs stay in the archive"
    ]
