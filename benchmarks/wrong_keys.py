"""Measures what 1,000 requests a second with wrong API keys cost the others: the 99th percentile of
reads with a valid key, before and beside them in turn, and the API's processor time for a refusal.
"""

import asyncio
import sys
import time
from datetime import UTC, datetime

from processor import processor_seconds
from query import Figures, Process, serving

from runfold import Runfold, UserMessage
from runfold.identity.administration import KeyAdministration
from runfold.identity.keys import KeyGrant
from runfold.settings import Settings

RATE = 1_000
CONNECTIONS = 20
PAIRS = 3
SECONDS = 5.0
ALONE = 3_000
READ_PAUSE_SECONDS = 0.005
WRONG = f"rf_{'0' * 16}_{'A' * 43}"


async def wrong_keys(settings: Settings) -> Figures:
    """Turns without and with wrong keys, from another process."""
    asking = settings.model_copy(update={"authentication": "required"})
    asking.__pydantic_fields_set__.add("authentication")
    async with Runfold.of(settings.log()) as runfold:
        keys = KeyAdministration(settings.log(), lambda: runfold.connection.publisher)
        key = (await keys.add(KeyGrant(name=f"reader {datetime.now(UTC)}"), by="benchmark")).text
        run = await runfold.open_run(agent_id="bench")
        await run.publish(UserMessage(message="?"))
        async with serving(asking, "projector"), serving(asking, "api") as api:
            await _read(api, key, run.run_id, 1.0)
            calm: list[float] = []
            beside: list[float] = []
            refused = 0
            for _ in range(PAIRS):
                calm += await _read(api, key, run.run_id, SECONDS)
                attack = await asyncio.create_subprocess_exec(
                    *(sys.executable, __file__, str(api.port)), stdout=asyncio.subprocess.PIPE
                )
                beside += await _read(api, key, run.run_id, SECONDS)
                output, _ = await attack.communicate()
                refused += int(output)
            each = [
                await _processor_seconds(api, path, who)
                for path, who in (("/health/live", key), ("/v1/runs", WRONG))
            ]
    ratio, rate = _p99(beside) / _p99(calm), refused / PAIRS / SECONDS
    measured = (
        f"p99 {_p99(calm):.1f} ms -> {_p99(beside):.1f} ms, {ratio:.1f} times; median"
        f" {_median(calm):.1f} -> {_median(beside):.1f} ms; {rate:,.0f} refused a second. Processor time"
        f" of a refusal {each[1] * 1e6:.0f} us, of an empty answer {each[0] * 1e6:.0f} us"
    )
    return [("wrong keys, 1,000 a second", "p99 at most 2 times", measured)]


async def _read(api: Process, key: str, run_id: str, seconds: float) -> list[float]:
    """The times of reads, in milliseconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        assert await _ask(reader, writer, f"/v1/runs/{run_id}", key) == b"200"
        times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(READ_PAUSE_SECONDS)
    writer.close()
    return times


async def _processor_seconds(api: Process, path: str, key: str) -> float:
    """The API's processor time for one of many requests on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    before = processor_seconds(api.pid)
    for _ in range(ALONE):
        await _ask(reader, writer, path, key)
    writer.close()
    return (processor_seconds(api.pid) - before) / ALONE


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, key: str) -> bytes:
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.partition(b":")[2])
        for line in head.splitlines()
        if line.lower().startswith(b"content-length:")
    )
    await reader.readexactly(length)
    return head.split(b" ", 2)[1]


def _p99(times: list[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]


def _median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


async def _attack(port: int) -> None:
    """Sends wrong keys at an even rate, and prints how many were refused."""
    refused = 0
    began = time.perf_counter()

    async def send(number: int) -> None:
        nonlocal refused
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        due = began + number / RATE
        while due < began + SECONDS:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            refused += await _ask(reader, writer, "/v1/runs", WRONG) == b"401"
            due += CONNECTIONS / RATE
        writer.close()

    await asyncio.gather(*map(send, range(CONNECTIONS)))
    print(refused)


if __name__ == "__main__":
    asyncio.run(_attack(int(sys.argv[1])))
