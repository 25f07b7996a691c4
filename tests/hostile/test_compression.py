"""Compressed batches, batches that unpack to too much, and header names that are no text, sent to
every topic as an earlier version of Runfold created them.
"""

import json
import os
import sys
from asyncio import create_subprocess_exec, subprocess
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from tests.attacks import Stack, stack
from tests.builders import event
from tests.commands import command, differences_of
from tests.killing import ROUNDS
from tests.partitions import partition_of, topics_of
from tests.processes import Projections, projections, until
from tests.raw_batches import (
    CODECS,
    Raw,
    Sender,
    batch,
    compressed,
    encode_record,
    plain,
    sender,
    sized,
    varint,
)
from tests.servers import OwnSettings

from runfold import Run
from runfold.ids import new_log_id
from runfold.log.admin import LogAdmin
from runfold.log.catalog import bell_record, life_record
from runfold.log.ends import LogEnds
from runfold.log.shared import deciding
from runfold.log.uncompressed import COMPRESSION
from runfold.settings import Settings
from runfold.store.quarantine import run_id_of
from runfold_schemas.catalog import Life, Skip
from runfold_schemas.codec import encode, new_data
from runfold_schemas.data import Data
from runfold_schemas.events import UserMessage
from runfold_schemas.memories import bank_key, memory_key
from runfold_schemas.runs import RunOpened
from runfold_schemas.sessions import session_key
from runfold_schemas.topics import Partition

MEMORY_MB_MAX = 300
"""What a process may need beside what it needs anyway."""

MB = 1024 * 1024

BOMB_MB = min(600, 320 * ROUNDS)
"""More than a process may need. The broker unpacks it too, which takes seconds."""

SWEEP_SECONDS = 0.5

RECORDS = min(200_000, 20_000 * ROUNDS)
"""In one batch. Each of them becomes a dead letter."""


def bomb(codec: str, size: int) -> bytes:
    """A batch of one record of this size."""
    number, encode_with = CODECS[codec]
    return batch(1, encode_with(encode_record(Raw(bytes(size), b"life:r"), 0)), codec=number)


@pytest.fixture(scope="module")
def settings(module_settings: OwnSettings) -> Settings:
    """Each topic that is not uncompressed is altered soon, and then keeps what the test sets."""
    return module_settings(
        sweep_seconds=SWEEP_SECONDS,
    )


@pytest.fixture(scope="module")
def gzip_bomb() -> bytes:
    """A thousandth of what it unpacks to."""
    data = bomb("gzip", BOMB_MB * MB)
    assert len(data) < MB
    return data


@pytest.fixture(scope="module")
async def foreign(settings: Settings) -> AsyncIterator[Sender]:
    """Another producer, and shared topics that take batches as they are."""
    topics = topics_of(settings.prefix)
    async with sender(settings.kafka) as foreign:
        # They exist before a projector can find them as it wants them.
        async with LogAdmin.connect(settings.log()) as admin:
            await admin.create_shared_topics()
        for topic in (topics.catalog, *topics.shared):
            await foreign.set_compression(topic)
        yield foreign


@pytest.fixture(scope="module")
async def under_attack(
    settings: Settings, foreign: Sender, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    """A projector that has altered the shared topics once, as it does with each topic."""
    topics = topics_of(settings.prefix)
    async with stack(settings, tmp_path_factory.mktemp("stack")) as attacked:
        for topic in (topics.catalog, *topics.shared):
            await take_as_sent(foreign, topic)
        yield attacked


async def take_as_sent(foreign: Sender, topic: str) -> None:
    """Lets a topic take batches as they are, for good: it has never been as the sweep wants it, so
    that the sweep alters it now, and never again.
    """
    await until(lambda: is_uncompressed(foreign, topic), what="the sweep")
    await foreign.set_compression(topic)


async def is_uncompressed(foreign: Sender, topic: str) -> bool:
    return (COMPRESSION.items()) <= (await foreign.settings_of(topic)).items()


async def open_as_before(stack: Stack, foreign: Sender) -> tuple[Run, Partition]:
    """A run with a topic as an earlier version created it, which the sweep has not altered yet."""
    connection, log_id = stack.runfold.connection, new_log_id()
    life = Life(run_id=f"before-{log_id}", log_id=log_id, agent_id="a")
    run = connection.run_of(life, is_new=True)
    at = Partition(connection.topics.run(run.run_id, log_id), 0)
    await foreign.create(at.topic)
    await connection.open_topic(at.topic, run.event(new_data(RunOpened, agent_id="a", log_id=log_id)))
    await connection.announce(life)
    return run, at


async def opened(stack: Stack, foreign: Sender) -> tuple[Run, Partition]:
    """A run whose topic takes batches as they are, which no sweep alters back."""
    run, at = await open_as_before(stack, foreign)
    await take_as_sent(foreign, at.topic)
    return run, at


def raw_event(data: Data, run_id: str) -> Raw:
    return Raw(encode(event(data, run_id=run_id)))


async def folded(stack: Stack, at: Partition) -> bool:
    """Whether the projector has folded a shared topic's partition to its end."""
    async with projections(stack.settings) as stored, LogEnds.connect(stack.settings.log()) as ends:
        position = (await stored.stores.shared_positions.positions()).get(at, 0)
        return position >= (await ends.ends_of([at]))[at]


async def shows(stack: Stack, run: Run, offset: int) -> bool:
    """Whether the API shows the run with the event at that offset."""
    read = await stack.client.get(f"/v1/runs/{run.run_id}")
    return read.status_code == 200 and read.json()["next_offset"] > offset


async def kinds(stack: Stack, run: Run, *, min_offset: int) -> list[str]:
    """The events of a run as the API shows them."""
    read = await stack.client.get(f"/v1/runs/{run.run_id}/events", params={"min_offset": min_offset})
    assert read.status_code == 200, read.text
    return [one["event"]["type"] for one in read.json()["events"] if one["outcome"] == "accepted"]


async def quarantine(stack: Stack) -> list[dict[str, Any]]:
    listed = await stack.client.get("/v1/quarantine")
    assert listed.status_code == 200, listed.text
    return listed.json()["quarantine"]


async def skip_unreadable(stack: Stack, run: Run) -> None:
    """Waits until the run is in quarantine, and skips all that is there."""

    async def is_set_aside() -> bool:
        return f"run:{run.run_id}" in [entry["id"] for entry in await quarantine(stack)]

    await until(is_set_aside, seconds=120, what="the quarantine")
    for entry in await quarantine(stack):
        path = f"/v1/quarantine/{quote(entry['id'], safe='')}/skip"
        skipped = await stack.client.post(path, json={"offset": entry["offset"]})
        assert skipped.status_code == 202, skipped.text


async def test_compressed_records_of_a_run_count_as_any_other(under_attack: Stack, foreign: Sender):
    run, at = await opened(under_attack, foreign)
    async with under_attack.attacked("compressed records in a run"):
        for codec in CODECS:
            said = [raw_event(UserMessage(message="m" * 500), run.run_id) for _ in range(2)]
            await foreign.send(at, compressed(said, codec))
        after = await run.publish(UserMessage(message="after"))

        shown = await kinds(under_attack, run, min_offset=after.offset)
        assert shown.count("user_message") == 2 * len(CODECS) + 1
    async with projections(under_attack.settings) as stored:
        assert await stored.differences() == []


async def test_compressed_records_of_the_catalog_are_read(under_attack: Stack, foreign: Sender):
    run = await under_attack.runfold.open_run(agent_id="a")
    catalog = topics_of(under_attack.settings.prefix).catalog
    async with under_attack.attacked("compressed records in the catalog"):
        for codec in CODECS:
            announced = Life(run_id=f"{codec}-announced", log_id="gone", agent_id="a", deleted=True)
            records = [bell_record(run.run_id), life_record(announced), life_record(announced)]
            packed = compressed([Raw(one.value, one.key) for one in records], codec)
            for partition in range(12):
                await foreign.send(Partition(catalog, partition), packed)

            body = {"agent_id": "a", "run_id": f"after-{codec}"}
            opened = await under_attack.client.post("/v1/runs", json=body)
            assert opened.status_code == 201, opened.text


async def test_compressed_records_of_shared_topics_are_folded(under_attack: Stack, foreign: Sender):
    topics = topics_of(under_attack.settings.prefix)
    keys = [session_key("s"), memory_key("b", "m"), bank_key("b")]
    async with under_attack.attacked("compressed records in shared topics"):
        for key in keys:
            at = deciding(topics, key)
            for codec in CODECS:
                value = json.dumps({"no": "event" * 100}).encode()
                await foreign.send(at, compressed([Raw(value, key.encode())] * 3, codec))
            await until(lambda at=at: folded(under_attack, at), what=f"{at} is folded")


@pytest.mark.parametrize("codec", CODECS)
async def test_a_run_waits_at_a_batch_that_unpacks_to_too_much_and_nothing_else_does(
    under_attack: Stack, foreign: Sender, gzip_bomb: bytes, codec: str
):
    data = gzip_bomb if codec == "gzip" else bomb(codec, 100 * MB)
    topics = topics_of(under_attack.settings.prefix)
    run, at = await opened(under_attack, foreign)
    async with under_attack.attacked(f"{codec} bomb") as harm:
        shared = [deciding(topics, key) for key in (session_key("s"), memory_key("b", "m"), bank_key("b"))]
        if len(data) < MB:  # the catalog takes what Kafka takes by default
            shared.append(Partition(topics.catalog, partition_of(run.run_id)))
        for each in (at, *shared):
            await foreign.send(each, data)
        after = await run.publish(UserMessage(message="after"))

        for each in shared[:3]:
            await until(lambda each=each: folded(under_attack, each), what=f"{each} is folded")
        await skip_unreadable(under_attack, run)
        await until(lambda: shows(under_attack, run, after.offset), what="the event after the bomb")

    assert harm.grown_mb("projector") < MEMORY_MB_MAX


async def test_a_batch_of_the_catalog_that_cannot_be_read_stays_set_aside_when_it_is_tried_again(
    under_attack: Stack, foreign: Sender, gzip_bomb: bytes
):
    run = await under_attack.runfold.open_run(agent_id="a")
    at = Partition(topics_of(under_attack.settings.prefix).catalog, partition_of(run.run_id))
    await foreign.send(at, gzip_bomb)

    async def of_the_catalog() -> list[dict[str, Any]]:
        return [entry for entry in await quarantine(under_attack) if entry["topic"] == at.topic]

    async def is_set_aside() -> bool:
        return await of_the_catalog() != []

    await until(is_set_aside, what="the quarantine")
    [first] = await of_the_catalog()
    path = f"/v1/quarantine/{quote(first['id'], safe='')}"
    retried = await under_attack.client.post(f"{path}/retry")
    assert retried.status_code == 202, retried.text

    async def is_tried_again() -> bool:
        [entry] = await of_the_catalog()
        return entry["id"] == first["id"] and entry["attempts"] > first["attempts"]

    await until(is_tried_again, what="the second attempt")
    skipped = await under_attack.client.post(f"{path}/skip", json={"offset": first["offset"]})
    assert skipped.status_code == 202, skipped.text
    await until(lambda: is_gone(under_attack, first["id"]), what="the end of the quarantine")


async def is_gone(stack: Stack, entry_id: str) -> bool:
    return entry_id not in [entry["id"] for entry in await quarantine(stack)]


async def test_commands_are_silent_about_batches_that_an_operator_skipped(
    under_attack: Stack, foreign: Sender
):
    run, at = await opened(under_attack, foreign)
    await foreign.send(at, bomb("gzip", 40 * MB))
    after = await run.publish(UserMessage(message="after"))
    before = await command(under_attack.settings, "rebuild", run.run_id)
    await skip_unreadable(under_attack, run)
    await until(lambda: shows(under_attack, run, after.offset), what="the event after the batch")

    for arguments in (["verify", run.run_id], ["rebuild", run.run_id], ["rebuild"]):
        code, output = await command(under_attack.settings, *arguments)
        assert (code, at.topic in output) == (0, False), output
    assert f"{at.topic}, partition 0, cannot be read" in before[1]


async def test_nothing_folds_a_run_beyond_a_batch_that_nobody_skipped(
    under_attack: Stack, foreign: Sender, stored: Projections
):
    settings = under_attack.settings
    run, at = await opened(under_attack, foreign)
    async with under_attack.attacked("two bombs in a run"):
        await foreign.send(at, bomb("lz4", 100 * MB))
        between = await run.publish(UserMessage(message="between"))
        await foreign.send(at, bomb("lz4", 100 * MB))
        after = await run.publish(UserMessage(message="after"))
        second = range(between.offset + 1, after.offset)

        async def is_at(offset: int) -> bool:
            entries = await stored.stores.quarantine.all(kind="run")
            return (run.run_id, offset) in [(entry.name, entry.offset) for entry in entries]

        async def reached() -> set[int]:
            state = await stored.stores.runs.get(run.run_id)
            assert state is not None
            return {state.record.next_offset, await stored.pages.end(run.life.log_id, first_offset=0)}

        await until(lambda: is_at(between.offset - 1), what="the first in quarantine")
        skip = Skip(topic=at.topic, offset=between.offset - 1, next_offset=between.offset)
        await under_attack.runfold.connection.skip(skip)
        await until(lambda: is_at(second.start), what="the second in quarantine")
        assert await reached() == {second.start}
        code, output = await command(settings, "rebuild", run.run_id)
        assert (code, f"at offset {second.start} that cannot be read" in output) == (1, True), output
        assert await reached() == {second.start}
        assert await differences_of(settings, run.run_id) == []
    # A comparison waits as long as projectors get on, so no healthy run is beside. The worker knows
    # the entry from memory.
    await stored.stores.quarantine.remove([run_id_of(run.run_id)])
    found = {each.kind: each.offset for each in await differences_of(settings, run.run_id)}
    assert found["unreadable batch"] == second.start
    code, output = await command(settings, "verify", run.run_id, "--restore")
    assert (code, "cannot be restored" in output) == (1, True), output
    assert await reached() == {second.start}
    async with under_attack.attacked("a skip of the second bomb"):
        skip = Skip(topic=at.topic, offset=second.start, next_offset=second.stop)
        await under_attack.runfold.connection.skip(skip)
        await until(lambda: shows(under_attack, run, after.offset), what="the event after both")


async def test_a_header_name_that_is_no_text_is_shown_with_escapes(under_attack: Stack, foreign: Sender):
    run, at = await opened(under_attack, foreign)
    topics = topics_of(under_attack.settings.prefix)
    headers = [(b"h\xff", b"v"), (b"\xed\xa0\x80", None), (b"ok", b"\xff")]
    said = raw_event(UserMessage(message="hello"), run.run_id)._replace(headers=headers)
    async with under_attack.attacked("header names that are no text"):
        await foreign.send(at, plain([said]))
        bell = bell_record(run.run_id)
        for each in (
            Partition(topics.catalog, partition_of(run.run_id)),
            deciding(topics, session_key("s")),
        ):
            await foreign.send(each, plain([Raw(bell.value, bell.key, headers)]))
        after = await run.publish(UserMessage(message="after"))

        assert (await kinds(under_attack, run, min_offset=after.offset)).count("user_message") == 2
    async with projections(under_attack.settings) as stored:
        assert await stored.differences() == []
        pages = [page async for page in stored.pages.read(run.life.log_id)]
        (stored_headers,) = [r.headers for page in pages for r in page.records() if r.offset == 1]
        assert stored_headers == (("h\\xff", b"v"), ("\\xed\\xa0\\x80", None), ("ok", b"\xff"))


async def test_a_record_of_3_900_000_headers_stops_only_its_run(under_attack: Stack, foreign: Sender):
    run, at = await opened(under_attack, foreign)
    count = 3_900_000
    head = b"\x00" + varint(0) + varint(0) + sized(None) + sized(b"") + varint(count)
    body = head + bytes(2 * count)
    async with under_attack.attacked("3,900,000 headers"):
        await foreign.send(at, batch(1, varint(len(body)) + body))
        await skip_unreadable(under_attack, run)
        after = await run.publish(UserMessage(message="after"))

        await until(lambda: shows(under_attack, run, after.offset), what="the event after the headers")


async def test_a_batch_of_many_records_takes_little_memory(under_attack: Stack, foreign: Sender):
    run, at = await opened(under_attack, foreign)
    topics = topics_of(under_attack.settings.prefix)
    many = [Raw(None)] * RECORDS
    whole, packed = plain(many), compressed(many, "lz4")
    async with under_attack.attacked(f"{RECORDS} records in a batch") as harm:
        await foreign.send(at, whole)
        await foreign.send(deciding(topics, session_key("s")), packed)
        after = await run.publish(UserMessage(message="after"))

        await until(lambda: shows(under_attack, run, after.offset), what="the records")

    assert harm.grown_mb("projector") < MEMORY_MB_MAX


async def test_the_api_publishes_after_a_restart(under_attack: Stack, foreign: Sender):
    async with under_attack.attacked("a restart of the API"):
        run = await under_attack.runfold.open_run(agent_id="a")
    await under_attack.api.stop()
    await under_attack.api.start()

    async with under_attack.attacked("after the restart"):
        answer = await under_attack.client.post(
            f"/v1/runs/{run.run_id}/events", json={"type": "user_message", "data": {"message": "m"}}
        )
        assert answer.status_code == 201


async def test_a_client_without_the_codecs_passes_over_a_batch(under_attack: Stack, foreign: Sender):
    run, at = await opened(under_attack, foreign)
    hidden, shown = [raw_event(UserMessage(message=letter * 500), run.run_id) for letter in "mn"]
    await foreign.send(at, compressed([hidden], "zstd"))
    await foreign.send(at, compressed([shown], "gzip"))
    options = {"kafka": under_attack.settings.kafka, "prefix": under_attack.settings.prefix}
    program = f"""
import asyncio, sys
sys.modules["cramjam"] = None
from runfold import Runfold
async def main():
    async with Runfold(**{options}) as runfold:
        run = await runfold.get_run({run.run_id!r})
        print([getattr(event.data, "message", event.type)[:1] async for event in run.events()])
asyncio.run(main())
"""
    process = await create_subprocess_exec(
        sys.executable, "-c", program, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    printed, log = await process.communicate()

    assert printed.decode().strip() == "['r', 'n']", log.decode()
    assert "pip install runfold[server]" in log.decode().splitlines()[-1]
    assert log.decode().count(at.topic) == 1


async def test_a_topic_of_an_earlier_version_refuses_bombs_after_the_sweep(
    under_attack: Stack, foreign: Sender, gzip_bomb: bytes
):
    new = await under_attack.runfold.open_run(agent_id="a")
    created = await foreign.settings_of(
        under_attack.runfold.connection.topics.run(new.run_id, new.life.log_id)
    )
    run, at = await open_as_before(under_attack, foreign)
    await until(lambda: is_uncompressed(foreign, at.topic), what="the sweep")

    assert await foreign.settings_of(at.topic) == created
    assert (created["retention.ms"], created["max.message.bytes"]) == ("-1", str(8 * MB))
    assert await foreign.try_to_send(at, gzip_bomb) != 0
    for codec in CODECS:
        await foreign.send(at, compressed([raw_event(UserMessage(message="m" * 500), run.run_id)], codec))
