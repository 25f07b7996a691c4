"""Records that no program of ours writes, on every topic: each has its outcome in bounded time and
memory, and the projector goes on.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.attacks import Stack
from tests.builders import event
from tests.killing import ROUNDS
from tests.partitions import partition_of
from tests.records import ONE_OF_EACH

from runfold import Run, UserMessage
from runfold.log.publisher import Outgoing
from runfold_schemas.codec import encode
from runfold_schemas.memories import bank_key, memory_key
from runfold_schemas.sessions import app_scope, session_key

MEMORY_MB_MAX = 300
SECONDS_MAX = 120

SIZE = 7_500_000


def value_of(kind: str, data: bytes, *, run_id: str = "-", **more: bytes) -> bytes:
    fields = b"".join(b',"%b":%b' % (name.encode(), value) for name, value in more.items())
    return b'{"event_id":"%b","run_id":%b,"timestamp":"2030-01-02T03:04:05Z","type":"%b","data":%b%b}' % (
        str(uuid4()).encode(),
        json.dumps(run_id).encode(),
        kind.encode(),
        data,
        fields,
    )


def many(part: bytes, size: int = SIZE) -> bytes:
    return b",".join([part] * (size // (len(part) + 1)))


def labels(value: bytes) -> bytes:
    return b"{%b}" % b",".join(b'"%x":%b' % (index, value) for index in range(600_000))


# Wrong data of run events: refused at the first fault.
WRONG: dict[str, Callable[[str], bytes]] = {
    "wrong parts": lambda run: value_of(
        "user_message", b'{"message":"m","parts":[%b]}' % many(b"{}"), run_id=run
    ),
    "parts that are numbers": lambda run: value_of(
        "user_message", b'{"message":"m","parts":[%b]}' % many(b"1"), run_id=run
    ),
    "wrong labels": lambda run: value_of("user_message", b'{"message":"m"}', run_id=run, labels=labels(b"1")),
    "wrong stand-ins": lambda run: value_of(
        "event_amended", b'{"offset":1,"reason":"r","stand_ins":[%b]}' % many(b"{}"), run_id=run
    ),
    "wrong attachments": lambda run: value_of(
        "tool_result", b'{"tool_call_id":"c","attachments":[%b]}' % many(b"{}"), run_id=run
    ),
    "wrong memories": lambda run: value_of(
        "memories_generated", b'{"bank_id":"b","created":[%b]}' % many(b"{}"), run_id=run
    ),
    "depth": lambda run: b"[" * SIZE,
    "quotes": lambda run: b'"' * SIZE,
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_record_of_a_run_is_a_dead_letter(under_attack: Stack, name: str):
    run = await under_attack.runfold.open_run(agent_id="a", run_id=f"wrong-{uuid4()}")
    value = WRONG[name](run.run_id)

    async with under_attack.attacked(name, steps=1) as harm:
        await publish_to_run(under_attack, run, value)
        outcomes = await outcomes_of(under_attack, run)

    assert outcomes == ["accepted", "undecodable", "accepted"]
    assert harm.grown_mb("projector") < MEMORY_MB_MAX


def memory_of(memory_id: str, more: bytes) -> bytes:
    fields = b'"bank_id":"b","memory_id":"%b","memory":{"fact":"f","scope":{"a":"b"},%b}'
    return value_of("memory_created", b"{%b}" % (fields % (memory_id.encode(), more)))


def bank_of(bank_id: str, more: bytes) -> bytes:
    return value_of("bank_created", b'{"bank_id":"%b","config":{%b}}' % (bank_id.encode(), more))


FILL = b',"y":"%b"' % (b"a" * 7_000_000)

# Values whose stored form is several times as long, and as many of them as there may be.
LONG: dict[str, tuple[str, str, str, bytes]] = {
    "a memory of numbers": (
        "memories",
        memory_key("b", "numbers"),
        "/v1/banks/b/memories/numbers",
        memory_of("numbers", b'"x":[%b]' % many(b"1e15", 990_000) + FILL),
    ),
    "a memory of topics": (
        "memories",
        memory_key("b", "topics"),
        "/v1/banks/b/memories/topics",
        memory_of("topics", b'"topics":[%b]' % many(b'{"custom":"a"}', 990_000) + FILL),
    ),
    "a bank of customizations": (
        "banks",
        bank_key("long"),
        "/v1/banks/long",
        bank_of("long", b'"customizations":[%b]' % many(b"{}", 299_000) + FILL),
    ),
}


@pytest.mark.parametrize("name", LONG)
async def test_what_takes_the_most_room_is_stored(under_attack: Stack, name: str):
    topic, key, path, value = LONG[name]

    async with under_attack.attacked(name, steps=1):
        await under_attack.client.post("/v1/banks", json={"bank_id": "b"})
        await publish_shared(under_attack, topic, key, value)
        await shared_topics_go_on(under_attack)

    assert (await under_attack.client.get(path)).status_code == 200


@pytest.mark.parametrize("part", [b"1e15", b"{}"])
async def test_a_memory_of_too_many_values_is_a_dead_letter(under_attack: Stack, part: bytes):
    value = memory_of("many", b'"x":[%b]' % many(part, 6_000_000))

    async with under_attack.attacked(f"a memory of {part.decode()}", steps=1):
        await publish_shared(under_attack, "memories", memory_key("b", "many"), value)
        await shared_topics_go_on(under_attack)

    assert (await under_attack.client.get("/v1/banks/b/memories/many")).status_code == 404


async def test_an_event_of_too_many_values_is_a_dead_letter(under_attack: Stack):
    run = await under_attack.runfold.open_run(agent_id="a", run_id=f"many-{uuid4()}")
    data = b'{"tool_call_id":"c","result":[%b]}' % many(b"[]")

    async with under_attack.attacked("an event of lists") as harm:
        await publish_to_run(under_attack, run, value_of("tool_result", data, run_id=run.run_id))
        outcomes = await outcomes_of(under_attack, run)

    assert outcomes == ["accepted", "undecodable", "accepted"]
    assert harm.grown_mb("projector") < MEMORY_MB_MAX


async def test_state_of_long_numbers_is_stored(under_attack: Stack):
    run = await under_attack.runfold.open_run(agent_id="a", run_id=f"state-{uuid4()}")
    numbers = many(b"7e15", 990_000)

    async with under_attack.attacked("state that grows"):
        for name in (b"a", b"b", b"c", b"d", b"e"):
            state = b'{"%b":[%b]}' % (name, numbers)
            await publish_to_run(
                under_attack, run, value_of("state_changed", b"{}", run_id=run.run_id, state_delta=state)
            )

        assert await outcomes_of(under_attack, run) == ["accepted"] * 7


_IDS = st.text(st.sampled_from('\0$./\\"%:é😀a'), max_size=6)
_SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | _IDS | st.sampled_from([1e15, 1e308])
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_IDS, inner, max_size=3),
    max_leaves=8,
)
_BYTES = st.binary(max_size=30) | _JSON.map(lambda value: json.dumps(value).encode())
_KNOWN = [json.loads(encode(event(data))) for data in ONE_OF_EACH]


@st.composite
def _records(draw: st.DrawFn) -> tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """A topic, a key, a value and headers: often nearly an event."""
    topic = draw(st.sampled_from(["run", "runs", "sessions", "memories", "banks"]))
    if draw(st.integers(0, 3)) == 0:
        value: bytes | None = draw(st.none() | _BYTES)
    else:
        fields: dict[str, Any] = dict(draw(st.sampled_from(_KNOWN)))
        fields["event_id"] = str(uuid4())
        fields["data"] = {**fields["data"]}
        for name in draw(st.lists(st.sampled_from([*fields["data"], "extra"]), max_size=2)):
            fields["data"][name] = draw(_JSON)
        for name in draw(st.lists(st.sampled_from([*fields, "state_delta", "labels"]), max_size=1)):
            fields[name] = draw(_JSON)
        value = json.dumps(fields).encode()
    keys = [session_key("s"), memory_key("b", "m"), bank_key("b"), app_scope("a"), "life:x", "bell:x"]
    key = draw(st.none() | st.binary(max_size=8) | st.sampled_from([key.encode() for key in keys]))
    names = st.sampled_from(
        ["ce_id", "ce_type", "x", "content-type", "traceparent", "rf_mac", "runfold-origin-topic"]
    )
    return topic, key, value, draw(st.lists(st.tuples(names, st.none() | st.binary(max_size=9)), max_size=2))


async def test_records_of_any_content_stop_nobody(under_attack: Stack):
    run = await under_attack.runfold.open_run(agent_id="a", run_id=f"any-{uuid4()}")
    records: list[tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = []

    @hypothesis_settings(max_examples=100 * ROUNDS, database=None, suppress_health_check=list(HealthCheck))
    @given(_records())
    def collect(record: tuple[str, bytes | None, bytes | None, list[tuple[str, bytes | None]]]) -> None:
        records.append(record)

    collect()
    connection = under_attack.runfold.connection
    names = {"run": connection.topics.run(run.run_id, run.life.log_id)}
    began = time.monotonic()
    async with under_attack.attacked("records of any content"):
        for topic, key, value, headers in records:
            # The events of the corpus belong to a run of their own.
            own = value.replace(b'"run-1"', json.dumps(run.run_id).encode()) if value is not None else None
            record = Outgoing(key or b"", own, headers)
            name = names.get(topic) or f"{connection.topics.prefix}.{topic}"
            partition = 0 if topic == "run" or key is None else partition_of(key.decode(errors="replace"))
            await connection.publisher.wait(
                await connection.publisher.send(name, record, partition=partition)
            )
        outcomes = await outcomes_of(under_attack, run)
        await shared_topics_go_on(under_attack)

    assert outcomes
    assert time.monotonic() - began < SECONDS_MAX * 2
    for read in ("/v1/runs", "/v1/sessions", "/v1/banks", "/v1/apps/a/state"):
        answer = await under_attack.client.get(read)
        assert answer.status_code == 200, (read, answer.text[:300])


async def publish_to_run(under_attack: Stack, run: Run, value: bytes) -> None:
    connection = under_attack.runfold.connection
    topic = connection.topics.run(run.run_id, run.life.log_id)
    record = Outgoing(run.run_id.encode(), value)
    await connection.publisher.wait(await connection.publisher.send(topic, record))


async def publish_shared(under_attack: Stack, topic: str, key: str, value: bytes) -> None:
    connection = under_attack.runfold.connection
    name = f"{connection.topics.prefix}.{topic}"
    record = Outgoing(key.encode(), value)
    await connection.publisher.wait(
        await connection.publisher.send(name, record, partition=partition_of(key))
    )


async def outcomes_of(under_attack: Stack, run: Run) -> list[str]:
    """The outcomes of the run's records, when a further event is projected too."""
    position = await run.publish(UserMessage(message="after it"), late=True)
    outcomes: list[str] = []
    async with asyncio.timeout(SECONDS_MAX):
        # An answer has 4 MB at the most, or one record.
        while len(outcomes) <= position.offset:
            parameters = {"outcome": "all", "limit": 1000, "first_offset": len(outcomes)}
            answer = await under_attack.client.get(f"/v1/runs/{run.run_id}/events", params=parameters)
            assert answer.status_code == 200, answer.text[:500]
            outcomes += [record["outcome"] for record in answer.json()["events"]]
            await asyncio.sleep(0.05)
    return outcomes


async def shared_topics_go_on(under_attack: Stack) -> None:
    """A bank, a memory and a session can be created, so their topics are folded."""
    name = f"beside-{uuid4()}"
    for path, body in (
        ("/v1/banks", {"bank_id": name}),
        (f"/v1/banks/{name}/memories", {"fact": "f", "scope": {"a": "b"}}),
        ("/v1/sessions", {"app": name, "user": "u"}),
    ):
        key = {"Idempotency-Key": name}
        async with asyncio.timeout(SECONDS_MAX):
            # A record of millions of items takes the projector seconds.
            while True:
                answer = await under_attack.client.post(path, json=body, headers=key)
                if answer.status_code not in {503, 504}:
                    break
        assert answer.status_code in {200, 201}, (path, answer.text[:500])
