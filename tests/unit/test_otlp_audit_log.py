"""The audit log over OTLP: while the endpoint refuses lines, requests are refused, and none is
lost.
"""

import json

import pytest
from tests.collectors import collector
from tests.processes import until

from runfold.http.otlp_audit_log import OtlpAuditLog


def line(number: int) -> bytes:
    document = {"time": "2026-11-23T07:00:00.000+00:00", "status": number, "ids": {"run": "r"}}
    return json.dumps(document).encode() + b"\n"


async def test_lines_that_are_refused_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        log = OtlpAuditLog()
        log.append(line(1))

        async def came() -> bool:
            return len(collected.logs) == 1

        async def refuses() -> bool:
            return not log.is_writable()

        async def writes() -> bool:
            return log.is_writable()

        await until(came, what="a line")
        assert log.is_writable()
        collected.status = 400
        log.append(line(2))
        await until(refuses, what="the refusal")
        collected.status = 200
        await until(writes, what="the recovery")
        log.append(line(3))
        log.close()

    assert [json.loads(each["body"])["status"] for each in collected.logs] == [1, 2, 3]
    assert collected.logs[0]["runfold.audit.status"] == 1
