"""Compacts the archive while others archive."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NoReturn

from prometheus_client import Counter

from runfold.archive.archive import Archive
from runfold.archive.compaction import compact
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.errors import UnavailableError

_LOOK_SECONDS: Final = 5.0
_DAMAGED_SECONDS: Final = 600.0

_COMPACTED: Final = Counter("runfold_archive_compacted_files", "Small files of the archive that became one")

_log = logging.getLogger(__name__)


class Compacting:
    """Makes one file of every so many small ones."""

    def __init__(self, archive: Archive, *, files_min: int) -> None:
        self._archive = archive
        self._files_min = files_min
        self.failure: str | None = None
        """Why the archive is not compacted."""

    async def compact_repeatedly(self, *, is_due: Callable[[], bool]) -> NoReturn:
        """Endless: compacts while `is_due`."""
        while True:
            pause = _LOOK_SECONDS
            try:
                while is_due() and (count := await compact(self._archive, files_min=self._files_min)):
                    _COMPACTED.inc(count)
                self.failure = None
            except UnavailableError as error:
                self._fail(error)
            except ArchiveDamagedError as error:
                self._fail(error)
                pause = _DAMAGED_SECONDS
            await asyncio.sleep(pause)

    def _fail(self, error: Exception) -> None:
        self.failure = f"small files of the archive are not compacted: {error}"
        _log.warning("%s", self.failure)
