"""Spans and audit records of a service, from a real process to a collector of OTLP."""

import json
from pathlib import Path

import httpx
import pytest
from tests.collectors import Span, collector
from tests.ingesting import note
from tests.processes import http_service, until
from tests.servers import OwnSettings

from runfold.local import free_port

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_requests_and_what_they_ask_of_kafka_and_mongodb_are_one_trace(
    own_settings: OwnSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        port = free_port()
        api = http_service("api", own_settings(audit_log="otlp"), tmp_path / "api.log", port=port)
        await api.start()
        try:
            headers = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60
            ) as http:
                made = await http.post("/v1/runs", json={"run_id": "secret-run", "agent_id": "a"})
                await http.post("/v1/runs/secret-run/events", json=note("hush"))
                await http.get("/v1/runs")
                missing = await http.get("/v1/runs/none/ledger")
            assert (made.status_code, missing.status_code) == (201, 404)

            def spans() -> list[Span]:
                return [*collected.of_trace(TRACE_ID).values()]

            async def all_there() -> bool:
                return sum(span.parent_id == SPAN_ID for span in spans()) >= 4 and len(collected.logs) >= 4

            await until(all_there, what="the spans and the audit log")
        finally:
            await api.stop()

    requests = {span.name: span for span in spans() if span.parent_id == SPAN_ID}
    assert {*requests} == {
        "POST /v1/runs",
        "POST /v1/runs/{run_id}/events",
        "GET /v1/runs",
        "GET /v1/runs/{run_id}/ledger",
    }
    assert {span.kind for span in requests.values()} == {2}
    request = requests["POST /v1/runs"]
    assert request.attributes["http.response.status_code"] == 201
    assert request.attributes["runfold.request.id"] == made.headers["X-Request-Id"]
    assert request.resource["service.name"] == "runfold-api"
    children = {name: [s for s in spans() if s.parent_id == requests[name].span_id] for name in requests}
    [sent] = children["POST /v1/runs/{run_id}/events"]
    assert (sent.name, sent.attributes["messaging.system"]) == ("send", "kafka")
    assert any(span.attributes.get("db.system.name") == "mongodb" for span in children["GET /v1/runs"])
    assert "hush" not in repr(spans())

    lines = {json.loads(each["body"])["request"]: each for each in collected.logs}
    assert lines[made.headers["X-Request-Id"]]["runfold.audit.status"] == 201
    assert lines[made.headers["X-Request-Id"]]["runfold.audit.route"] == "/v1/runs"
