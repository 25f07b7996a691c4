"""The logs of the services of `runfold dev`: shown in its terminal, and kept in files that are
rotated.
"""

import asyncio
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

_LOOK_SECONDS: Final = 0.5
_BYTES_MAX: Final = 20 * 1024 * 1024
_KEPT: Final = 3
"""The number of older files of each log."""

_READ_MAX: Final = 64 * 1024
"""The bytes that are shown of one log at once. What a service logs beyond that is in its file."""

_BEGINNING: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) ")
_SHOWN: Final = frozenset({"WARNING", "ERROR", "CRITICAL"})


class DevLogs:
    """Follows the logs of `shown` services, and rotates them and the `other` ones. Without
    `is_verbose`, only warnings and errors are shown. `say` is called with each line.
    """

    def __init__(
        self,
        shown: Mapping[str, Path],
        other: Sequence[Path],
        *,
        say: Callable[[str], None],
        is_verbose: bool,
        bytes_max: int = _BYTES_MAX,
    ) -> None:
        self._shown: Final = [_ShownLog(name, path, is_verbose) for name, path in shown.items()]
        self._other: Final = other
        self._say: Final = say
        self._bytes_max: Final = bytes_max

    async def follow(self) -> None:
        """Endless."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        """Shows what is new, and rotates files that are too long."""
        for log in self._shown:
            for line in log.new_lines():
                self._say(f"{log.name}: {line}")
            if _rotate(log.path, self._bytes_max):
                log.position = 0
        for path in self._other:
            _rotate(path, self._bytes_max)


class _ShownLog:
    def __init__(self, name: str, path: Path, is_verbose: bool) -> None:
        self.name: Final = name
        self.path: Final = path
        self._is_verbose: Final = is_verbose
        self.position = _size_of(path)
        self._rest = b""
        self._is_shown = is_verbose
        """Whether the last entry is shown. The lines of a traceback belong to an entry."""

    def new_lines(self) -> list[str]:
        size = _size_of(self.path)
        if size < self.position:
            self.position, self._rest = 0, b""
        if size == self.position:
            return []
        with self.path.open("rb") as file:
            if size - self.position > _READ_MAX:
                self.position, self._rest = size - _READ_MAX, b""
            file.seek(self.position)
            read = file.read(_READ_MAX)
        self.position += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        return [line for line in (line.decode(errors="replace") for line in lines) if self._shows(line)]

    def _shows(self, line: str) -> bool:
        if not self._is_verbose and (beginning := _BEGINNING.match(line)):
            self._is_shown = beginning[1] in _SHOWN
        return self._is_shown and bool(line)


def _rotate(path: Path, bytes_max: int) -> bool:
    """If the file is longer, copies it to `NAME.1`, older copies to `NAME.2` and so on, and empties
    it. The service that writes it keeps it open, so it is not renamed.
    """
    if _size_of(path) <= bytes_max:
        return False
    for number in range(_KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
    with path.open("r+b") as file:
        file.truncate(0)
    return True


def _size_of(path: Path) -> int:
    """The length of a file. A missing file is empty."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
