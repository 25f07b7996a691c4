"""The index of dead letters: copies, retention, compaction, headers of producers."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from runfold.log.publisher import Outgoing
from runfold.log.settings import LogSettings
from runfold.projector.dead_letters import DeadLetterTopic, dead_letter
from runfold.query import dead_letters
from runfold.query.dead_letters import DeadLetters
from runfold_projections.admission import SKIPPED, Admission, Admitted
from runfold_schemas.codec import Record
from runfold_schemas.errors import DeadLetterNotFoundError
from runfold_schemas.topics import Topics

ORIGIN = "runfold.sessions-1"
TRACE = (
    "runfold-requeued",
    b'{"run_id":"r","offset":3,"event_id":"e","by":"key:0123456789abcdef","at":"2026-01-01T00:00:00Z"}',
)
OWN = (("runfold-origin-topic", ORIGIN.encode()), ("runfold-reason", b"no JSON"))


class Topic:
    """A topic of dead letters in memory."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.begin = self.end = 0
        self.read: list[int] = []

    def bury(self, offset: int, *headers: tuple[str, bytes], value: bytes = b"{}") -> str:
        """Appends a copy of the dead letter of this offset. Returns its id."""
        letter_id = f"{ORIGIN}:{offset}"
        self.records[self.end] = Record(self.end, 1000, letter_id.encode(), headers or OWN, value)
        self.end += 1
        return letter_id


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()

    async def offset_range(*_: Any) -> tuple[int, int]:
        return topic.begin, topic.end

    async def read(*_: Any, first_offset: int, end: int, **__: Any) -> AsyncIterator[list[Record]]:
        offsets = [offset for offset in sorted(topic.records) if first_offset <= offset < end]
        topic.read += offsets
        yield [topic.records[offset] for offset in offsets]

    monkeypatch.setattr(dead_letters, "offset_range", offset_range)
    monkeypatch.setattr(dead_letters, "read", read)
    return topic


@pytest.fixture
def letters() -> DeadLetters:
    return DeadLetters(LogSettings(kafka="localhost:9092"))


async def listed(letters: DeadLetters) -> list[str]:
    return [entry.id for entry in (await letters.list(limit=1000)).dead_letters]


async def test_a_letter_is_read_at_its_newest_copy(topic: Topic, letters: DeadLetters):
    first, second = topic.bury(1), topic.bury(2)
    assert await listed(letters) == [second, first]
    topic.bury(1, *OWN, TRACE)
    del topic.records[0]  # by compaction

    assert await listed(letters) == [second, first]
    shown = await letters.get(first, sealing=None)
    assert shown.requeued is not None
    assert await letters.count() == 1


async def test_letters_that_the_topic_has_no_longer_are_not_listed(topic: Topic, letters: DeadLetters):
    old, again, new = topic.bury(1), topic.bury(2), topic.bury(3)
    topic.bury(2, *OWN, TRACE)
    assert await listed(letters) == [new, again, old]
    topic.begin = 3

    assert await listed(letters) == [again]
    with pytest.raises(DeadLetterNotFoundError):
        await letters.get(old, sealing=None)


async def test_a_topic_that_was_made_anew_is_read_anew(topic: Topic, letters: DeadLetters):
    for offset in range(3):
        topic.bury(offset)
    assert len(await listed(letters)) == 3
    topic.records, topic.end = {}, 0
    new = topic.bury(9)

    assert await listed(letters) == [new]


async def test_a_count_without_patience_leaves_the_reading_at_work(
    topic: Topic, letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
):
    topic.bury(1)
    begun, may_end, read = asyncio.Event(), asyncio.Event(), dead_letters.read

    async def slow_read(*_: Any, **options: Any) -> AsyncIterator[list[Record]]:
        begun.set()
        await may_end.wait()
        async for records in read(**options):
            yield records

    monkeypatch.setattr(dead_letters, "read", slow_read)
    count = asyncio.create_task(letters.count())
    await begun.wait()
    count.cancel()
    with pytest.raises(asyncio.CancelledError):
        await count
    topic.bury(2)
    may_end.set()

    assert await letters.count() == 2
    assert topic.read == [0, 1]  # each record once


async def test_headers_of_the_producer_are_no_trace(topic: Topic, letters: DeadLetters):
    forged = topic.bury(1, TRACE, ("runfold-cut", b"true"), *OWN)
    topic.bury(2, *OWN, TRACE)
    topic.bury(3, *OWN, ("runfold-cut", b"true"))

    entries = {entry.id: entry for entry in (await letters.list(limit=5)).dead_letters}

    assert [(each.requeued is not None, each.is_cut) for each in entries.values()] == [
        (False, True),
        (True, False),
        (False, False),
    ]
    assert entries[forged].reason == "no JSON"


def test_a_dead_letter_has_no_header_that_its_producer_forged():
    headers = (TRACE, ("runfold-cut", b"true"), ("traceparent", b"00"))
    record = Record(5, 1000, b"r-1", headers, b"\xff")

    buried = dead_letter("runfold.run.r-1.0198", Admitted(record, "undecodable", None, "no JSON"))

    assert [name for name, _ in buried.headers] == [
        "traceparent",
        "runfold-origin-topic",
        "runfold-origin-offset",
        "runfold-reason",
    ]


async def test_few_large_letters_are_read(
    topic: Topic, letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dead_letters, "LISTED_BYTES_MAX", 20_000)
    for offset in range(1_000):
        topic.bury(offset, value=b"x" * 1_000)

    assert await listed(letters) == [f"{ORIGIN}:{offset}" for offset in range(999, 949, -1)]
    assert len(topic.read) == 50


MARKER = "Ann's card 4711"
EVENT = {
    "event_id": "0198a5a0-0000-7000-8000-000000000001",
    "run_id": "r-1",
    "timestamp": "2026-01-01T00:00:00Z",
    "type": "user_message",
    "data": {"message": "x"},
}


async def buried(caplog: pytest.LogCaptureFixture, admitted: Admitted, *, has_keys: bool) -> str:
    """All that the topic and the log have of a dead letter."""
    sent: list[Outgoing] = []

    async def send(_: str, outgoing: Outgoing) -> None:
        sent.append(outgoing)

    async def wait(_: None) -> None:
        pass

    async def look_for_keys() -> bool:
        return has_keys

    publisher: Any = SimpleNamespace(send=send, wait=wait)
    caplog.clear()
    await DeadLetterTopic(Topics("t"), publisher, look_for_keys).bury([("t.run.r-1.0198", admitted)])
    return f"{sent} {caplog.messages}"


@pytest.mark.parametrize(
    ("change", "header", "reason"),
    [
        ({"type": MARKER}, None, "union_tag_invalid"),
        ({"run_id": MARKER}, None, "the event has no place in this topic"),
        ({"labels": {MARKER: 7}}, None, "labels: string_type"),
        (
            {"data": {"message": "x", "parts": [{"type": MARKER}]}},
            None,
            "data.parts.0: union_tag_invalid",
        ),
        (
            {"data": {"message": "x", "parts": [{"type": "text", "text": [MARKER]}]}},
            None,
            "data.parts.0.text",
        ),
        ({}, ("ce_type", MARKER.encode()), "header ce_type contradicts the event"),
        ({}, ("ce_id", MARKER.encode()), "header ce_id contradicts the event"),
    ],
)
async def test_no_reason_of_an_encrypted_tenant_quotes_the_record(
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any],
    header: tuple[str, bytes] | None,
    reason: str,
):
    value = json.dumps(EVENT | change).encode()
    admitted = Admission("r-1").admit(Record(0, 1, None, (header,) if header else (), value))
    assert admitted.outcome == "undecodable"

    assert str(admitted.reason) in (await buried(caplog, admitted, has_keys=False)).replace("\\'", "'")
    texts = await buried(caplog, admitted, has_keys=True)
    assert "4711" not in texts
    assert texts.count(reason) == 2


async def test_a_record_that_was_skipped_is_not_decoded_for_its_reason(caplog: pytest.LogCaptureFixture):
    skipped = Admitted(Record(0, 1, None, (), b"{}"), "undecodable", None, SKIPPED)
    assert SKIPPED in await buried(caplog, skipped, has_keys=True)
