"""How long commands to MongoDB take, as the driver tells it."""

from typing import Final

from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

from runfold.telemetry.request_times import MONGODB, REQUEST_TIMES

_NAMED: Final = frozenset(
    {"aggregate", "delete", "distinct", "find", "findAndModify", "getMore", "insert", "update"}
)


class CommandTimes(CommandListener):
    """Notes each command. The driver's threads call it."""

    def started(self, event: CommandStartedEvent) -> None:
        pass

    def succeeded(self, event: CommandSucceededEvent) -> None:
        REQUEST_TIMES.note(MONGODB, _operation(event.command_name), event.duration_micros / 1e6, failed=False)

    def failed(self, event: CommandFailedEvent) -> None:
        REQUEST_TIMES.note(MONGODB, _operation(event.command_name), event.duration_micros / 1e6, failed=True)


def _operation(command: str) -> str:
    return command if command in _NAMED else "other"
