"""What a run did, as fields of its document: `tools`, which the statistics of agents add up, and
`activity` with the rest, the position of its last change, and a checksum of both.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from zlib import crc32

import msgpack

from runfold.store.listing import microseconds, moment
from runfold_projections.activity import NO_ACTIVITY, OpenCall, RunActivity, ToolStatistics


def activity_fields(log_id: str, position: int, activity: RunActivity | None) -> dict[str, Any]:
    if activity is None:
        return {"tools": [], "activity": None}
    tools = [_tool_fields(tool) for tool in activity.tools]
    ended = activity.ended_at.isoformat() if activity.ended_at is not None else None
    calls = [[*call[:2], microseconds(call.timestamp)] for call in activity.open_calls]
    rest = [position, ended, calls, list(activity.copies) if activity.copies is not None else None]
    return {"tools": tools, "activity": [*rest, _checksum(log_id, tools, rest)]}


def stored_activity(document: Mapping[str, Any]) -> RunActivity | None:
    """The activity of a document, None if it has none with the right checksum."""
    tools = document.get("tools")
    match document.get("activity"):
        case [*rest, int() as checksum]:
            try:
                if checksum != _checksum(document["log_id"], tools, rest):
                    return None
            except (TypeError, ValueError, OverflowError):  # a value that no document of ours has
                return None
            return _activity_of(tools or (), rest)
        case _:
            return None


def _tool_fields(tool: ToolStatistics) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": tool.name, "calls": tool.calls, "results": tool.results}
    if tool.errors:
        fields["errors"] = tool.errors
    if tool.buckets:
        fields["buckets"] = [list(pair) for pair in tool.buckets]
    return fields


def _checksum(log_id: str, tools: object, rest: Sequence[Any]) -> int:
    packed: bytes = msgpack.packb([log_id, tools, *rest])
    return crc32(packed)


def _activity_of(tools: Sequence[Mapping[str, Any]], rest: Sequence[Any]) -> RunActivity:
    _, ended, calls, copies = rest
    if not (tools or ended or calls or copies):
        return NO_ACTIVITY
    return RunActivity.model_construct(
        ended_at=datetime.fromisoformat(ended) if ended is not None else None,
        tools=tuple(_tool_of(fields) for fields in tools),
        open_calls=tuple(OpenCall(call_id, name, moment(us)) for call_id, name, us in calls),
        copies=tuple(copies) if copies is not None else None,
    )


def _tool_of(fields: Mapping[str, Any]) -> ToolStatistics:
    buckets = tuple((bucket, count) for bucket, count in fields.get("buckets", ()))
    return ToolStatistics.model_construct(
        name=fields["name"],
        calls=fields["calls"],
        results=fields["results"],
        errors=fields.get("errors", 0),
        buckets=buckets,
    )
