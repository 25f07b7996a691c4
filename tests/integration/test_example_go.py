"""The example of a producer in Go, which knows the contract and nothing of our library."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.archiving import archiving, entry_of_run, gone
from tests.segmenting import seal
from tests.servers import OwnSettings

from runfold import Runfold
from runfold.archiver import rounds
from runfold.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "go_producer"
SECONDS = 240
"""How long a busy machine may take for one step."""

RUN_ID = "ü" * 32 + " 17"
"""The names of its later topics have a hash."""


@pytest.fixture
def settings(own_settings: OwnSettings, tmp_path: Path) -> Settings:
    return own_settings(
        archive_url=f"file://{tmp_path / 'archive'}",
        archive_quiet_seconds=1,
        archive_delete_seconds=0.1,
        session_timeout_seconds=6,
        partitions=3,
    )


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


@pytest.fixture
async def program(tmp_path: Path) -> Path:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    downloading = await asyncio.create_subprocess_exec("go", "mod", "download", cwd=EXAMPLE)
    async with asyncio.timeout(600):
        if await downloading.wait() != 0:
            pytest.skip("Go's modules cannot be downloaded")
    built = tmp_path / "go_producer"
    process = await asyncio.create_subprocess_exec("go", "build", "-o", str(built), ".", cwd=EXAMPLE)
    async with asyncio.timeout(600):
        assert await process.wait() == 0
    return built


class Producer:
    """The program at work on one run."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input = process.stdin
        self._output = process.stdout

    def publish(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            said = {"type": "user_message", "data": {"message": str(number)}}
            self._input.write(json.dumps(said).encode() + b"\n")

    async def acknowledged(self, count: int) -> list[int]:
        """The offsets of that many further events."""
        async with asyncio.timeout(SECONDS):
            lines = [await self._output.readline() for _ in range(count)]
        return [int(line.split()[0]) for line in lines]


@asynccontextmanager
async def producing(program: Path, settings: Settings, run_id: str) -> AsyncIterator[Producer]:
    """The program, which ends with its input."""
    arguments = ["-kafka", settings.kafka, "-prefix", settings.prefix, "-agent", "shop", "-run", run_id]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdin=pipe, stdout=pipe, env={**os.environ, "GOMAXPROCS": "2"}
    )
    assert process.stdin is not None
    try:
        yield Producer(process)
        process.stdin.close()
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_producer_in_go_goes_on_where_its_log_goes_on(
    program: Path, settings: Settings, runfold: Runfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_LIST_SECONDS", 0.5)
    async with producing(program, settings, RUN_ID) as producer:
        producer.publish(range(20))
        offsets = await producer.acknowledged(20)
        run = await runfold.get_run(RUN_ID)

        # The topic is sealed while events are on their way.
        sealing = asyncio.create_task(seal(runfold, run.life))
        written = 20
        while not sealing.done():
            producer.publish(range(written, written + 50))
            offsets += await producer.acknowledged(50)
            written += 50
            await asyncio.sleep(0.02)  # so that they do not become too many
        entry = await sealing
        assert any(offset >= entry.base for offset in offsets)

        # Both topics are deleted.
        async with archiving(settings):
            await gone(settings, [run])
            await gone(settings, [run], base=entry.base)
        producer.publish(range(written, written + 10))
        offsets += await producer.acknowledged(10)
    assert (last := await entry_of_run(runfold, run)) is not None
    assert offsets[-10] == last.base

    # Another process goes on with the run.
    async with producing(program, settings, RUN_ID) as producer:
        producer.publish([written + 10])
        offsets += await producer.acknowledged(1)

    async with Runfold.of(settings.log()) as reader:
        run = await reader.get_run(RUN_ID)
        history = [admitted async for admitted in run.history()]
    assert [each.outcome for each in history] == ["accepted"] * (1 + len(offsets))
    assert [each.record.offset for each in history[1:]] == offsets
    said = [json.loads(each.record.value or b"")["data"]["message"] for each in history[1:]]
    assert said == [str(number) for number in range(written + 11)]
