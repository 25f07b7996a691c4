"""Measures the archive in a directory: appending and checking runs, and their size. As a program,
it prints its table; it needs no servers.
"""

import asyncio
import random
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from query import Figures
from tests.conversations import Chat, conversations, events_of

from runfold.archive.archive import Archive
from runfold.archive.checking import check_commit
from runfold.archive.segments import Segment
from runfold.archive.table import Fence
from runfold.secret_urls import SecretUrl
from runfold_schemas.codec import Record, encode, headers, new_event
from runfold_schemas.events import RunCompleted, RunOpened

RUNS = 1_000
COMMITS = 1


async def archive() -> Figures:
    """The figures of an archive in a directory."""
    with tempfile.TemporaryDirectory(prefix="runfold-bench-") as folder:
        appended = await _append(Path(folder) / "append")
    return [*appended, ("peak memory of the measurement", "", f"{peak_megabytes():.0f} MB")]


async def _append(folder: Path) -> Figures:
    """Appends conversations in commits of many runs, and compares each with what was appended."""
    there, fence = archive_in(folder), Fence("bench", 1)
    chats = conversations()
    size = await _stored_share(
        folder.parent / "size", [segment(*each) for each in enumerate(map(messages, chats))]
    )
    runs = [segment(number, messages(chats[number % len(chats)])) for number in range(RUNS)]
    events = sum(len(run.records) for run in runs)
    appending, checking = [], []
    for first in range(0, RUNS, RUNS // COMMITS):
        part = runs[first : first + RUNS // COMMITS]
        versions: list[int | None] = []

        async def append(part: list[Segment] = part, versions: list[int | None] = versions) -> None:
            versions.append(await there.append(part, fences=[fence]))

        appending.append(await processor_seconds(append))
        version = versions[0]
        assert version is not None
        checking.append(
            await processor_seconds(lambda part=part, version=version: check_commit(there, version, part))
        )
    return [
        ("events appended for a second of one core", "50,000", f"{events / sum(appending):,.0f}"),
        ("runs appended for a second of one core", "200", f"{RUNS / sum(appending):,.0f}"),
        ("events checked for a second of one core", "", f"{events / sum(checking):,.0f}"),
        ("stored bytes / bytes of keys, headers and values", "0.5", f"{size:.2f}"),
    ]


async def _stored_share(folder: Path, runs: list[Segment]) -> float:
    """The share of the bytes of runs, of which none repeats another, that the table takes."""
    await archive_in(folder).append(runs, fences=[Fence("bench", 1)])
    return _stored_bytes(folder) / sum(_raw_bytes(record) for run in runs for record in run.records)


def messages(chat: Chat) -> list[Chat]:
    messages: list[Chat] = chat["messages"]
    return messages


def segment(number: int, messages: list[Chat]) -> Segment:
    run_id, log_id = f"run-{random.getrandbits(64):016x}", f"{number:032x}"
    data = [RunOpened(agent_id="desk", log_id=log_id)]
    data += [each for message in messages for each in events_of(message)]
    data.append(RunCompleted())
    events = [
        new_event(
            each,
            event_id=f"0199c7a0-{number:04x}-7000-8000-{index:012x}",
            run_id=run_id,
            timestamp="2026-11-01T00:00:00Z",
        )
        for index, each in enumerate(data)
    ]
    records = [
        Record(index, 1_760_000_000_000 + index, None, tuple(headers(event, source="bench")), encode(event))
        for index, event in enumerate(events)
    ]
    return Segment(run_id, log_id, 0, len(records), records)


def archive_in(folder: Path) -> Archive:
    return Archive(SecretUrl(f"file://{folder}"), prefix="runfold")


def _stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _raw_bytes(record: Record) -> int:
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value) for name, value in record.headers)


async def processor_seconds(work: Callable[[], Awaitable[None]]) -> float:
    began = time.process_time()
    await work()
    return time.process_time() - began


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    for row in asyncio.run(archive()):
        print(f"| {' | '.join(row)} |")
