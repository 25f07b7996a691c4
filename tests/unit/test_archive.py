"""The archive's table in a directory: what is appended is read back byte for byte, once."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.archived import FENCE, LOG_ID, archive_in, everything_in, flip_byte, read, record_of, segment_of
from tests.builders import EPOCH, event
from tests.killing import KILLS

from runfold.archive import archive as archive_module
from runfold.archive.archive import Archive
from runfold.archive.checking import check_commit, damaged_runs
from runfold.archive.columns import EVENT_COLUMNS
from runfold.archive.compaction import compact
from runfold.archive.history import remove_history
from runfold.archive.segments import Segment
from runfold.archive.table import Fence, FencedError, Snapshot
from runfold.encryption.sealed_text import KEY_ID_LENGTH, MARK
from runfold_schemas.archive_errors import ArchiveDamagedError
from runfold_schemas.catalog import Segments
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.events import RunCompleted, RunOpened, ToolCall, ToolResult, UserMessage
from runfold_schemas.usage import TokenUsage

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
BYTES = st.none() | st.binary(max_size=40)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
RECORDS = st.lists(
    st.tuples(
        st.integers(min_value=1, max_value=2**20),
        INT64,
        BYTES,
        st.lists(st.tuples(TEXTS, BYTES), max_size=3).map(tuple),
        BYTES | st.just(b'{"type": "user_message", "data": {"message": "\\ud800"}}'),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(RECORDS, min_size=1, max_size=4),
    run_ids=st.lists(TEXTS, min_size=4, max_size=4, unique=True),
)
async def test_any_records_come_back_as_they_were(tmp_path_factory, rows, run_ids):
    archive = archive_in(tmp_path_factory.mktemp("archive"))
    segments = []
    for run_id, records in zip(run_ids, rows, strict=False):
        offset, made = -1, []
        for gap, *rest in records:
            offset += gap
            made.append(Record(offset, *rest))
        segments.append(Segment(run_id, LOG_ID, 0, offset + 1, made))

    version = await archive.append(segments, fences=[FENCE])

    assert version is not None
    await check_commit(archive, version, segments)
    for segment in segments:
        assert await read(archive, segment.run_id) == segment.records
    assert await damaged_runs(archive) == []


async def test_a_segment_that_is_appended_again_is_there_once(tmp_path: Path):
    archive, first, second = (
        archive_in(tmp_path),
        segment_of("run-1", "a"),
        segment_of("run-1", "b", base=100),
    )
    assert await archive.append([first], fences=[FENCE]) is not None

    assert await archive.append([first], fences=[FENCE]) is None
    assert await archive.append([first, second], fences=[FENCE]) is not None

    assert await read(archive, "run-1") == first.records + second.records
    assert [each.base for each in await archive.segments(["run-1", "run-2"])] == [0, 100]


async def test_a_range_of_a_log_is_read_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive_module, "_SLICE_BYTES", 1_000)
    archive = archive_in(tmp_path)
    first = segment_of("run-1", *(f"text {index}" * index for index in range(40)))
    second = segment_of("run-1", *"abc", base=1_000)
    await archive.append([first, second, segment_of("run-0", "x"), segment_of("run-2", "x")], fences=[FENCE])

    got = [record async for record in archive.records("run-1", LOG_ID, start=30, end=1_001)]

    assert got == [*first.records[30:], second.records[0]]
    assert await read(archive, "run-1") == first.records + second.records
    assert await read(archive, "run-1", "1" * 32) == []


@pytest.mark.parametrize("lost", range(3))
async def test_an_archive_that_lost_any_segment_is_not_read_as_a_shorter_log(tmp_path: Path, lost: int):
    archive = archive_in(tmp_path)
    segments = [segment_of("run-1", *texts, base=base) for base, texts in ((0, "ab"), (2, "c"), (1_000, "d"))]
    entry = Segments(run_id="run-1", log_id=LOG_ID, base=5_000, end=1_002)
    complete = entry.model_copy(update={"archived_end": 1_001, "archived_records": 4})
    await archive.append([each for each in segments if each is not segments[lost]], fences=[FENCE])

    with pytest.raises(ArchiveDamagedError, match="of the 4 records before offset 1,001"):
        [record async for record in archive.records("run-1", LOG_ID, start=2, entry=complete)]
    # An earlier version wrote an entry that does not say what is archived.
    assert len([record async for record in archive.records("run-1", LOG_ID, entry=entry)]) < 4

    await archive.append([segments[lost], segment_of("run-1", "e", base=2_000)], fences=[FENCE])
    got = [record.offset async for record in archive.records("run-1", LOG_ID, end=1_001, entry=complete)]
    assert got == [0, 1, 2, 1_000]


async def test_headers_and_keys_count_for_the_size_of_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(archive_module, "_SLICE_BYTES", 1_000)
    archive, counts = archive_in(tmp_path), []

    def read_slice(*place: Any) -> list[Record]:
        records = unchanged(*place)
        counts.append(len(records))
        return records

    unchanged = archive_module._read_slice
    monkeypatch.setattr(archive_module, "_read_slice", read_slice)
    records = [Record(offset, 1, b"k" * 300, (("name", b"h" * 300),), b"{}") for offset in range(4)]
    await archive.append([Segment("run-1", LOG_ID, 0, 4, records)], fences=[FENCE])

    assert await read(archive, "run-1") == records
    assert counts == [1, 1, 1, 1]


@pytest.mark.parametrize("start", [0, 1])
async def test_a_reader_stays_at_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int):
    monkeypatch.setattr(archive_module, "_SLICE_ROWS", 10)
    archive, segment = archive_in(tmp_path), segment_of("run-1", *("text" for _ in range(40)))
    await archive.append([segment], fences=[FENCE])
    got: list[Record] = []

    async for record in archive.records("run-1", LOG_ID, start=start):
        if len(got) == 5:
            await archive_in(tmp_path).delete(["run-1"])
            # Another read of the process.
            assert await archive.known(["run-1", "run-9"]) == {"run-1"}
        got.append(record)

    assert got == segment.records[start:]
    assert await read(archive, "run-1") == []


async def test_an_older_archiver_cannot_write_any_more(tmp_path: Path):
    archive = archive_in(tmp_path)
    await archive.append([segment_of("run-1", "a")], fences=[Fence("archiver-0", 7)])

    with pytest.raises(FencedError):
        await archive.append([segment_of("run-2", "a")], fences=[Fence("archiver-0", 6)])
    await archive.append([segment_of("run-3", "a")], fences=[Fence("archiver-1", 1)])

    assert await archive.known(["run-1", "run-2", "run-3"]) == {"run-1", "run-3"}


async def test_of_two_archivers_that_have_looked_at_one_version_one_commits(tmp_path: Path):
    one, other, segment = archive_in(tmp_path), archive_in(tmp_path), segment_of("run-1", "a")
    await one.append([segment_of("run-0", "a")], fences=[FENCE])
    stages: list[int | None] = []

    def look(snapshot: Snapshot) -> Any:
        rows = archive_module.new_rows(other, [segment], snapshot)
        if not stages:
            # Another archiver has taken over, and commits between the look and the commit.
            stages.append(asyncio.run(one.append([segment], fences=[Fence("archiver-0", 2)])))
        return rows

    with pytest.raises(FencedError):
        await asyncio.to_thread(other.events.commit, [FENCE], look)

    assert stages == [2]
    assert await read(one, "run-1") == segment.records
    assert await damaged_runs(one) == []


async def test_two_archivers_at_once_lose_and_double_nothing(tmp_path: Path):
    segments = [segment_of(f"run-{index}", "a", "b") for index in range(12)]

    async def work(name: str) -> None:
        archive = archive_in(tmp_path)
        for first in range(0, 12, 2):
            await archive.append(segments[first : first + 2], fences=[Fence(name, 1)])

    await asyncio.gather(work("archiver-0"), work("archiver-1"))

    archive = archive_in(tmp_path)
    for segment in segments:
        assert await read(archive, segment.run_id) == segment.records
    assert await damaged_runs(archive) == []


def test_a_process_that_is_killed_loses_and_doubles_nothing(tmp_path: Path, chance: random.Random):
    for _ in range(3 * KILLS):
        command = [sys.executable, "-m", "tests.archiving_process", str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        # At any moment of one of the next commits, each of which takes some 20 ms.
        time.sleep(chance.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()

    asyncio.run(_check_killed(tmp_path))


async def _check_killed(folder: Path) -> None:
    archive, segments = archive_in(folder), [segment_of(f"run-{index}", "a") for index in range(2)]
    assert await damaged_runs(archive) == []
    acknowledged = (folder / "acknowledged").read_text().split()
    assert len(acknowledged) >= 2 * 3 * KILLS
    assert await archive.known(acknowledged) == set(acknowledged)
    await remove_history(archive, keep_seconds=0)
    assert await damaged_runs(archive) == []
    assert await archive.append(segments, fences=[Fence("archiver-9", 1)]) is not None


async def test_typed_columns_say_what_the_events_say(tmp_path: Path):
    archive = archive_in(tmp_path)
    events = [
        event(RunOpened(agent_id="desk", log_id=LOG_ID, user_id="ann"), timestamp=EPOCH),
        event(UserMessage(message="hi"), turn_id="t1", labels={"team": "red"}),
        event(ToolCall(tool_call_id="c1", tool_name="trains"), timestamp=EPOCH),
        event(ToolResult(tool_call_id="c1", error="no"), timestamp="2026-01-01T00:00:01.5Z"),
        event(TokenUsage(model="m", input_tokens=5, cache_read_tokens=2), provider="anthropic"),
    ]
    records = [record_of(offset, each) for offset, each in enumerate(events)]
    ended = [record_of(1_000, event(RunCompleted())), record_of(1_001, events[1])]

    await archive.append([Segment("run-1", LOG_ID, 0, 5, records)], fences=[FENCE])
    await archive.append([Segment("run-1", LOG_ID, 1_000, 1_002, ended)], fences=[FENCE])

    snapshot = archive.events.latest()
    assert snapshot is not None
    columns = "outcome, kind, agent_id, user_id, status, text, tool_name, is_error, duration_ms, input_tokens"
    assert snapshot.rows(f"select {columns} from events order by run_offset") == [
        ("accepted", "run_opened", "desk", "ann", "running", None, None, None, None, None),
        ("accepted", "user_message", "desk", "ann", None, "hi", None, None, None, None),
        ("accepted", "tool_call", "desk", "ann", None, None, "trains", None, None, None),
        ("accepted", "tool_result", "desk", "ann", None, "no", "trains", True, 1_500.0, None),
        ("accepted", "token_usage", "desk", "ann", None, None, None, None, None, 7),
        ("accepted", "run_completed", "desk", "ann", "completed", None, None, None, None, None),
        ("duplicate", "user_message", "desk", "ann", None, "hi", None, None, None, None),
    ]
    assert snapshot.rows("select labels, turn_id from events where run_offset = 1") == [
        ([{"key": "team", "value": "red"}], "t1")
    ]


async def test_members_that_a_kind_does_not_define_may_have_any_form(tmp_path: Path):
    archive = archive_in(tmp_path)
    odd: list[dict[str, Any]] = [
        {"model": 5},
        {"labels": "abc"},
        {"labels": {"a": {"b": 1}, "c": "d"}},
        {"model": [], "labels": 1},
    ]
    events = [
        event(UserMessage.model_validate({"message": str(index), **each})) for index, each in enumerate(odd)
    ]
    records = [record_of(offset, each) for offset, each in enumerate(events)]

    await archive.append([Segment("run-1", LOG_ID, 0, 4, records), segment_of("run-2", "a")], fences=[FENCE])

    snapshot = archive.events.latest()
    assert snapshot is not None
    assert snapshot.rows("select outcome, text, model, labels from events order by run_id, run_offset") == [
        ("accepted", "0", None, []),
        ("accepted", "1", None, []),
        ("accepted", "2", None, [{"key": "c", "value": "d"}]),
        ("accepted", "3", None, []),
        ("accepted", "a", None, []),
    ]


async def test_typed_columns_leave_out_what_is_sealed(tmp_path: Path):
    archive, mark = archive_in(tmp_path), f"{MARK}{'k' * KEY_ID_LENGTH}:AAAA"
    opened = RunOpened(agent_id="desk", log_id=LOG_ID, labels={"team": mark, "stage": "test"})

    await archive.append(
        [Segment("run-1", LOG_ID, 0, 1, [record_of(0, event(opened, labels={}))])], fences=[FENCE]
    )

    snapshot = archive.events.latest()
    assert snapshot is not None
    assert snapshot.rows("select labels from events") == [([{"key": "stage", "value": "test"}],)]


async def test_a_defect_of_ours_is_no_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive_module, "events_table", lambda rows: rows.no_such_member)

    with pytest.raises(AttributeError):
        await archive_in(tmp_path).append([segment_of("run-1", "a")], fences=[FENCE])


async def test_a_deleted_run_is_in_no_file_and_its_id_stays_taken(tmp_path: Path):
    archive = archive_in(tmp_path)
    kept = segment_of("run-2", "harmless")
    await archive.append([segment_of("run-1", "s3cr3t words"), kept], fences=[FENCE])
    await archive.append([segment_of("run-1", "s3cr3t again", base=50)], fences=[FENCE])
    orphan = tmp_path / "runfold/events/part-0-s3cr3t.parquet#1"
    orphan.write_bytes(b"s3cr3t of a process that died")

    await archive.delete(["run-1", "run-9"])
    await archive.delete(["run-1"])
    await remove_history(archive, keep_seconds=0)

    assert [path for path, content in everything_in(tmp_path) if b"s3cr3t" in content] == []
    in_events = [path for path, content in everything_in(tmp_path / "runfold/events") if b"run-1" in content]
    assert in_events == []
    assert await archive.known(["run-1", "run-2", "run-9", "run-3"]) == {"run-1", "run-2", "run-9"}
    assert await archive.append([segment_of("run-1", "late")], fences=[FENCE]) is None
    assert await read(archive, "run-1") == []
    assert await read(archive, "run-2") == kept.records
    assert await damaged_runs(archive) == []


async def test_a_run_that_is_deleted_while_it_is_appended_is_not_there(tmp_path: Path):
    archive, segment = archive_in(tmp_path), segment_of("run-1", "a")
    await archive.append([segment_of("run-0", "a")], fences=[FENCE])
    looks = []

    def look(snapshot: Snapshot) -> Any:
        rows = archive_module.new_rows(archive, [segment], snapshot)
        if not looks:
            asyncio.run(archive_in(tmp_path).delete(["run-1"]))
        looks.append(rows)
        return rows

    assert await asyncio.to_thread(archive.events.commit, [FENCE], look) is None

    assert len(looks) == 2
    assert await read(archive, "run-1") == []


async def test_compaction_keeps_every_record_and_shows_a_double_once(tmp_path: Path):
    archive, segments = (
        archive_in(tmp_path),
        [segment_of(f"run-{index % 5}", "a", base=index) for index in range(10)],
    )
    for segment in segments:
        await archive.append([segment], fences=[FENCE])
    doubled = archive_module.events_table(
        list(archive_module.segment_rows(archive.events.latest(), segments[3]))
    )
    await asyncio.to_thread(archive.events.commit, (), lambda _: doubled)
    assert [fault.run_id for fault in await damaged_runs(archive)] == ["run-3"]
    assert [record.offset for record in await read(archive, "run-3")] == [3, 8]

    assert await compact(archive) == 11

    assert await compact(archive) == 0
    assert await damaged_runs(archive) == []
    await remove_history(archive, keep_seconds=0)
    snapshot = archive.events.latest()
    assert snapshot is not None
    assert len(snapshot.files()) == 1
    for index in range(5):
        assert await read(archive, f"run-{index}") == segments[index].records + segments[index + 5].records
    await archive.delete(["run-1"])
    assert await archive.known(["run-0"]) == {"run-0"}
    assert await read(archive, "run-1") == []


async def test_a_damaged_run_is_named_and_the_others_are_read(tmp_path: Path):
    archive = archive_in(tmp_path)
    segments = [segment_of(f"run-{index}", os.urandom(20_000).hex()) for index in range(3)]
    for segment in segments:
        await archive.append([segment], fences=[FENCE])
    value = segments[1].records[0].value
    assert value is not None
    damaged = next(
        path for path, content in everything_in(tmp_path) if b"run-1" in content and path.suffix == ".parquet"
    )
    flip_byte(damaged, damaged.stat().st_size // 4)

    faults = await damaged_runs(archive)

    assert [fault.run_id for fault in faults] == ["run-1"]
    assert await read(archive, "run-0") == segments[0].records
    assert await read(archive, "run-2") == segments[2].records
    with pytest.raises((ArchiveDamagedError, UnavailableError)):
        await read(archive, "run-1")
    damaged.write_bytes(damaged.read_bytes()[:-100])
    assert [fault.run_id for fault in await damaged_runs(archive)] == [f"in {damaged.name}"]
    with pytest.raises(ArchiveDamagedError):
        await compact(archive)
    assert await read(archive, "run-2") == segments[2].records


async def test_rows_that_differ_from_the_log_are_found_before_the_topic_is_deleted(tmp_path: Path):
    archive, segment = archive_in(tmp_path), segment_of("run-1", "a", "b")
    version = await archive.append([segment], fences=[FENCE])
    assert version is not None
    changed = segment._replace(records=[segment.records[0], segment.records[1]._replace(log_time=1)])

    with pytest.raises(ArchiveDamagedError, match="differs from the log"):
        await check_commit(archive, version, [changed])
    with pytest.raises(ArchiveDamagedError, match="is missing"):
        await check_commit(archive, version, [segment_of("run-2", "a")])


async def test_a_table_of_an_earlier_version_gets_later_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive, first, second = archive_in(tmp_path), segment_of("run-1", "a"), segment_of("run-2", "b")
    with monkeypatch.context() as earlier:
        columns = {name: kind for name, kind in EVENT_COLUMNS.items() if name not in ("text", "labels")}
        earlier.setattr("runfold.archive.columns.EVENT_COLUMNS", columns)
        earlier.setattr("runfold.archive.archive.EVENT_COLUMNS", columns)
        await archive.append([first], fences=[FENCE])

    await archive.append([second], fences=[FENCE])

    snapshot = archive.events.latest()
    assert snapshot is not None
    assert snapshot.rows("select run_id, text from events order by run_id") == [
        ("run-1", None),
        ("run-2", "b"),
    ]
    assert await compact(archive) == 2
    assert await read(archive, "run-1") == first.records
    assert await damaged_runs(archive) == []


async def test_a_store_that_cannot_be_written_is_an_error_that_says_so(tmp_path: Path):
    (tmp_path / "runfold").write_bytes(b"a file in the place of the folder")

    with pytest.raises(UnavailableError, match="the archive is not available"):
        await archive_in(tmp_path).append([segment_of("run-1", "a")], fences=[FENCE])


def test_without_its_library_the_archive_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setitem(sys.modules, "deltalake", None)

    with pytest.raises(ConfigurationError, match=r"install 'runfold\[archive\]'"):
        archive_in(tmp_path)


async def test_an_archive_that_nobody_has_written_is_empty(tmp_path: Path):
    archive: Archive = archive_in(tmp_path)

    assert await read(archive, "run-1") == []
    assert await archive.known(["run-1"]) == set()
    assert await damaged_runs(archive) == []
    assert await remove_history(archive) == 0
