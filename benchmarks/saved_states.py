"""Measures what saving the states of live runs costs MongoDB and Python, in CPU time per state.

    python -m benchmarks.saved_states

Each run is saved again and again, a second of its time apart. `state alone` writes what a worker
needs to go on, with the indexes of lists by the start only. `first save` writes all fields, as the
first save by a worker does. `saved again` is the usual save, by a worker that saved the run before.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pymongo import ASCENDING, IndexModel, UpdateOne

from runfold.local import free_port
from runfold.local.mongo import mongo_service
from runfold.store.database import Database, connect
from runfold.store.listing import list_index
from runfold.store.run_state import RunState, state_fields
from runfold.store.runs import RunStore
from runfold_projections.activity import RunActivity, ToolStatistics
from runfold_projections.run import RunRecord
from runfold_projections.usage import ModelUsage, RunUsage, TokenTotals

_RUNS = 200
_SAVES = 30
_NOON = datetime(2026, 1, 1, tzinfo=UTC)
_INDEXES = [
    *(list_index("started_us", field) for field in ("agent_id", "session_id", "status", "label_pairs")),
    list_index("started_us"),
    IndexModel([("partition", ASCENDING), ("active", ASCENDING)]),
    IndexModel([("session_deleted", ASCENDING)], sparse=True),
    IndexModel([("log_id", ASCENDING)]),
]


class _StateAlone(RunStore):
    """Neither writes nor indexes the fields of lists."""

    def __init__(self, database: Database, edition: str) -> None:
        super().__init__(database, edition)
        self._documents = database[f"runs.{edition}"]

    async def create_indexes(self) -> None:
        await self._documents.create_indexes(_INDEXES)

    async def save(self, states: Iterable[RunState]) -> None:
        operations = [
            UpdateOne(
                {
                    "_id": state.run_id,
                    "log_id": state.log_id,
                    "next_offset": {"$lt": state.record.next_offset},
                    "deleted": {"$ne": True},
                },
                {"$set": state_fields(state)},
            )
            for state in states
        ]
        await self._documents.bulk_write(operations, ordered=False)


async def main() -> None:
    port = free_port()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        mongod = mongo_service(data_dir=Path(folder), port=port, cache_gb=0.25)
        await mongod.start()
        try:
            async with connect(f"mongodb://127.0.0.1:{port}/?directConnection=true", "bench") as database:
                for calls in (False, True):
                    for line in await _measure(database, mongod.pid, calls=calls):
                        print(line)
        finally:
            await mongod.stop()


async def _measure(database: Database, mongod: int, *, calls: bool) -> list[str]:
    """Saves the same states in turn in each way."""
    stores: dict[str, RunStore] = {
        "state alone": _StateAlone(database, f"alone{calls}"),
        "first save": RunStore(database, f"first{calls}"),
        "saved again": RunStore(database, f"again{calls}"),
    }
    spent = dict.fromkeys(stores, (0.0, 0.0))
    states = [_first(number) for number in range(_RUNS)]
    for store in stores.values():
        await store.create_indexes()
        await store.add(states)
        await store.save(states := [_next(state, 2, calls=calls) for state in states])
    for position in range(10, 10 + _SAVES):
        states = [_next(state, position, calls=calls) for state in states]
        names = sorted(stores, reverse=bool(position % 2))
        for name in names:
            before = _cpu(mongod), time.process_time()
            # A store that saved nothing before stands for a worker that has just begun.
            store = RunStore(database, f"first{calls}") if name == "first save" else stores[name]
            await store.save(states)
            after = _cpu(mongod), time.process_time()
            spent[name] = (
                spent[name][0] + after[0] - before[0],
                spent[name][1] + after[1] - before[1],
            )
    kind = "a call of a model and of a tool" if calls else "a message"
    return [
        f"{kind}, {name}: mongod {_micros(server):.0f} us, Python {_micros(client):.0f} us"
        for name, (server, client) in spent.items()
    ]


def _micros(seconds: float) -> float:
    return seconds / (_RUNS * _SAVES) * 1_000_000


def _first(number: int) -> RunState:
    record = RunRecord(
        run_id=f"run-{number}-abcdef",
        agent_id="travel-desk",
        session_id=f"session-{number}",
        status="running",
        started_at=_NOON,
        updated_at=_NOON,
        labels={"channel": "chat"},
        counts={"run_opened": 1},
        next_offset=1,
    )
    return _with_calls(RunState(f"{number:032x}", 0, True, record, opened=True, chain=b"x" * 32), 1)


def _next(state: RunState, position: int, *, calls: bool) -> RunState:
    """The state after a message, and with `calls` after calls of a model and of tools too."""
    record = state.record.model_copy(
        update={
            "updated_at": _NOON + timedelta(seconds=position),
            "counts": {**state.record.counts, "user_message": position},
            "next_offset": position,
        }
    )
    state = replace(state, record=record, last_offset=position - 1)
    return _with_calls(state, position) if calls else state


def _with_calls(state: RunState, number: int) -> RunState:
    row = ModelUsage(model="gpt-x", calls=number, input_tokens=100 * number, output_tokens=number)
    totals = TokenTotals(input_tokens=100 * number, output_tokens=number)
    counts = {**state.record.counts, "tool_call": number, "token_usage": number}
    tools = tuple(
        ToolStatistics(name=name, calls=number, results=number, buckets=((3, number), (9, number)))
        for name in ("search", "book")
    )
    return replace(
        state,
        record=state.record.model_copy(update={"usage": totals, "counts": counts}),
        usage=RunUsage(models=(row,)),
        activity=RunActivity(tools=tools),
    )


def _cpu(process: int | None) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    asyncio.run(main())
