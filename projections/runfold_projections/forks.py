"""The events that a fork has of its source: copies, which have no effects beyond the fork.

Copied are the events of the conversation and the changes of the run's own state. They keep their
ids, times and turns. Not copied are events that opened, changed or ended the source, its usage of
tokens, and everything that changes what runs share, because the source has had these effects.
"""

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

from runfold_projections.admission import Admitted
from runfold_projections.state import own_changes
from runfold_schemas.codec import new_event
from runfold_schemas.data import Data
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    EventAmended,
    PlannerNote,
    ProviderPart,
    ResponseRecorded,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.sessions import FrameworkEvent, StateChanged
from runfold_schemas.summaries import Summary

_COPIED: Final = (
    SystemMessage,
    UserMessage,
    AssistantMessage,
    Thinking,
    ToolCall,
    ToolResult,
    PlannerNote,
    ProviderPart,
    ResponseRecorded,
    Summary,
    FrameworkEvent,
)
"""The kinds of the conversation. A new kind is copied when it stands here."""

_NOT_COPIED: Final = "An event without effects stands here for the one that is amended."


def copies_of(log: Iterable[Admitted], run_id: str) -> list[AnyEvent]:
    """The copies of a prefix of the source's log, in the order of the fork's log, where the first
    copy has the offset 1. `run_id` is the fork's.
    """
    source = {each.record.offset: each.event for each in log if each.counts and each.event is not None}
    states = {each.record.offset: own for each in log if (own := _own_state(each))}
    amended = {event.data.offset for event in source.values() if isinstance(event.data, EventAmended)}
    # Amendments and summaries name offsets, so the places of all copies are decided first.
    places = [
        offset
        for offset, event in source.items()
        if offset in states or offset in amended or _is_copied(event.data, source)
    ]
    return [_copy(source[offset], states.get(offset), places, run_id) for offset in places]


def _own_state(admitted: Admitted) -> dict[str, Any]:
    """The changes of the run's own state."""
    return {key: value.value for key, value in own_changes(admitted).items()}


def _is_copied(data: Data, source: Container[int]) -> bool:
    """Whether the kind of event is copied, whatever state it changes."""
    if isinstance(data, EventAmended):
        return data.offset in source
    return isinstance(data, _COPIED)


def _copy(event: AnyEvent, state: Mapping[str, Any] | None, places: Sequence[int], run_id: str) -> AnyEvent:
    envelope: dict[str, Any] = {"run_id": run_id}
    if event.state_delta is not None:
        envelope["state_delta"] = state
    if event.expected_offset is not None:
        envelope["expected_offset"] = None  # it names an offset of the source
    data = _data(event.data, places)
    if data is not None:
        # The data has the class that it had before. mypy cannot infer that.
        copy: AnyEvent = event.model_copy(update={**envelope, "data": data})
        return copy
    turn = {"turn_id": event.turn_id} if event.turn_id is not None else {}
    stands_in = PlannerNote(note=_NOT_COPIED) if state is None else StateChanged()
    return new_event(stands_in, event_id=event.event_id, timestamp=event.timestamp, **turn, **envelope)


def _data(data: Data, places: Sequence[int]) -> Data | None:
    """The data of the copy. None if events of this kind are not copied."""
    match data:
        case EventAmended(offset=offset):
            index = bisect_left(places, offset)
            if index == len(places) or places[index] != offset:
                return None
            return data.model_copy(update={"offset": 1 + index})
        case Summary(end_offset=end):
            return data.model_copy(update={"end_offset": 1 + bisect_left(places, end)})
        case StateChanged():
            return data
        case _:
            return data if isinstance(data, _COPIED) else None
