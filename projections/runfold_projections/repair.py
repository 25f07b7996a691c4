"""Mending a ledger that no provider accepts, by events that are appended and that everybody can see.

A crash can end a run anywhere: after a call and before its result, within arguments, after thinking and before a word.
What is missing is published (a result that says that the call was interrupted); what is in the way is amended, so that
it stands otherwise in the ledger while the log keeps it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from runfold_projections.amendments import amended, amendments_of
from runfold_projections.exchanges import inspect_results
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    Data,
    EventAmended,
    ProviderPart,
    StandIn,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)

INTERRUPTED: Final = "The call was interrupted: its result is not known."
CUT_OFF: Final = "The arguments of this call were cut off or are no JSON object."
BEGINNING: Final = "(The conversation begins with the assistant.)"

_UNANSWERABLE: Final = {"call-has-id", "result-has-id", "result-has-call", "result-after-call"}


def repair(events: Sequence[tuple[int, AnyEvent]]) -> list[Data]:
    """What to append to the log of these `(offset, event)` pairs so that every provider accepts its ledger.

    Nothing if they do already. What no event can mend (an image that a provider does not take) stays a fault.
    """
    return list(_Repair(events).events())
