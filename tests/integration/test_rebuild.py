"""A rebuild under load, seen by who reads all through it, with every part a process of its own."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT

import httpx
import pytest
from tests.forking import runfold_process
from tests.processes import Projections, environment, http_service, projections, projector, until
from tests.servers import OwnSettings

from runfold import AssistantMessage, Run, Runfold, ToolCall, ToolResult, UserMessage
from runfold.local import free_port
from runfold.projector import rebuild as rebuilding
from runfold.settings import Settings
from runfold_projections.run import RunRecord, fold_tally
from runfold_projections.tally import Tally
from runfold_schemas.topics import PARTITIONS_DEFAULT

RUNS = 12
COMING_AND_GOING = 3
"""More would be more than one list holds before a rebuild on a busy machine has ended."""
READS_MIN = 100
PAUSE_SECONDS = 0.05
"""Between two looks of one reader, at the least: the projector is to get on too."""
BACKLOG = 6_000
RETIRE_SECONDS = 12.0
"""The projectors stop writing the old edition after a quarter of it, and readers leave it after
half; shorter where nobody reads.
"""


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(retire_seconds=RETIRE_SECONDS)


class Watcher:
    """Reads every run again and again, in every way, and keeps what it must never see: an error, or
    something older.

    Beside the runs that it knows by their ids it lists those of agent `c`, which come and end all
    the time.
    """

    def __init__(self, client: httpx.AsyncClient, run_ids: list[str]) -> None:
        self._client = client
        self._run_ids = run_ids
        self._seen: Counter[str] = Counter()
        self._completed: set[str] = set()
        self.faults: list[str] = []
        self.reads = 0

    async def watch(self) -> None:
        """Endless."""
        while True:
            for run_id in self._run_ids:
                await self._look(f"/v1/runs/{run_id}", "next_offset")
                await self._look(f"/v1/runs/{run_id}/ledger", "next_offset")
                await self._list_by_status()
                await asyncio.sleep(PAUSE_SECONDS)
            await self._list()

    async def _look(self, path: str, field: str) -> None:
        if (answer := await self._get(path)) is not None:
            self._compare(path, answer[field])

    async def _list(self) -> None:
        if (answer := await self._get("/v1/runs?agent_id=a")) is not None:
            listed = {run["run_id"]: run["next_offset"] for run in answer["runs"]}
            if missing := set(self._run_ids) - listed.keys():
                self.faults.append(f"not in the list: {missing}")
            for run_id, offset in listed.items():
                self._compare(f"{run_id} in the list", offset)

    async def _list_by_status(self) -> None:
        for status in ("running", "completed"):
            known = set(self._completed)
            answer = await self._get(f"/v1/runs?agent_id=c&limit=1000&status={status}")
            listed = {run["run_id"] for run in answer["runs"]} if answer is not None else known
            if status == "running" and (over := known & listed):
                self.faults.append(f"running after their end: {over}")
            if status == "completed" and (missing := known - listed):
                self.faults.append(f"not among the completed any more: {missing}")
            if status == "completed":
                self._completed |= listed

    async def _get(self, path: str) -> dict | None:
        self.reads += 1
        response = await self._client.get(path)
        if response.status_code != 200:
            self.faults.append(f"{path}: {response.status_code} {response.text}")
            return None
        return response.json()

    def _compare(self, what: str, offset: int) -> None:
        if offset < self._seen[what]:
            self.faults.append(f"{what}: {offset} after {self._seen[what]}")
        self._seen[what] = max(offset, self._seen[what])


async def test_who_reads_through_a_rebuild_under_load_sees_no_error_and_nothing_older(
    settings: Settings, tmp_path: Path
):
    async with scene(settings, tmp_path) as (runfold, runs, client), projections(settings) as before:
        await caught_up(before, runs, await publish(runs, BACKLOG))
        watchers = [Watcher(client, [run.run_id for run in runs]) for _ in range(2)]
        watching = [asyncio.create_task(one.watch()) for one in watchers]
        enough = asyncio.Event()
        loading = asyncio.gather(
            load(runs, enough), *(come_and_go(runfold, enough) for _ in range(COMING_AND_GOING))
        )
        newcomer = await runfold.open_run(agent_id="b")

        output = await rebuild(settings)

        async with projections(settings) as after:
            enough.set()
            await loading
            ends = await publish([*runs, newcomer], len(runs) + 1)
            await caught_up(after, [*runs, newcomer], ends)
            # The projectors let the old edition go at their own pace.
            await until(lambda: dropped(after), what="the end of the old edition")
            differences = await after.differences()
        await until(lambda: have_read(watchers), what="the reads of a busy machine")
        stopped = [task.cancel() for task in watching]
        ended = await asyncio.gather(*watching, return_exceptions=True)

    assert "rebuilt" in output
    assert "100%" not in output  # a bar is for eyes; in a pipe there is one line
    assert after.edition != before.edition
    assert stopped == [True] * len(watchers)
    assert [type(one) for one in ended] == [asyncio.CancelledError] * len(watchers)
    assert [fault for one in watchers for fault in one.faults] == []
    assert differences == []


async def test_a_rebuild_that_would_show_less_changes_nothing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = settings.model_copy(update={"retire_seconds": 2.0})
    async with scene(settings, tmp_path) as (_, runs, _), projections(settings) as before:
        await caught_up(before, runs, await publish(runs, len(runs)))
        fails_for(runs[0].run_id, monkeypatch)

        with pytest.RaisesGroup(
            pytest.RaisesExc(rebuilding.SetAsideError, match=f"run:{runs[0].run_id}, offset 0: ValueError")
        ):
            await rebuilding.rebuild(settings, report=ignore, switched=ignore)

        monkeypatch.undo()
        async with projections(settings) as after:
            await until(lambda: dropped(after), what="the end of the new edition")
            differences = await after.differences()

    assert after.edition == before.edition
    assert differences == []


def fails_for(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folding this run fails from here on, in this process."""

    def fail(record: RunRecord, tally: Tally) -> RunRecord:
        if record.run_id == run_id:
            raise ValueError("no")
        return fold_tally(record, tally)

    monkeypatch.setattr("runfold.projector.active.fold_tally", fail)


async def test_a_rebuild_that_is_overtaken_gives_up_and_leaves_nothing(settings: Settings, tmp_path: Path):
    settings = settings.model_copy(update={"retire_seconds": 2.0})
    async with scene(settings, tmp_path) as (_, runs, _), projections(settings) as before:
        await caught_up(before, runs, await publish(runs, BACKLOG))

        first = asyncio.create_task(rebuilding.rebuild(settings, report=ignore, switched=ignore))
        await until(lambda: begun(before), what="the beginning of the first rebuild")
        second = await rebuilding.rebuild(settings, report=ignore, switched=ignore)
        with pytest.RaisesGroup(pytest.RaisesExc(rebuilding.RebuildError, match="another rebuild has begun")):
            await first

        async with projections(settings) as after:
            await until(lambda: dropped(after), what="the end of the old edition")
            differences = await after.differences()

    assert second[:2] == (BACKLOG + RUNS, BACKLOG + RUNS)
    assert differences == []


async def test_a_rebuild_that_is_stopped_before_the_switch_is_not_read(settings: Settings, tmp_path: Path):
    async with scene(settings, tmp_path) as (_, runs, _), projections(settings) as before:
        await caught_up(before, runs, await publish(runs, RUNS))
        stopped = asyncio.create_task(rebuilding.rebuild(settings, report=ignore, switched=ignore))
        await until(lambda: joined(before), what="the joining of the rebuild")

        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)
        pointer = await before.editions.pointer()

    assert pointer == (before.edition, None, None, None, PARTITIONS_DEFAULT)


def ignore(*_: object) -> None:
    pass


async def have_read(watchers: list[Watcher]) -> bool:
    return all(one.reads > READS_MIN or one.faults for one in watchers)


@asynccontextmanager
async def scene(
    settings: Settings, logs: Path
) -> AsyncIterator[tuple[Runfold, list[Run], httpx.AsyncClient]]:
    """A projector and a query service as processes, and some runs."""
    port = free_port()
    services = [
        projector(settings, logs / "projector.log"),
        http_service("query", settings, logs / "query.log", port=port),
    ]
    try:
        await asyncio.gather(*(service.start() for service in services))
        async with (
            Runfold.of(settings.log()) as runfold,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            yield (
                runfold,
                await asyncio.gather(*(runfold.open_run(agent_id="a") for _ in range(RUNS))),
                client,
            )
    finally:
        await asyncio.gather(*(service.stop() for service in services))


async def publish(runs: list[Run], count: int) -> dict[str, int]:
    """`count` events over all runs; gives the end of each run."""
    sent = [await runs[index % len(runs)].send(_data(index)) for index in range(count)]
    return {position.run_id: position.offset + 1 for position in await asyncio.gather(*sent)}


def _data(index: int) -> UserMessage | AssistantMessage | ToolCall | ToolResult:
    match index // RUNS % 4:
        case 0:
            return UserMessage(message="What is it like?")
        case 1:
            return ToolCall(
                tool_call_id=f"call-{index // RUNS // 4}", tool_name="look", payload={"at": index}
            )
        case 2:
            return ToolResult(tool_call_id=f"call-{index // RUNS // 4}", tool_name="look", result="fine")
        case _:
            return AssistantMessage(message="It is fine.")


async def load(runs: list[Run], enough: asyncio.Event) -> None:
    """Some hundred events a second."""
    while not enough.is_set():
        await publish(runs, 4 * len(runs))
        await asyncio.sleep(0.1)


async def come_and_go(runfold: Runfold, enough: asyncio.Event) -> None:
    """A run is opened, and completed when its first state has been saved; and another one. The last
    one is completed too: one whose opener is cut off before it announces it is found by a sweep
    only.
    """
    while not enough.is_set():
        async with runfold.run(agent_id="c"):
            await asyncio.sleep(0.4)


async def rebuild(settings: Settings) -> str:
    """What `runfold rebuild` prints."""
    variables = os.environ | environment(settings)
    process = await runfold_process("rebuild", env=variables, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    return " ".join(output.decode().split())


async def caught_up(stored: Projections, runs: list[Run], ends: dict[str, int]) -> None:
    async def holds() -> bool:
        states = await stored.runs.get_many([run.run_id for run in runs])
        return all(
            run.run_id in states and states[run.run_id].record.next_offset >= ends[run.run_id] for run in runs
        )

    await until(holds, what="the fold of all that was published")


async def begun(stored: Projections) -> bool:
    pointer = await stored.editions.pointer()
    return pointer is not None and pointer.building is not None


async def joined(stored: Projections) -> bool:
    pointer = await stored.editions.pointer()
    return pointer is not None and pointer.joined is not None


async def dropped(stored: Projections) -> bool:
    return await stored.editions.others() == []
