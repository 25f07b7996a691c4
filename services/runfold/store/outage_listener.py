"""Outages of MongoDB, as the driver's monitors see them."""

from pymongo.errors import _OperationCancelled
from pymongo.monitoring import (
    ServerHeartbeatFailedEvent,
    ServerHeartbeatListener,
    ServerHeartbeatStartedEvent,
    ServerHeartbeatSucceededEvent,
)

from runfold.telemetry import outages

_PRIMARY = "MongoDB's primary"


class OutageListener(ServerHeartbeatListener):
    """Notes for one client which servers answer, and whether one of them is the primary. The
    driver's threads call it.
    """

    def __init__(self) -> None:
        self._primary: tuple[str, int | None] | None = None

    def started(self, event: ServerHeartbeatStartedEvent) -> None:
        pass

    def succeeded(self, event: ServerHeartbeatSucceededEvent) -> None:
        outages.answered(_name(event.connection_id))
        if event.reply.is_writable:
            self._primary = event.connection_id
            outages.answered(_PRIMARY)
        elif event.connection_id == self._primary:
            self._primary = None
            outages.failed(_PRIMARY, "the servers elect another one")

    def failed(self, event: ServerHeartbeatFailedEvent) -> None:
        # The driver cancels a heartbeat to begin another one at once.
        if isinstance(event.reply, _OperationCancelled):
            return
        if event.connection_id == self._primary:
            self._primary = None
        outages.failed(_name(event.connection_id), str(event.reply).split(" (configured")[0])


def _name(address: tuple[str, int | None]) -> str:
    return f"MongoDB at {address[0]}:{address[1]}"
