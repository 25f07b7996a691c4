"""The audit log as log records over OTLP. The standard variables of OpenTelemetry set the endpoint.

Lines wait in memory until the endpoint has taken them. If it refuses them or does not answer,
requests are refused, as they are if the file of an audit log cannot be written.
"""

import json
import logging
import threading
from collections import deque
from datetime import datetime
from importlib.metadata import version
from typing import Any, Final

from runfold_schemas.errors import ConfigurationError

_BATCH_MAX: Final = 512

_WAITING_MAX: Final = 10_000
"""Further requests are refused while so many lines wait."""

_RETRY_SECONDS: Final = 1.0

_TIMEOUT_SECONDS: Final = 3.0
"""How long the exporter tries by itself. Requests are answered meanwhile."""

_log = logging.getLogger(__name__)


class OtlpAuditLog:
    """A thread sends the lines. Raises `ConfigurationError` if the extra `otel` is missing."""

    def __init__(self) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http._log_exporter import (  # noqa: PLC0415  # of the extra
                OTLPLogExporter,
            )
            from opentelemetry.sdk._logs.export import LogRecordExportResult  # noqa: PLC0415
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        except ImportError as error:
            raise ConfigurationError(
                "RUNFOLD_AUDIT_LOG=otlp needs OpenTelemetry: install Runfold with the extra `otel`"
            ) from error
        self._exporter: Final[Any] = OTLPLogExporter(timeout=_TIMEOUT_SECONDS)
        self._success: Final = LogRecordExportResult.SUCCESS
        self._resource: Final = Resource.create({"service.name": "runfold-audit"})
        self._waiting: deque[bytes] = deque()
        self._has_work: Final = threading.Event()
        self._is_closed: Final = threading.Event()
        self._has_failed = False
        self._thread: Final = threading.Thread(target=self._send, name="audit log", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """Sends the line soon."""
        self._waiting.append(line)
        self._has_work.set()

    def is_writable(self) -> bool:
        """Whether the endpoint took what was sent last, and there is room for further lines."""
        return not self._has_failed and len(self._waiting) < _WAITING_MAX

    def close(self) -> None:
        """Sends what waits. Gives up if the endpoint does not take it."""
        self._is_closed.set()
        self._has_work.set()
        self._thread.join()
        if self._waiting:
            _log.error("%d lines of the audit log are lost", len(self._waiting))
        self._exporter.shutdown()

    def _send(self) -> None:
        while self._waiting or not self._is_closed.is_set():
            self._has_work.wait()
            self._has_work.clear()
            while self._waiting:
                if self._send_batch():
                    continue
                if self._is_closed.is_set():
                    return
                self._is_closed.wait(_RETRY_SECONDS)

    def _send_batch(self) -> bool:
        batch = [self._waiting[at] for at in range(min(len(self._waiting), _BATCH_MAX))]
        is_taken = self._exporter.export([self._record(line) for line in batch]) is self._success
        if is_taken:
            for _ in batch:
                self._waiting.popleft()
        if is_taken is self._has_failed:
            self._has_failed = not is_taken
            if is_taken:
                _log.error("requests are answered again: the OTLP endpoint takes the audit log")
            else:
                _log.error("requests are refused: the OTLP endpoint does not take the audit log")
        return is_taken

    def _record(self, line: bytes) -> Any:
        from opentelemetry._logs import LogRecord, SeverityNumber  # noqa: PLC0415  # of the extra
        from opentelemetry.sdk._logs import ReadableLogRecord  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        document = json.loads(line)
        record = LogRecord(
            timestamp=_nanoseconds(document["time"]),
            severity_number=SeverityNumber.INFO,
            severity_text="INFO",
            body=line.decode().rstrip(),
            attributes={"runfold.audit." + name: value for name, value in _plain(document)},
            event_name="runfold.audit",
        )
        return ReadableLogRecord(
            record, self._resource, InstrumentationScope("runfold.audit", version("runfold"))
        )


def _plain(document: dict[str, Any]) -> list[tuple[str, str | int | float]]:
    return [(name, value) for name, value in document.items() if isinstance(value, str | int | float)]


def _nanoseconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1_000) * 1_000_000
