"""A span of OpenTelemetry for each command to MongoDB within a span."""

from typing import Any, Final

from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from runfold.telemetry import spans


class CommandSpans(CommandListener):
    """The spans have the names of commands and collections, and nothing of documents."""

    def __init__(self) -> None:
        self._open: Final[dict[int, Any]] = {}

    def started(self, event: CommandStartedEvent) -> None:
        collection = event.command.get(event.command_name)
        attributes = {
            "db.system.name": "mongodb",
            "db.namespace": event.database_name,
            "db.operation.name": event.command_name,
        }
        if isinstance(collection, str):
            attributes["db.collection.name"] = collection
        span = spans.child_span(
            f"{event.command_name} {attributes.get('db.collection.name', event.database_name)}",
            "CLIENT",
            attributes,
        )
        if span is not None:
            self._open[event.request_id] = span

    def succeeded(self, event: CommandSucceededEvent) -> None:
        if (span := self._open.pop(event.request_id, None)) is not None:
            spans.end_span(span)

    def failed(self, event: CommandFailedEvent) -> None:
        if (span := self._open.pop(event.request_id, None)) is not None:
            spans.end_span(span, str(event.failure.get("code", "error")))
