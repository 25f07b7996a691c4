"""Gives each call of a ledger an id of its own where ids are missing or repeat, and its results the
same id.

Providers accept an id once in a message, and a result finds its call by the id alone. So a call
needs another id if its message has the id already, or if the id is used again before the call has
a result.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from runfold_projections.amendments import Place
from runfold_schemas.events import AnyEvent, ToolCall, ToolResult

_NAMELESS: Final = "call"
"""The beginning of the ids of calls that have none."""


@dataclass(slots=True)
class _Call:
    place: Place
    name: str
    tool_id: str
    is_answered: bool = False


def distinct_ids(events: Sequence[tuple[Place, AnyEvent]], repeated: Collection[Place]) -> dict[Place, str]:
    """The new ids by the places of calls and results. `repeated` are the places of calls whose
    message has their id already.

    In a message with two calls of one id, the first result is that of the first call, unless it
    names the tool of the other.
    """
    used = {event.data.tool_call_id for _, event in events if isinstance(event.data, ToolCall | ToolResult)}
    renamed: dict[Place, str] = {}
    # The calls of the last message with each id.
    groups: dict[str, list[_Call]] = {}

    def rename(call: _Call, tool_id: str) -> None:
        call.tool_id = renamed[call.place] = _unused(tool_id or _NAMELESS, used)

    for place, event in events:
        match event.data:
            case ToolCall(tool_call_id=tool_id, tool_name=name):
                group = groups.setdefault(tool_id, [])
                if place not in repeated:
                    for earlier in group:
                        if earlier.tool_id == tool_id and not earlier.is_answered:
                            rename(earlier, tool_id)
                    group.clear()
                call = _Call(place, name, tool_id)
                if group or not tool_id:
                    rename(call, tool_id)
                group.append(call)
            case ToolResult(tool_call_id=tool_id, tool_name=name) if tool_id in groups:
                call = _answered_by(name, groups[tool_id])
                call.is_answered = True
                if call.tool_id != tool_id:
                    renamed[place] = call.tool_id
            case _:
                pass
    return renamed


def _answered_by(tool_name: str | None, calls: Sequence[_Call]) -> _Call:
    """The first call without a result. If all have one, the last call, because the last result of a
    call counts.
    """
    named = [call for call in calls if call.name == tool_name] or calls
    return next((call for call in named if not call.is_answered), named[-1])


def _unused(tool_id: str, used: set[str]) -> str:
    candidates: Iterable[str] = (f"{tool_id}-{number}" for number in count(2))
    unused = next(candidate for candidate in candidates if candidate not in used)
    used.add(unused)
    return unused
