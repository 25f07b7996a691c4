"""What the log reads from the archive: the records of runs whose topics were deleted, and what the
catalog said of them.
"""

from collections.abc import AsyncGenerator
from typing import Final, Protocol

from runfold_schemas.catalog import ArchivedRun, Segments
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError

ARCHIVE: Final = "the archive"
"""The server that an `UnavailableError` of the archive names."""


class ArchivedLogs(Protocol):
    """The archived records of the runs of one prefix."""

    def records(
        self,
        run_id: str,
        log_id: str,
        *,
        start: int = 0,
        end: int | None = None,
        entry: Segments | None = None,
    ) -> AsyncGenerator[Record, None]:
        """The archived records of a log from `start` to `end` (exclusive), in order. Raises
        `UnavailableError`, and `ArchiveDamagedError` if the archive lacks records that it has by
        the catalog's `entry`.
        """

    async def run(self, run_id: str) -> ArchivedRun | None:
        """What the catalog said of an archived run, None if the archive does not have it. Of a
        deleted run it says that. Raises `UnavailableError`.
        """

    def runs(self) -> AsyncGenerator[ArchivedRun, None]:
        """What the catalog said of all archived runs. Raises `UnavailableError`."""


class UnknownIdError(ConfigurationError):
    """The catalog does not have a run of this id, or all runs if it is None. The archive may have
    them, and this process has no archive.
    """

    def __init__(self, run_id: str | None) -> None:
        subject = "some runs" if run_id is None else f"run {run_id!r}"
        super().__init__(
            f"{subject} may be in the archive alone: set RUNFOLD_ARCHIVE_URL (archive_url), or use the"
            " HTTP API"
        )
        self.run_id = run_id


class NoArchiveError(ConfigurationError):
    """The events of a run before the offset `end` are archived, and this process has no archive, or
    another one.
    """

    def __init__(self, run_id: str, *, end: int, has_other: bool = False) -> None:
        super().__init__(
            f"RUNFOLD_ARCHIVE_URL (archive_url) names an archive without run {run_id!r}, of which the"
            f" events before offset {end} are archived"
            if has_other
            else f"the events of run {run_id!r} before offset {end} are in the archive: set"
            " RUNFOLD_ARCHIVE_URL (archive_url), or read the run over the HTTP API"
        )
        self.run_id = run_id
        self.end = end
