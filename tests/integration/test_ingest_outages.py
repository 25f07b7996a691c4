"""The ingest service while Kafka is away: before its first answer, and in the middle of
everything.
"""

from pathlib import Path

from tests.ingesting import ingest, is_ready, note, opened
from tests.processes import until

from runfold import Runfold
from runfold.local import LocalStack, free_port


async def test_the_service_outlives_a_kafka_that_comes_late_and_goes_in_between(tmp_path: Path):
    port = free_port()
    async with ingest(kafka=f"127.0.0.1:{port}", publish_timeout_seconds=2) as client:
        early = await client.post("/v1/runs", json={"agent_id": "a"})
        async with LocalStack(data_dir=tmp_path, kafka_port=port) as stack:
            await until(lambda: is_ready(client), seconds=30, what="the first connection")
            run = await opened(client, run_id="r")
            await client.post(f"{run}/events", json=note("before"))
            await stack.kafka_server.kill()
            unready = await client.get("/health/ready")
            away = await client.post(
                f"{run}/events", json=note("meanwhile"), headers={"Idempotency-Key": "1"}
            )
            unknown = await client.post("/v1/runs/never-seen/events", json=note())
            await stack.kafka_server.start()
            await until(lambda: is_ready(client), seconds=30, what="the connection after the restart")
            again = await client.post(
                f"{run}/events", json=note("meanwhile"), headers={"Idempotency-Key": "1"}
            )
            async with Runfold(stack.kafka) as runfold:
                events = [event async for event in (await runfold.get_run("r")).events()]

    for refused in (early, away, unknown):
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["server"] == "Kafka"
    assert unready.status_code == 503
    assert again.status_code == 201
    assert [event.data.note for event in events[1:]] == ["before", "meanwhile"]
