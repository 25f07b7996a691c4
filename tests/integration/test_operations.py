"""What an operator sees: `GET /v1/operations`, `runfold status` and the metrics of a projector,
while it works and while it is away.
"""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.alerting import holding, samples
from tests.processes import append_raw, projector, until
from tests.querying import ready_api
from tests.servers import OwnSettings

from runfold import Runfold, UserMessage
from runfold.cli.status import status
from runfold.cli.verify import verify
from runfold.local import Service
from runfold.settings import Settings


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(session_timeout_seconds=6, sweep_seconds=2)


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


async def operations(api: httpx.AsyncClient) -> Any:
    answer = await api.get("/v1/operations")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def scrape(service: Service) -> str:
    assert not callable(service.argv)
    port = int(service.argv[-1]) + 1
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.get(f"http://127.0.0.1:{port}/metrics")).text


async def scraped(service: Service) -> dict[str, float]:
    """The metrics of a projector, by name and labels."""
    text = await scrape(service)
    return {name: float(value) for name, value in re.findall(r"^(runfold_\S+) (\S+)$", text, re.MULTILINE)}


async def test_a_projector_is_seen_at_work_and_away(
    settings: Settings,
    runfold: Runfold,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    process = projector(settings, tmp_path / "p.log", worker_id="p-0")
    async with ready_api(settings) as api:
        nobody = await operations(api)
        await process.start()
        try:
            run = await runfold.open_run(agent_id="a")
            await run.publish(UserMessage(message="hi"))
            await append_raw(runfold, run)
            await run.complete()
            waiting = await runfold.open_run(agent_id="a")

            working: dict[str, Any] = {}

            async def is_seen() -> bool:
                working.update(await operations(api))
                has_stored = (
                    working["runs"] == {"completed": 1, "running": 1}
                    and working["topics"]["runs"] == 2
                    and working["lag"]["records"] == 0
                    and working["dead_letters"] == 1
                )
                is_active = any(each["active_runs"] > 0 for each in working["projectors"])
                return has_stored and is_active and not working["reasons"]

            await until(is_seen, what="the report")
            await verify(settings, run_id=None)
            verified = await operations(api)

            async def is_well() -> bool:
                return await status(settings, as_json=False) == 0

            await until(is_well, what="a status without reasons")
            metrics: dict[str, float] = {}

            async def is_counted() -> bool:
                metrics.update(await scraped(process))
                # A bell may come late, and is folded at once.
                is_idle = metrics.get("runfold_fold_lag_records") == 0
                return is_idle and metrics.get("runfold_verify_timestamp_seconds", 0) > 0

            await until(is_counted, what="the census")
        finally:
            await process.kill()
        monkeypatch.setattr("runfold.query.operations.AWAY_SECONDS", 1.0)
        await waiting.publish(UserMessage(message="anybody there?"))
        await runfold.open_run(agent_id="b")

        away: dict[str, Any] = {}

        async def is_missed() -> bool:
            away.update(await operations(api))
            # A life, a bell of a publisher and the event itself: bells may come later.
            return away["lag"]["records"] >= 2

        await until(is_missed, what="the records that nobody folds")
        code_away = await status(settings, as_json=True)

    assert nobody["status"] == "failing"
    assert nobody["lag"] == {"records": 0, "seconds": None}
    assert nobody["reasons"] == ["nothing was ever projected: start a projector"]
    assert working["status"] == "ok"
    assert [each["status"] for each in working["projectors"]] == ["working"]
    assert working["projectors"][0]["worker_id"] == "p-0"
    assert working["projectors"][0]["partitions"] == list(range(12))
    assert working["partitions_without_projector"] == []
    assert working["lag"]["records"] == 0
    assert working["dead_letters"] == 1
    assert working["verify"] is None
    assert {each["status"] for each in working["servers"]} == {"ok"}
    assert {each["server"].partition(" at ")[0] for each in working["servers"]} >= {"Kafka", "MongoDB"}
    assert verified["verify"]["status"] == "ok"
    assert code_away == 1
    assert "p-0" in capsys.readouterr().out
    events = {
        name: value for name, value in metrics.items() if name.startswith("runfold_folded_events_total")
    }
    assert events == {
        'runfold_folded_events_total{outcome="accepted",type="run_opened"}': 2,
        'runfold_folded_events_total{outcome="accepted",type="user_message"}': 1,
        'runfold_folded_events_total{outcome="accepted",type="run_completed"}': 1,
        'runfold_folded_events_total{outcome="undecodable",type="unknown"}': 1,
    }
    assert {metrics[f'runfold_server_up{{server="{name}"}}'] for name in ("kafka", "mongodb")} == {1}
    for server, operation in (("kafka", "produce"), ("kafka", "fetch"), ("mongodb", "insert")):
        labels = f'{{operation="{operation}",server="{server}"}}'
        assert metrics[f"runfold_server_request_seconds_count{labels}"] > 0
    assert metrics["runfold_dead_letters_kept"] == 1
    assert metrics["runfold_run_topics"] == 2
    assert metrics["runfold_catalog_partitions_expected"] == metrics["runfold_catalog_partitions"] == 12
    assert metrics['runfold_runs{status="completed"}'] == 1
    assert away["status"] == "failing"
    assert [each["status"] for each in away["projectors"]] == ["away"]
    assert away["partitions_without_projector"] == list(range(12))
    assert away["lag"]["seconds"] > 0


async def test_alerts_hold_for_real_faults_and_not_before(
    settings: Settings, runfold: Runfold, tmp_path: Path
):
    process = projector(settings, tmp_path / "p.log", worker_id="p-0")
    await process.start()
    try:
        run = await runfold.open_run(agent_id="a")
        await run.publish(UserMessage(message="hi"))

        async def holds() -> set[str]:
            return holding(before, samples(await scrape(process)))

        async def is_folded() -> bool:
            return (await scraped(process)).get("runfold_active_runs") == 1

        await until(is_folded, what="the run")
        before = samples(await scrape(process))

        async def is_healthy() -> bool:
            return await holds() == set()

        await until(is_healthy, what="a projector without alerts")
        await append_raw(runfold, run)

        async def is_buried() -> bool:
            return await holds() == {"RunfoldDeadLetters"}

        await until(is_buried, what="the dead letter")
        before = samples(await scrape(process))
        topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
        await runfold.connection.admin.delete_topics([topic])

        async def is_stuck() -> bool:
            # A slow scrape may come after the time in which the run is stuck.
            return bool(await holds() & {"RunfoldStuck", "RunfoldQuarantine"})

        async def is_set_aside() -> bool:
            return await holds() == {"RunfoldQuarantine"}

        await until(is_stuck, what="the run without its log")
        await until(is_set_aside, what="its quarantine")
    finally:
        await process.kill()

    assert holding(before, samples()) == {"RunfoldPartitionsWithoutProjector"}
