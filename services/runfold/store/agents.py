"""Statistics of agents: sums over the stored runs that started within a time, computed by
MongoDB.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from runfold.store.listing import microseconds
from runfold.store.runs import RunStore
from runfold_projections.run import LIVE
from runfold_projections.usage import ModelUsage

TOOLS_MAX: Final = 200
"""The number of tools with sums of their own, beside the row of all further tools."""

_DAY_US: Final = 86_400_000_000
_MODEL_KEY: Final = ("model", "maker", "provider", "over", "is_others")
_MODEL_COUNTS: Final = tuple(
    name for name in ModelUsage.model_fields if name not in {*_MODEL_KEY, "server_tool_requests"}
)


class AgentSums(NamedTuple):
    """The sums of several agents. Each document has its agent as `agent`."""

    days: list[dict[str, Any]]
    """By day since 1970: `day`, `runs`, `ended`, `failed`, and the last start as `last_us`."""
    durations: list[dict[str, Any]]
    """Of runs that have ended, by bucket of a histogram: `bucket`, `count`."""
    models: list[dict[str, Any]]
    """By model: the fields of `ModelUsage`."""
    server_tools: list[dict[str, Any]]
    """By model and tool of the provider: `tool`, `count`."""
    calls: list[dict[str, Any]]
    """Of all tools: `calls`, `errors`."""


class ToolSums(NamedTuple):
    """The sums of tools."""

    tools: list[dict[str, Any]]
    """By tool and agent: `name`, `agent`, `calls`, `results`, `errors`. The name of the further
    tools is None.
    """
    buckets: list[dict[str, Any]]
    """By tool and bucket of its durations: `name`, `bucket`, `count`."""


async def sums_of_agents(
    runs: RunStore, *, since: datetime, until: datetime, agent_ids: Sequence[str] | None = None
) -> AgentSums:
    """The sums over the runs that started in `[since, until)`, of these agents or of all."""
    selection = _selection(since, until, agent_ids)

    async def sums(*steps: dict[str, Any]) -> list[dict[str, Any]]:
        return [_flat(each) for each in await runs.aggregate([selection, *steps])]

    # One `$facet` would have to fit into a document of MongoDB.
    return AgentSums(
        days=await sums(_days()),
        durations=await sums({"$match": {"duration_us": {"$gte": 0}}}, _durations()),
        models=await sums({"$unwind": "$models"}, _models()),
        server_tools=await sums({"$unwind": "$models"}, {"$unwind": "$models.server_tools"}, _server_tools()),
        calls=await sums({"$unwind": "$tools"}, _calls()),
    )


async def sums_of_tools(
    runs: RunStore, agent_ids: Sequence[str] | None, *, since: datetime, until: datetime
) -> ToolSums:
    """The sums of tools over the runs of these agents, or of all, that started in
    `[since, until)`. The tools with the most calls have sums of their own, at most `TOOLS_MAX`.
    """
    steps = [_selection(since, until, agent_ids), {"$unwind": "$tools"}]
    most = [{"$match": {"tools.name": {"$ne": None}}}, *_most_called()]
    names = [each["_id"] for each in await runs.aggregate([*steps, *most])]
    name: Any = {"$ifNull": ["$tools.name", None]}
    if len(names) > TOOLS_MAX:
        name = {"$cond": [{"$in": ["$tools.name", {"$literal": names[:TOOLS_MAX]}]}, "$tools.name", None]}
    tools = await runs.aggregate([*steps, _tools(name)])
    buckets = await runs.aggregate([*steps, {"$unwind": "$tools.buckets"}, _buckets(name)])
    return ToolSums([_flat(each) for each in tools], [_flat(each) for each in buckets])


def _selection(since: datetime, until: datetime, agent_ids: Sequence[str] | None) -> dict[str, Any]:
    query: dict[str, Any] = {"started_us": {"$gte": microseconds(since), "$lt": microseconds(until)}}
    if agent_ids is not None:
        query["agent_id"] = {"$in": list(agent_ids)}
    return {"$match": query}


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    return {**document.pop("_id"), **document}


def _count_if(condition: dict[str, Any]) -> dict[str, Any]:
    return {"$sum": {"$cond": [condition, 1, 0]}}


def _days() -> dict[str, Any]:
    return {
        "$group": {
            "_id": {"agent": "$agent_id", "day": {"$floor": {"$divide": ["$started_us", _DAY_US]}}},
            "runs": {"$sum": 1},
            "ended": _count_if({"$not": [{"$in": ["$status", sorted(LIVE)]}]}),
            "failed": _count_if({"$eq": ["$status", "failed"]}),
            "last_us": {"$max": "$started_us"},
        }
    }


def _durations() -> dict[str, Any]:
    # The buckets of `projections/activity.py`: each bound is larger by the root of 2.
    milliseconds = {"$max": [{"$divide": ["$duration_us", 1_000]}, 1]}
    bucket = {"$ceil": {"$multiply": [{"$log": [milliseconds, 2]}, 2]}}
    return {
        "$group": {
            "_id": {"agent": "$agent_id", "bucket": {"$min": [bucket, 50]}},
            "count": {"$sum": 1},
        }
    }


def _models() -> dict[str, Any]:
    return {
        "$group": {
            "_id": {"agent": "$agent_id", **{name: f"$models.{name}" for name in _MODEL_KEY}},
            **{name: {"$sum": f"$models.{name}"} for name in _MODEL_COUNTS},
        }
    }


def _server_tools() -> dict[str, Any]:
    return {
        "$group": {
            "_id": {
                "agent": "$agent_id",
                **{name: f"$models.{name}" for name in _MODEL_KEY},
                "tool": {"$arrayElemAt": ["$models.server_tools", 0]},
            },
            "count": {"$sum": {"$arrayElemAt": ["$models.server_tools", 1]}},
        }
    }


def _calls() -> dict[str, Any]:
    sums = {name: {"$sum": f"$tools.{name}"} for name in ("calls", "errors")}
    return {"$group": {"_id": {"agent": "$agent_id"}, **sums}}


def _most_called() -> list[dict[str, Any]]:
    return [
        {"$group": {"_id": "$tools.name", "calls": {"$sum": "$tools.calls"}}},
        {"$sort": {"calls": -1, "_id": 1}},
        {"$limit": TOOLS_MAX + 1},
    ]


def _tools(name: Any) -> dict[str, Any]:
    sums = {count: {"$sum": f"$tools.{count}"} for count in ("calls", "results", "errors")}
    return {"$group": {"_id": {"name": name, "agent": "$agent_id"}, **sums}}


def _buckets(name: Any) -> dict[str, Any]:
    bucket = {"$arrayElemAt": ["$tools.buckets", 0]}
    count = {"$sum": {"$arrayElemAt": ["$tools.buckets", 1]}}
    return {"$group": {"_id": {"name": name, "bucket": bucket}, "count": count}}


def usage_rows(models: Sequence[dict[str, Any]], server_tools: Sequence[dict[str, Any]]) -> list[ModelUsage]:
    """The rows of one agent's usage, in a fixed order."""
    requests: dict[tuple[Any, ...], dict[str, int]] = {}
    for each in server_tools:
        requests.setdefault(_key(each), {})[each["tool"]] = int(each["count"])
    rows = [
        ModelUsage(
            **{name: each[name] for name in _MODEL_KEY if each.get(name) is not None},
            **{name: int(each[name]) for name in _MODEL_COUNTS},
            server_tool_requests=requests.get(_key(each), {}),
        )
        for each in models
    ]
    return sorted(rows, key=lambda row: (-row.input_tokens - row.output_tokens, row.model or "", row.over))


def _key(document: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(document.get(name) for name in _MODEL_KEY)
