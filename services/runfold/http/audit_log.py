"""Where the audit log goes: a file, standard output, or OTLP."""

import errno
import logging
import os
from collections import deque
from typing import Final, Protocol

from runfold.http.otlp_audit_log import OtlpAuditLog
from runfold_schemas.errors import ConfigurationError

STDOUT: Final = "stdout"
OTLP: Final = "otlp"

_STDOUT_NUMBER: Final = 1

# Many processes may append to one file. A pipe without a reader must not hold up the process.
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK

_log = logging.getLogger(__name__)


class AuditLog(Protocol):
    """Lines are appended, and none is lost while the process lives."""

    def append(self, line: bytes) -> None:
        """Writes the line now or soon."""

    def is_writable(self) -> bool:
        """Whether further requests may be answered."""

    def close(self) -> None: ...


def open_audit_log(target: str) -> AuditLog:
    """The audit log that the setting names. Raises `ConfigurationError` if it cannot be written."""
    return OtlpAuditLog() if target == OTLP else FileAuditLog(target)


class FileAuditLog:
    """`target` is a path or `stdout`. The file may be renamed or removed at any time: the next line
    begins a new one.

    Raises `ConfigurationError` if nothing can be appended to the file.
    """

    def __init__(self, target: str) -> None:
        self._path: Final = None if target == STDOUT else target
        self._name: Final = f"the audit log {target}"
        self._number = _STDOUT_NUMBER
        self._identity: tuple[int, int] | None = None
        self._waiting: deque[bytes] = deque()
        self._is_torn = self._has_failed = False
        try:
            self._open_if_moved()
        except OSError as error:
            raise ConfigurationError(
                f"RUNFOLD_AUDIT_LOG: the file {target} cannot be written: {error.strerror}"
            ) from error

    def append(self, line: bytes) -> None:
        """Writes the line. If that fails, the line waits for `is_writable`."""
        self._waiting.append(line)
        if len(self._waiting) == 1:
            self._flush()

    def is_writable(self) -> bool:
        """Whether all lines so far are written. Tries it again with those that wait."""
        return not self._waiting or self._flush()

    def close(self) -> None:
        if not self.is_writable():
            _log.error("%d lines of %s are lost", len(self._waiting), self._name)
        if self._identity is not None:
            os.close(self._number)
            self._identity = None

    def _flush(self) -> bool:
        while self._waiting:
            try:
                self._write(self._waiting[0])
            except OSError as error:
                if not self._has_failed:
                    _log.error("requests are refused: %s cannot be written: %s", self._name, error.strerror)
                self._has_failed = True
                return False
            self._waiting.popleft()
        if self._has_failed:
            _log.error("requests are answered again: %s can be written", self._name)
            self._has_failed = False
        return True

    def _write(self, line: bytes) -> None:
        self._open_if_moved()
        # The rest of a line that was written in part stays a line of its own.
        whole = b"\n" + line if self._is_torn else line
        written = os.write(self._number, whole)
        self._is_torn = written < len(whole)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open_if_moved(self) -> None:
        if self._path is None or (self._identity is not None and self._identity == _identity(self._path)):
            return
        number = os.open(self._path, _FLAGS, 0o600)
        if self._identity is not None:
            os.close(self._number)
        found = os.fstat(number)
        self._number, self._identity = number, (found.st_dev, found.st_ino)


def _identity(path: str) -> tuple[int, int] | None:
    """Which file is at the path; None: none."""
    try:
        found = os.stat(path)  # noqa: PTH116  # for each line
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
