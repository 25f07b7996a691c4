"""The ingest service while Kafka is away: before its first answer, and in the middle of
everything.
"""

import asyncio
import re
from itertools import pairwise
from pathlib import Path

import pytest
from tests.ingesting import ingest, is_ready, note, opened
from tests.processes import until

from runfold import Runfold
from runfold.local import LocalStack, free_port


async def test_the_service_outlives_a_kafka_that_comes_late_and_goes_in_between(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    port = free_port()
    async with ingest(kafka=f"127.0.0.1:{port}", publish_timeout_seconds=15) as client:
        early = await client.post("/v1/runs", json={"agent_id": "a"})
        async with LocalStack(data_dir=tmp_path, kafka_port=port) as stack:
            await until(lambda: is_ready(client), what="the first connection")
            run = await opened(client, run_id="r")
            before = await client.post(f"{run}/events", json=note("before"))
            await stack.kafka_server.kill()
            unready = await client.get("/health/ready")
            away, unknown = await asyncio.gather(
                client.post(f"{run}/events", json=note("meanwhile"), headers={"Idempotency-Key": "1"}),
                client.post("/v1/runs/never-seen/events", json=note()),
            )
            await stack.kafka_server.start()
            await until(lambda: is_ready(client), what="the connection after the restart")
            again = await client.post(
                f"{run}/events", json=note("meanwhile"), headers={"Idempotency-Key": "1"}
            )
            async with Runfold(stack.kafka) as runfold:
                events = [event async for event in (await runfold.get_run("r")).events()]
            # The end of the stack is one more outage, which the service may note or not.
            outages = [record.getMessage() for record in caplog.records if record.name.endswith("outages")]

    # Connections of other tests in this process may note outages of other servers.
    own = f"Kafka at 127.0.0.1:{port} "
    lines = [line.removeprefix(own) for line in outages if line.startswith(own)]
    begins = [line.startswith("does not answer: ") for line in lines]
    # A Kafka that starts on a busy machine may be away once more for a second.
    assert (begins[0], begins[-1]) == (True, False)
    assert sum(begins) >= 2
    assert (True, True) not in pairwise(begins)
    for line, is_begin in zip(lines, begins, strict=True):
        assert is_begin or re.fullmatch(r"answers again after \d+\.\d s(, and had .*)?", line)
    assert any("is answered with 503: Kafka is not available" in line for line in caplog.messages)
    for refused in (early, away, unknown):
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["server"] == "Kafka"
    assert unready.status_code == 503
    assert (before.status_code, again.status_code) == (201, 201)
    assert [event.data.note for event in events[1:]] == ["before", "meanwhile"]
