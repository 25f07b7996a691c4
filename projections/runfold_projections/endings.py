"""Tells whether the last response of a log broke off.

A response is recorded as events with the provider's name, and `response_recorded` is the last of
them. If that event is missing, the agent died within the response. If it says so, the stream broke
off.
"""

from collections.abc import Iterable

from runfold_schemas.events import (
    AssistantMessage,
    ProviderPart,
    ResponseRecorded,
    SystemMessage,
    Thinking,
    ToolCall,
    UserMessage,
)
from runfold_schemas.ledger_events import LedgerEvent
from runfold_schemas.sessions import FrameworkEvent

_RESPONSE_KINDS = (AssistantMessage, Thinking, ToolCall, ProviderPart)
_OTHERS = (UserMessage, SystemMessage, FrameworkEvent)


class Ending:
    """The state of the last response, for a log that is read piece by piece.

    It takes the events of the log, and not those that replace them in the ledger: an amendment does
    not finish a response, and the event of a framework is a whole one.
    """

    def __init__(self) -> None:
        self.broken_off = False

    def feed(self, log: Iterable[tuple[int, LedgerEvent]]) -> None:
        """Takes the next events that count, with their offsets."""
        for _, event in log:
            data = event.data
            if isinstance(data, _RESPONSE_KINDS):
                is_recorded = bool(event.provider and event.message_id)
                self.broken_off = self.broken_off or is_recorded
            elif isinstance(data, ResponseRecorded):
                self.broken_off = not data.finished
            elif isinstance(data, _OTHERS):
                self.broken_off = False


def has_broken_off(log: Iterable[tuple[int, LedgerEvent]]) -> bool:
    """Whether the last response of a whole log broke off."""
    ending = Ending()
    ending.feed(log)
    return ending.broken_off
