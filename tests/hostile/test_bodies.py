"""Bodies that were made to take memory or time: each is answered, takes less than 300 MB, and
requests beside it go on.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from tests.attacks import Stack
from tests.processes import until

MEMORY_MB_MAX = 300
"""What one body may cost."""

TOGETHER_MB_MAX = 256 + 200
"""What all bodies together may cost: the limit of their bytes, and what libraries reserve."""

M = 1024 * 1024
JSON, NDJSON = "application/json", "application/x-ndjson"
EVENTS, LEDGER = "/v1/runs/attacked/events", "/v1/runs/attacked/ledger"
ENGINE = "/v1beta1/reasoningEngines/123"


def many(part: bytes, size: int, *, by: bytes = b",") -> bytes:
    """As many copies of the part as fit into the size."""
    return by.join([part] * (size // (len(part) + len(by))))


def result(value: bytes) -> bytes:
    """An event with that value."""
    return b'{"type":"tool_result","data":{"tool_call_id":"c","result":%b}}' % value


def message(text: str, **fields: Any) -> bytes:
    return json.dumps({"type": "user_message", "data": {"message": text}, **fields}).encode()


ATTACKS: dict[str, tuple[str, str, Callable[[], bytes], int]] = {
    "a ledger of 60 MB": (LEDGER, JSON, lambda: b'{"messages":[%b]}' % many(b"[]", 60 * M), 413),
    "a ledger of 15 MB": (LEDGER, JSON, lambda: b'{"messages":[%b]}' % many(b"[]", 15 * M), 413),
    "a ledger of wrong messages": (LEDGER, JSON, lambda: b'{"messages":[%b]}' % many(b"1", 190_000), 422),
    "parts of 3.9 MB": (
        EVENTS,
        JSON,
        lambda: b'{"type":"user_message","data":{"message":"m","parts":[%b]}}' % many(b"{}", 3_900_000),
        413,
    ),
    "90,000 wrong parts": (
        EVENTS,
        JSON,
        lambda: b'{"type":"user_message","data":{"message":"m","parts":[%b]}}' % many(b"{}", 270_000),
        422,
    ),
    "95,000 wrong labels": (
        EVENTS,
        JSON,
        lambda: message("m", labels={f"{index:x}": 1 for index in range(95_000)}),
        422,
    ),
    "an array of arrays": (EVENTS, JSON, lambda: b"[%b]" % many(b"[]", 32 * M - 2), 422),
    "an array of objects": (EVENTS, JSON, lambda: b"[%b]" % many(b"{}", 32 * M - 2), 422),
    "arrays in an event": (EVENTS, JSON, lambda: b"[%b]" % result(b"[%b]" % many(b"[]", 31 * M)), 413),
    "objects in an event": (EVENTS, JSON, lambda: result(b"[%b]" % many(b'{"a":0}', 15 * M)), 413),
    "as many objects as are allowed": (
        EVENTS,
        JSON,
        lambda: result(b"[%b]" % many(b'{"a":0}', 390_000)),
        201,
    ),
    "numbers": (EVENTS, JSON, lambda: result(b"[%b]" % many(b"1", 15 * M)), 413),
    "long numbers": (EVENTS, JSON, lambda: result(b"[%b]" % many(b"1" * 38, 7 * M)), 201),
    "strings": (EVENTS, JSON, lambda: result(b"[%b]" % many(b'""', 15 * M)), 413),
    "depth": (EVENTS, JSON, lambda: b"[" * (32 * M), 422),
    "depth in objects": (EVENTS, JSON, lambda: b'[{"a":' * (32 * M // 6), 422),
    "keys": (EVENTS, JSON, lambda: result(b"{%b}" % many(b'"a":0', 15 * M)), 413),
    "escapes": (EVENTS, JSON, lambda: result(b'"%b"' % (b"\\u0041" * (15 * M // 6))), 201),
    "backslashes": (EVENTS, JSON, lambda: b'["' + b"\\" * (31 * M), 422),
    "quotes": (EVENTS, JSON, lambda: b"[" + b'"' * (31 * M), 422),
    "wide characters": (EVENTS, JSON, lambda: result('"😀'.encode() + b"a" * (15 * M) + b'"'), 413),
    "spaces": (EVENTS, JSON, lambda: b"[" + b" " * (31 * M) + b"]", 422),
    "a batch of lines": (EVENTS, NDJSON, lambda: many(message("Hello there"), 32 * M, by=b"\n"), 413),
    "a batch in an array": (EVENTS, JSON, lambda: b"[%b]" % many(message("Hello there"), 31 * M), 413),
    "long lines": (
        EVENTS,
        NDJSON,
        lambda: many(result(b"[%b]" % many(b"[]", 200_000)), 32 * M, by=b"\n"),
        413,
    ),
    "escapes in lines": (
        EVENTS,
        NDJSON,
        lambda: many(result(b'"%b"' % (b"\\u0041" * 50_000)), 31 * M, by=b"\n"),
        201,
    ),
    "empty lines": (EVENTS, NDJSON, lambda: b"\n" * (32 * M), 413),
    "tiny lines": (EVENTS, NDJSON, lambda: many(b"{}", 32 * M, by=b"\n"), 413),
    "a response": (
        "/v1/runs/attacked/responses?provider=anthropic",
        JSON,
        lambda: b'{"content":[%b]}' % many(b"[]", 280_000),
        413,
    ),
    "state": ("/v1/sessions", JSON, lambda: b'{"app":"a","state":{"x":[%b]}}' % many(b"[]", 15 * M), 413),
    "contents": (
        "/v1/banks/b/memories/generate",
        JSON,
        lambda: b'{"scope":{"a":"b"},"contents":[%b]}' % many(b"[]", 270_000),
        422,
    ),
    "topics": (
        "/v1/banks/b/memories",
        JSON,
        lambda: b'{"fact":"a","scope":{"a":"b"},"topics":[%b]}' % many(b"1", 190_000),
        422,
    ),
    "customizations": (
        "/v1/banks",
        JSON,
        lambda: b'{"config":{"customizations":[%b]}}' % many(b"{}", 270_000),
        201,
    ),
    "Google's event": (
        f"{ENGINE}/sessions/s:appendEvent",
        JSON,
        lambda: b'{"content":{"parts":[%b]}}' % many(b"[]", 270_000),
        400,
    ),
    "Google's groups": (
        f"{ENGINE}/memories:purge",
        JSON,
        lambda: b'{"filterGroups":[%b]}' % many(b"[]", 270_000),
        400,
    ),
    "Google's filter of 2 MB": (
        f"{ENGINE}/memories:purge",
        JSON,
        lambda: json.dumps({"filter": " OR ".join(['fact="a"'] * (2 * M // 12))}).encode(),
        400,
    ),
    "Google's filter of 8 MB": (
        f"{ENGINE}/memories:purge",
        JSON,
        lambda: json.dumps({"filter": " ( " * (8 * M // 3)}).encode(),
        400,
    ),
    "health": ("/health/live", JSON, lambda: b"x" * (60 * M), 405),
}


@pytest.fixture(scope="module")
async def attacked_run(under_attack: Stack) -> None:
    opened = await under_attack.client.post("/v1/runs", json={"run_id": "attacked", "agent_id": "a"})
    assert opened.status_code == 201
    # What is loaded at its first use is no cost of an attack.
    await under_attack.client.post(LEDGER, json={"messages": []})
    await under_attack.client.get(f"{ENGINE}/sessions")


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_body_takes_little_memory_and_stops_nobody(
    under_attack: Stack, attacked_run: None, name: str
):
    path, media_type, make, status = ATTACKS[name]
    body = make()

    async with under_attack.attacked(name, steps=1) as harm:
        answer = await under_attack.client.post(path, content=body, headers={"Content-Type": media_type})

    print(answer.status_code, answer.text[:200])
    assert answer.status_code == status
    assert harm.grown_mb("api") < MEMORY_MB_MAX


async def test_bodies_that_never_end_take_little_memory_together(under_attack: Stack, attacked_run: None):
    head = (
        f"POST {EVENTS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
        f"Content-Length: {32 * M}\r\n\r\n"
    ).encode()
    large = message("a" * M)

    async def send() -> tuple[asyncio.StreamWriter, asyncio.Task[bytes]]:
        """Sends nearly all of a body, and returns its answer, which may never come."""
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(under_attack.url).port)
        answering = asyncio.create_task(reader.readuntil(b"}"))
        writer.write(head)
        for _ in range(62):
            if not answering.done():
                writer.write(b" " * (M // 2))
                await writer.drain()
        return writer, answering

    async def passes() -> bool:
        answer = await under_attack.client.post(EVENTS, content=large, headers={"Content-Type": JSON})
        return answer.status_code == 201

    async with under_attack.attacked("40 bodies that never end", steps=1) as harm:
        sent = await asyncio.gather(*(send() for _ in range(40)))
        answers = [answering for _, answering in sent]
        await until(lambda: are_done(answers, 40 - 9), what="the refusals")
        refused = [answering.result() for answering in answers if answering.done()]
        assert all(b" 503 " in answer and b"retry-after" in answer.lower() for answer in refused)
        assert all(b"268,435,456 bytes" in answer for answer in refused)
        small = await under_attack.client.post(EVENTS, content=message("m"), headers={"Content-Type": JSON})
        assert small.status_code == 201
        for writer, answering in sent:
            answering.cancel()
            writer.close()

    assert harm.grown_mb("api") < TOGETHER_MB_MAX
    await until(passes, what="a large body after the others ended")


async def test_what_is_too_large_names_the_limit(under_attack: Stack, attacked_run: None):
    for body, media_type, limit in (
        (b"[" * (33 * M), JSON, "33,554,432 bytes"),
        (b'{"a":"%b"}' % (b"a" * 17 * M), JSON, "16,777,216 bytes"),
        (result(b"[%b]" % many(b"1", 500_000)), JSON, "200,000 values"),
        (b"\n" * 300_000, NDJSON, "200,000 lines"),
    ):
        answer = await under_attack.client.post(EVENTS, content=body, headers={"Content-Type": media_type})

        assert answer.status_code == 413, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert limit in answer.json()["detail"]


async def are_done(tasks: Sequence[asyncio.Task[bytes]], count: int) -> bool:
    return sum(task.done() for task in tasks) >= count


async def test_a_text_with_many_commas_is_published(under_attack: Stack, attacked_run: None):
    answer = await under_attack.client.post(
        EVENTS, content=message("a,[{" * 250_000), headers={"Content-Type": JSON}
    )

    assert answer.status_code == 201, answer.text


async def test_a_large_batch_is_published(under_attack: Stack, attacked_run: None):
    body = b"[%b]" % b",".join([message("Hello")] * 10_000)

    async with under_attack.attacked("an ordinary batch of 10,000 events", steps=1):
        answer = await under_attack.client.post(EVENTS, content=body, headers={"Content-Type": JSON})

    assert answer.status_code == 201, answer.text
    assert len(answer.json()["positions"]) == 10_000
