"""The quarantine over HTTP and by `runfold quarantine`. No projector runs here: `standing_in` acts
in its place, so each answer is known beforehand.
"""

import asyncio
import json
import os
import pty
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from subprocess import PIPE, STDOUT
from typing import NamedTuple
from urllib.parse import quote

import httpx
import pytest
from tests.forking import runfold_process
from tests.ingesting import is_ready
from tests.processes import (
    Projections,
    append_raw,
    environment,
    projections,
    reaches,
    soonest,
    until,
    working,
)
from tests.querying import ready_api, served

from runfold import HttpOperations, InvalidEventError, Run, Runfold, UserMessage
from runfold.api.app import build_app
from runfold.log.catalog_view import CatalogView
from runfold.settings import Settings
from runfold.store.quarantine import Quarantined, QuarantineStore, key_id_of, run_id_of
from runfold_schemas.topics import Topics

END_SECONDS = 180
REASON = "ValueError: \x1b[31mno\x1b[0m"
POISON = b'{"type": "\x1b[2Jpoison"}' + b" " * 300


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


async def command(settings: Settings, *arguments: str) -> Ended:
    """`runfold` as a process."""
    process = await runfold_process(
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env=environment(settings) | {"NO_COLOR": "1", "COLUMNS": "200"},
    )
    async with asyncio.timeout(END_SECONDS):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, output.decode(), errors.decode())


@pytest.fixture(scope="module")
async def stored(settings: Settings) -> AsyncIterator[Projections]:
    async with projections(settings) as stored:
        yield stored


@pytest.fixture(scope="module")
def quarantine(stored: Projections) -> QuarantineStore:
    return stored.stores.quarantine


@pytest.fixture(scope="module")
async def api(settings: Settings, stored: Projections) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_api(settings) as client:
        yield client


@pytest.fixture
async def entry(
    settings: Settings, stored: Projections, runfold: Runfold, run: Run, quarantine: QuarantineStore
) -> AsyncIterator[Quarantined]:
    """The run in quarantine at its third record. Two records are in MongoDB, and a fourth
    follows.
    """
    topic = Topics(settings.prefix).run(run.run_id, run.life.log_id)
    entry = Quarantined(run_id_of(run.run_id), "run", topic, 0, 2, 3, 5, REASON, datetime.now(UTC))
    await quarantine.add(entry)
    yield entry
    await quarantine.remove([each.id for each in await quarantine.all()])


@pytest.fixture
async def run(settings: Settings, stored: Projections, runfold: Runfold) -> Run:
    run = await runfold.open_run(agent_id="a")
    async with working(settings, stored.edition):
        await run.publish(UserMessage(message="hi"))
        await until(lambda: reaches(stored, run, 1), what="the state of the run")
    await append_raw(runfold, run, POISON)
    await run.publish(UserMessage(message="still there?"))
    return run


@asynccontextmanager
async def standing_in(
    quarantine: QuarantineStore,
    entry_id: str,
    *,
    asked: Callable[[], Awaitable[bool]],
    then: Quarantined | None = None,
) -> AsyncIterator[None]:
    """Acts once it was asked, as a projector does: the entry goes, or is there once more as
    `then`.
    """

    async def act() -> None:
        await until(asked, what="the command's request")
        if then is not None:
            await quarantine.add(then)
        else:
            await quarantine.remove([entry_id])

    acting = asyncio.create_task(act())
    yield
    await acting


async def skips_of(settings: Settings, run: Run) -> frozenset[range]:
    topic = Topics(settings.prefix).run(run.run_id, run.life.log_id)
    async with CatalogView.connect(settings.log()) as view:
        return await view.skips_of(run.run_id, topic)


async def test_what_is_in_quarantine_is_listed(settings: Settings, entry: Quarantined):
    listed = await command(settings, "quarantine", "ls")
    document = json.loads((await command(settings, "quarantine", "ls", "--json", "--kind", "run")).output)
    keys = await command(settings, "quarantine", "ls", "--kind", "key")

    assert listed.code == 0
    assert entry.id in listed.output
    assert "ValueError:" in listed.output
    assert "\x1b" not in listed.output
    assert document["id"] == entry.id
    assert (document["kind"], document["offset"], document["reason"]) == ("run", 2, REASON)
    assert (keys.output, keys.errors.strip()) == ("", "nothing is in quarantine")


async def test_many_entries_are_listed_by_kind_and_counted(
    settings: Settings, entry: Quarantined, quarantine: QuarantineStore
):
    others = ["record:t-0:7", "key:bank:b", "run:z", "run:a"]
    for other in others:
        await quarantine.add(entry._replace(id=other, kind=other.partition(":")[0]))

    listed = (await command(settings, "quarantine", "ls")).output.splitlines()

    assert sorted([entry.id, "run:z", "run:a"]) == [line.split()[0] for line in listed[1:4]]
    assert [line.split()[0] for line in listed[4:6]] == ["key:bank:b", "record:t-0:7"]
    assert listed[6] == "3 runs, 1 key, 1 record"


async def test_an_entry_is_shown_with_its_record_whatever_bytes_it_has(
    settings: Settings, entry: Quarantined
):
    shown = await command(settings, "quarantine", "show", entry.name)
    document = json.loads((await command(settings, "quarantine", "show", entry.id, "--json")).output)

    assert shown.code == 0
    assert f"offset 2 of {entry.topic}, partition 0" in shown.output
    assert f"{len(POISON)} bytes at offset 2" in shown.output
    assert r'{"type": "\x1b[2Jpoison"}' in shown.output
    assert "\x1b" not in shown.output
    assert (document["record"]["offset"], document["record"]["bytes"]) == (2, len(POISON))


async def test_what_is_not_in_quarantine_is_an_error_in_one_line(settings: Settings, stored: Projections):
    for verb in ("show", "retry", "skip"):
        ended = await command(settings, "quarantine", verb, "nobody")

        assert ended.code == 1
        assert "nobody is not in quarantine" in ended.errors
        assert len(ended.errors.splitlines()) == 1


async def test_a_retry_says_what_became_of_it(
    settings: Settings, entry: Quarantined, quarantine: QuarantineStore
):
    unheard = await command(settings, "quarantine", "retry", entry.id, "--wait", "0.5")
    requests = await quarantine.requests({5})

    async def asked() -> bool:
        return await quarantine.begin(entry.id) is not None

    assert await asked()
    async with standing_in(quarantine, entry.id, asked=asked, then=entry._replace(reason="still wrong")):
        failed = await command(settings, "quarantine", "retry", entry.name)
    async with standing_in(quarantine, entry.id, asked=asked):
        done = await command(settings, "quarantine", "retry", "--all")

    assert requests[entry.id] == "retry"
    assert (unheard.code, failed.code, done.code) == (1, 1, 0)
    assert "no projector has acted on it yet" in unheard.output
    assert f"{entry.id}: in quarantine again, at offset 2: still wrong" in failed.output
    assert f"{entry.id}: goes on at offset 3" in done.output


async def test_a_skip_is_in_the_catalog_and_says_where_the_run_goes_on(
    settings: Settings, entry: Quarantined, run: Run, quarantine: QuarantineStore
):
    async def asked() -> bool:
        return bool(await skips_of(settings, run))

    async with standing_in(quarantine, entry.id, asked=asked):
        done = await command(settings, "quarantine", "skip", entry.name)

    assert (done.code, done.output.strip()) == (0, f"{entry.id}: goes on at offset 3")
    assert await skips_of(settings, run) == {range(2, 3)}
    events = [event.type async for event in run.events()]
    assert events == ["run_opened", "user_message", "user_message"]


async def test_on_a_terminal_a_skip_asks_first(settings: Settings, entry: Quarantined, run: Run):
    here, there = pty.openpty()
    process = await runfold_process(
        *("quarantine", "skip", entry.name),
        stdin=there,
        stdout=PIPE,
        stderr=STDOUT,
        env=environment(settings),
    )
    os.write(here, b"n\n")
    async with asyncio.timeout(END_SECONDS):
        output, _ = await process.communicate()
    os.close(here)
    os.close(there)

    assert process.returncode == 1
    assert f"{entry.id}: offset 2 of {entry.topic}: ValueError:" in output.decode()
    assert "Skip these records for good?" in output.decode()
    assert b"\x1b" not in output
    assert await skips_of(settings, run) == frozenset()


async def test_a_run_without_its_log_has_no_record_to_skip(
    settings: Settings, entry: Quarantined, quarantine: QuarantineStore, api: httpx.AsyncClient
):
    await quarantine.add(entry._replace(next_offset=entry.offset))

    shown = await command(settings, "quarantine", "show", entry.id)
    skipped = await command(settings, "quarantine", "skip", entry.id)
    answer = await api.post(f"/v1/quarantine/{quote(entry.id)}/skip", json={"offset": entry.offset})

    assert "the log is missing, or ends before this offset" in shown.output
    assert skipped.code == 1
    assert "no record that could be skipped" in skipped.errors
    assert answer.status_code == 422


async def test_verify_names_what_is_in_quarantine_and_compares_what_is_folded(
    settings: Settings, entry: Quarantined
):
    one = await command(settings, "verify", entry.name)

    assert one.code == 3
    assert f"in quarantine: {entry.id} at offset 2: ValueError:" in one.output
    assert "1 runs compared with the log, 0 differences, 1 in quarantine" in one.output


async def test_lists_over_http_have_pages_and_a_filter(
    api: httpx.AsyncClient, entry: Quarantined, quarantine: QuarantineStore
):
    key = entry._replace(id=key_id_of("session:a/b"), kind="key", topic="t.sessions")
    await quarantine.add(key)

    first = (await api.get("/v1/quarantine", params={"limit": 1})).json()
    second = (await api.get("/v1/quarantine", params={"limit": 1, "cursor": first["next_cursor"]})).json()
    runs = (await api.get("/v1/quarantine", params={"kind": "run"})).json()
    read = await api.get(f"/v1/quarantine/{quote(key.id, safe='')}")

    assert [each["id"] for page in (first, second) for each in page["quarantine"]] == [key.id, entry.id]
    assert second["next_cursor"] is None
    assert [each["id"] for each in runs["quarantine"]] == [entry.id]
    assert (read.status_code, read.json()["topic"]) == (200, "t.sessions")


async def test_actions_over_http_are_requests(
    api: httpx.AsyncClient, settings: Settings, entry: Quarantined, run: Run, quarantine: QuarantineStore
):
    path = f"/v1/quarantine/{quote(entry.id, safe='')}"

    retried = await api.post(f"{path}/retry")
    requests = await quarantine.requests({5})
    outdated = await api.post(f"{path}/skip", json={"offset": 1})
    none_yet = await skips_of(settings, run)
    skipped = [await api.post(f"{path}/skip", json={"offset": 2}) for _ in range(2)]
    unknown = [
        await api.request(method, f"/v1/quarantine/run%3Anobody{action}", json=body)
        for method, action, body in (
            ("GET", "", None),
            ("POST", "/retry", None),
            ("POST", "/skip", {"offset": 0}),
        )
    ]

    assert (retried.status_code, retried.json()["id"]) == (202, entry.id)
    assert requests[entry.id] == "retry"
    assert (outdated.status_code, outdated.json()["field"]) == (422, "offset")
    assert none_yet == frozenset()
    assert [each.status_code for each in skipped] == [202, 202]
    assert await skips_of(settings, run) == {range(2, 3)}
    assert [each.status_code for each in unknown] == [404, 404, 404]


async def test_the_client_over_http_has_the_same(settings: Settings, entry: Quarantined, run: Run):
    async with served(build_app(settings)) as client, HttpOperations(str(client.base_url)) as operations:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        listed, _ = await operations.quarantine("run")
        read = await operations.quarantined(entry.id)
        retried = await operations.retry(entry.id)
        with pytest.raises(InvalidEventError, match="the entry is about offset 2"):
            await operations.skip(entry.id, offset=1)
        skipped = await operations.skip(entry.id, offset=read.offset)

    assert listed == [read] == [retried] == [skipped]
    assert (read.kind, read.offset, read.reason) == ("run", 2, REASON)
    assert await skips_of(settings, run) == {range(2, 3)}


async def test_a_run_in_quarantine_is_read_as_far_as_it_is_folded(
    api: httpx.AsyncClient, settings: Settings, entry: Quarantined
):
    path = f"/v1/runs/{entry.name}"

    for read in (path, f"{path}/events", f"{path}/ledger", f"{path}/ledger?min_offset=1"):
        assert (await api.get(read)).status_code == 200, read
    assert (await api.get(path)).json()["next_offset"] == 2
    assert entry.name in (await api.get("/v1/runs")).text

    began = time.monotonic()
    late = await api.get(f"{path}/ledger", params={"min_offset": 3})
    assert time.monotonic() - began < settings.wait_timeout_seconds

    async def is_noticed() -> bool:
        return (await api.get(path, params={"source": "log"})).status_code == 409

    await until(is_noticed, what="the look at the quarantine")
    for refused in (late, await api.get(f"{path}/events", params={"source": "log"})):
        problem = refused.json()
        assert refused.status_code == 409
        assert problem["type"] == "urn:runfold:problem:Quarantined"
        assert (problem["entry_id"], problem["offset"], problem["reason"]) == (entry.id, 2, REASON)
        assert f"runfold quarantine show {entry.id}" in problem["detail"]

    async def is_refused() -> float:
        began = time.monotonic()
        assert (await api.get(path, params={"min_offset": 3})).status_code == 409
        return time.monotonic() - began

    assert await soonest(is_refused, seconds=0.4) < 0.4, "the last look at the quarantine answers at once"


async def test_a_folded_record_of_a_healthy_run_can_be_skipped(
    settings: Settings, stored: Projections, runfold
):
    run = await runfold.open_run(agent_id="a")
    last = (await run.publish_batch([run.event(UserMessage(message=text)) for text in "abc"]))[-1].offset
    async with working(settings, stored.edition):
        await until(lambda: reaches(stored, run, last), what="the fold of the run")

        beyond = await command(settings, "quarantine", "skip", run.run_id, "--offset", str(last + 1))
        skipped = await command(settings, "quarantine", "skip", run.run_id, "--offset", "2")
        again = await command(settings, "quarantine", "skip", run.run_id, "--offset", "2")

        async def counts_without() -> bool:
            state = await stored.runs.get(run.run_id)
            return state is not None and state.record.exceptions.get("undecodable") == 1

        await until(counts_without, what="the run without the record")
        differences = await stored.differences()
    async with Runfold.of(settings.log()) as reader:
        log = reader.connection.log_of((await reader.get_run(run.run_id)).life)
        entries = [offset async for offset, _ in log.entries()]

    assert (beyond.code, beyond.output) == (1, "")
    assert f"folded up to offset {last + 1}" in beyond.errors
    assert (skipped.code, again.code) == (0, 0)
    assert "folds it anew" in skipped.output
    assert entries == [0, 1, 3]
    assert differences == []
