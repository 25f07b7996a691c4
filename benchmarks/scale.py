"""Measures reads of an archive with 1,000,000 runs, whose table is written directly, beside one
with 1,000, and of whole runs one after the other, as a rebuild reads them. As a program, it prints
its table; it needs no servers.
"""

import asyncio
import json
import random
import statistics
import tempfile
import time
from hashlib import md5
from pathlib import Path

import duckdb
from archive import archive_in, messages, peak_megabytes, segment
from deltalake import CommitProperties
from deltalake.transaction import AddAction
from query import Figures
from tests.conversations import conversations

from runfold.archive.columns import EVENT_COLUMNS
from runfold.archive.segments import Segment
from runfold.archive.table import Fence, Snapshot

EXISTING = 1_000_000
FEW = 1_000
RECORDS_PER_RUN = 3
FILES = 4
LOOKS = 20
SHORT = 100
LONG_MESSAGES = 10_000

_ARROW = {"utf8": "varchar", "int64": "bigint", "binary": "blob", "float64": "double", "bool": "boolean"}
_TYPES = _ARROW | {
    "time": "timestamptz",
    "headers": "struct(key varchar, value blob)[]",
    "labels": "struct(key varchar, value varchar)[]",
}


async def scale() -> Figures:
    """The figures of reads, by processor time."""
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as folder:
        few = await _look_up(Path(folder) / "few", FEW)
        many = await _look_up(Path(folder) / "many", EXISTING)
        short, long = await _read_whole(Path(folder) / "whole")
    return [
        (f"processor time to read one run among {EXISTING:,}, p50", "", f"{many * 1000:.0f} ms"),
        (f"the same, times that among {FEW:,}", "at most 1.2", f"{many / few:.2f}"),
        ("short runs read for a second of one core: events", "100,000", f"{short:,.0f}"),
        ("a long run read for a second of one core: events", "100,000", f"{long:,.0f}"),
        ("peak memory of the measurement", "", f"{peak_megabytes():.0f} MB"),
    ]


async def _read_whole(folder: Path) -> tuple[float, float]:
    """Reads runs of one conversation each, and a run of many: the events for a second of one
    core.
    """
    there, chats = archive_in(folder), conversations()
    short = [segment(number, messages(chats[number % len(chats)])) for number in range(SHORT)]
    repeated = [each for chat in chats for each in messages(chat)]
    repeated *= LONG_MESSAGES // len(repeated) + 1
    rates = []
    for segments in (short, [segment(SHORT, repeated[:LONG_MESSAGES])]):
        await there.append(segments, fences=[Fence("bench", 1)])
        rates.append(await _rate(folder, segments))
    return rates[0], rates[1]


async def _rate(folder: Path, segments: list[Segment]) -> float:
    there, events = archive_in(folder), 0
    began = time.process_time()
    for each in segments:
        events += len([record async for record in there.records(each.run_id, each.log_id)])
    seconds = time.process_time() - began
    assert events == sum(len(each.records) for each in segments)
    return events / seconds


async def _look_up(folder: Path, runs: int) -> float:
    """Writes a table of this many runs directly, and reads some of them."""
    there = archive_in(folder)
    await there.append([segment(0, [])], fences=[Fence("bench", 1)])
    await asyncio.to_thread(there.events.change, lambda snapshot: _fill(snapshot, folder, runs))
    seconds = []
    for number in random.sample(range(runs), LOOKS + 1):
        run_id = md5(str(number).encode()).hexdigest()
        began = time.process_time()
        segments = await there.segments([run_id])
        # Not the whole segment, because its checksum was made up.
        records = [each async for each in there.records(run_id, segments[0].log_id, end=2)]
        seconds.append(time.process_time() - began)
        assert len(records) == 2
    return statistics.median(seconds[1:])


def _fill(snapshot: Snapshot, folder: Path, runs: int) -> None:
    """Adds files of runs, sorted as compaction does it."""
    columns = {
        "run_id": "run_id",
        "log_id": "run_id",
        "run_offset": "o",
        "log_time": "1760000000000 + o",
        "headers": "[{'key': 'ce_type', 'value': 'user_message'::blob}]",
        "value": "encode(concat('{\"message\": \"', run_id, o, md5(concat(run_id, o)), '\"}'))",
        "record_bytes": "80",
        "segment_base": "if(o = 0, 0, null)",
        "segment_end": f"if(o = 0, {RECORDS_PER_RUN}, null)",
        "segment_count": f"if(o = 0, {RECORDS_PER_RUN}, null)",
        "segment_bytes": "if(o = 0, 240, null)",
        "segment_sha256": "if(o = 0, sha256(run_id), null)",
        "archived_at": "if(o = 0, 1760000000000, null)",
        "outcome": "'accepted'",
        "kind": "'user_message'",
    }
    selected = ", ".join(
        f"({columns.get(name, 'null')})::{_TYPES[kind]} as {name}" for name, kind in EVENT_COLUMNS.items()
    )
    actions = []
    with duckdb.connect() as connection:
        connection.execute(f"create table ids as select md5(i::varchar) run_id from range({runs}) t(i)")
        for part in range(FILES):
            path = folder / "runfold" / "events" / f"part-bench-{part}.parquet"
            first, last = f"{part * 16 // FILES:x}", f"{(part + 1) * 16 // FILES - 1:x}g"
            connection.execute(
                f"copy (select {selected} from ids, range({RECORDS_PER_RUN}) e(o)"
                f" where run_id >= '{first}' and run_id < '{last}' order by run_id, o)"
                f" to '{path}' (format parquet, compression zstd, row_group_size 20480)"
            )
            stats = {
                "numRecords": runs * RECORDS_PER_RUN // FILES,
                "minValues": {"run_id": first, "run_offset": 0},
                "maxValues": {"run_id": last, "run_offset": RECORDS_PER_RUN - 1},
            }
            size = path.stat().st_size
            actions.append(AddAction(path.name, size, {}, int(time.time() * 1000), True, json.dumps(stats)))
    snapshot.table.create_write_transaction(
        actions, "append", snapshot.table.schema(), commit_properties=CommitProperties(max_commit_retries=0)
    )


if __name__ == "__main__":
    for row in asyncio.run(scale()):
        print(f"| {' | '.join(row)} |")
