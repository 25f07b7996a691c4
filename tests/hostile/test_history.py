"""A stack with a long history starts again: a server that makes progress is waited for, however
long it takes.
"""

import asyncio
import re
import sys
from functools import partial
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tests.killing import ROUNDS
from tests.processes import DEADLINE_SECONDS, until

from runfold import Runfold, UserMessage
from runfold.local import LocalStack, Service, StartError, ready_line
from runfold.local import patience as patience_module
from runfold.local import service as service_module
from runfold.local.java_options import count_logs

LOGS = 1_200 * ROUNDS
"""10 rounds, as in `make soak`, are as many logs as 12,000 runs have."""

LEAST_SECONDS = 8.0
"""The patience with Kafka here: less than a start takes on a busy machine."""


async def test_a_killed_broker_with_a_history_is_waited_for_while_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "SAY_SECONDS", 0.5)
    said: list[str] = []
    async with LocalStack(data_dir=tmp_path, progress=said.append) as stack:
        async with Runfold(stack.kafka) as runfold:
            run = await runfold.open_run(agent_id="a", run_id="kept")
            await run.publish(UserMessage(message="still there?"))
            await run.complete()
        await add_logs(stack.kafka, LOGS)
        await until(partial(has_logs, tmp_path, LOGS), seconds=60 * ROUNDS, what="the logs on the disk")
        await stack.kafka_server.kill()
        stack.kafka_server.start_seconds = LEAST_SECONDS

        await stack.kafka_server.start()

        async with Runfold(stack.kafka) as runfold:
            events = [event.type async for event in (await runfold.get_run("kept")).events()]
    assert events == ["run_opened", "user_message", "run_completed"]
    loading = [line for line in said if re.search(rf"of {LOGS // 1000},\d+ logs are loaded", line)]
    assert loading, said
    assert (tmp_path / "kafka" / ".kafka_cleanshutdown").exists()


async def test_a_program_that_logs_is_waited_for(tmp_path: Path) -> None:
    service = python(
        "import time\n"
        "for n in range(12): print(n, flush=True); time.sleep(0.25)\n"
        "print('ready', flush=True); time.sleep(600)",
        log=tmp_path / "log",
        start_seconds=2,
    )

    await service.start()

    await service.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the processor time of a process")
async def test_a_program_that_works_is_waited_for_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "SAY_SECONDS", 0.2)
    # A busy machine leaves the program a small share of a core.
    monkeypatch.setattr(patience_module, "SILENT_FACTOR", 1000)
    said: list[str] = []
    service = python(
        "import time\nwhile time.process_time() < 1.2: pass\nprint('ready', flush=True); time.sleep(600)",
        log=tmp_path / "log",
        start_seconds=1,
        say=said.append,
        doing=lambda _: "counting",
    )

    await service.start()

    assert re.fullmatch(r"program is still counting \(\d+ s\)", said[0])
    await service.kill()


async def test_a_program_that_works_and_never_says_anything_is_given_up(tmp_path: Path) -> None:
    service = python("while True: pass", log=tmp_path / "log", start_seconds=0.1)

    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(StartError, match=r"program was not ready in 0\.1 s without progress"):
            await service.start()

    assert not service.running


async def test_a_program_that_stops_slowly_is_not_killed_while_it_makes_progress(tmp_path: Path) -> None:
    done = tmp_path / "done"
    service = python(
        "import signal, sys, time\n"
        "def stop(*_):\n"
        "    for n in range(12): print(n, flush=True); time.sleep(0.25)\n"
        f"    open({str(done)!r}, 'w').close(); sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(600)",
        log=tmp_path / "log",
        grace_seconds=2,
        stops_slowly=True,
    )
    await service.start()

    await service.stop()

    assert done.exists()


async def add_logs(kafka: str, count: int) -> None:
    """Adds topics with as many partitions together: each is a log, as each run has one."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        for number in range(0, count, 1_200):
            topic = NewTopic(f"history-{number}", num_partitions=1_200, replication_factor=1)
            await admin.create_topics([topic], timeout_ms=60_000)
    finally:
        await admin.close()


async def has_logs(data: Path, count: int) -> bool:
    return count_logs(data / "kafka") > count


def python(code: str, *, log: Path, **options: object) -> Service:
    return Service("program", [sys.executable, "-c", code], ready=ready_line("ready"), log=log, **options)
