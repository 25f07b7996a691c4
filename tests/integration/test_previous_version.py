"""Data and services of the version before this tree's names, beside ours on the same Kafka and
MongoDB, through a rebuild by either version.
"""

import asyncio
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from tests.embedding_endpoint import build_app
from tests.http_contents import SCOPE, TALK, Answers, agree, get, post, read, send, write
from tests.previous_version import unpacked
from tests.processes import environment, http_service, until
from tests.querying import served as serving
from tests.servers import OwnSettings

from runfold.local import free_port
from runfold.settings import Settings
from runfold.store.database import connect
from runfold_schemas.topics import PARTITIONS_DEFAULT

COLLECTIONS = {"banks", "decided", "memories", "pages", "revisions", "runs", "seen", "sessions", "values"}
"""Of each edition, in both versions."""
OWN_COLLECTIONS = {"quarantine", "requests"}
"""Of each edition that this version made. The version before neither reads nor drops them."""
REPORTS = {"jobs", "projectors"}
"""What services and commands of this version report to operators."""
PAUSE_SECONDS = 0.3
STEPS_MIN = 4


@dataclass(frozen=True)
class Version:
    """A projector and an API of one version, and the PYTHONPATH of its code; none of ours."""

    name: str
    roots: str
    settings: Settings
    api: httpx.AsyncClient
    projector: httpx.AsyncClient

    async def run(self, *arguments: str) -> tuple[int | None, str]:
        """The code and the output of a command."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "runfold.cli", *arguments),
            env=os.environ | environment(self.settings, roots=self.roots),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return process.returncode, " ".join(output.decode().split())

    async def partitions(self) -> int:
        """How many partitions of the catalog the projector owns."""
        metrics = (await self.projector.get("/metrics")).text
        line = re.search(r"^runfold_catalog_partitions (\S+)$", metrics, flags=re.MULTILINE)
        return int(float(line[1])) if line else 0


@pytest.fixture
async def settings(own_settings: OwnSettings) -> AsyncIterator[Settings]:
    """The version before needs the packages of another local model, so both use an endpoint."""
    async with serving(build_app()) as endpoint:
        yield own_settings(
            session_timeout_seconds=6,
            retire_seconds=10,
            wait_timeout_seconds=25,
            embedding_url=f"{endpoint.base_url}/v1",
            embedding_model="words",
        )


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The PYTHONPATH of the version before."""
    return unpacked(tmp_path_factory.mktemp("previous"))


async def test_both_versions_read_and_write_the_same_through_a_rebuild_of_either(
    settings: Settings, previous: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(served("old", previous, settings, tmp_path))
        await write(old.api, "before")
        await until(lambda: lists_everything(old, "before"), what="lists of what was written")
        before = await read(old.api, "before")

        new = await stack.enter_async_context(served("new", "", settings, tmp_path))
        await until(lambda: share_the_catalog(old, new), what="a part of the catalog for each projector")
        await write(new.api, "beside")
        for first, second in ((old, new), (new, old)):
            await check_repetition(first, second)
            await check_pages(first, second, "before")
        editions, written = [(await stored_names(settings)).edition], Counter[str]()
        for rebuilding in (new, old):
            await rebuild_under_load(rebuilding, old, new, written)
            await until(lambda: has_one_edition(settings), what="the end of the edition before")
            await until(lambda: share_the_catalog(old, new), what="a part for each projector again")
            editions.append((await stored_names(settings)).edition)

        names = ("before", "beside", *written)
        for name in names:
            await until(partial(both_list_the_same, old, new, name), what="the same lists of both versions")
        runs = {name: await listed(new, f"{name}-runs") for name in written}
        from_old, from_new = await asyncio.gather(read_all(old, names), read_all(new, names))
        code, verified = await new.run("verify")
        stored, groups = await stored_names(settings), await groups_of(settings)

    assert differing(before, from_old["before"]) == []
    for name in names:
        assert differing(from_old[name], from_new[name]) == []
    for name, steps in written.items():
        assert {run["run_id"]: run["status"] for run in runs[name]} == {
            f"{name}-{step}": "completed" for step in range(1, steps + 1)
        }
        assert notes_of(from_new[name], name) == [f"{step}" for step in range(1, steps + 1)]
    assert code == 0, verified
    assert " 0 differences" in verified
    assert len(set(editions)) == 3
    assert stored.pointer == "generation"
    shared = {"pointers", "vectors"} | {f"{one}.{stored.edition}" for one in COLLECTIONS}
    own = {f"{one}.{edition}" for one in OWN_COLLECTIONS for edition in editions}
    assert shared <= stored.collections <= shared | own | REPORTS
    assert {f"{settings.prefix}.projector.{edition}" for edition in editions} <= groups


async def check_repetition(first: Version, second: Version) -> None:
    """Creations with a key, sent to one version and then to the other, count once."""
    bank = f"/v1/banks/{first.name}-first"
    await post(first.api, "/v1/banks", {"bank_id": f"{first.name}-first"})
    for path, body, name in (
        ("/v1/sessions", {"app": f"{first.name}-first", "state": {"user:k": 1}}, "session_id"),
        (f"{bank}/memories", {"fact": "likes tea", "scope": SCOPE}, "memory_id"),
        (f"{bank}/memories", {"fact": "likes tea", "scope": SCOPE, "memory_id": "m"}, "revision_id"),
    ):
        key = {"Idempotency-Key": f"{first.name} {name}"}
        answers = [await version.api.post(path, json=body, headers=key) for version in (first, second)]

        assert all(answer.is_success for answer in answers), [answer.text for answer in answers]
        assert answers[0].json()[name] == answers[1].json()[name]


async def check_pages(first: Version, second: Version, name: str) -> None:
    """A cursor of one version is continued by the other."""
    for path, items in (
        (f"/v1/runs?agent_id={name}", "runs"),
        (f"/v1/sessions?app={name}", "sessions"),
        (f"/v1/banks/{name}/memories", "memories"),
        (f"/v1/banks/{name}/memories/kept/revisions", "revisions"),
    ):
        whole: list[Any] = (await get(first.api, path))[items]
        pages: list[Any] = []
        parameters = {"limit": "1"}
        for version in cycle((first, second)):
            page = await get(version.api, str(httpx.URL(path).copy_merge_params(parameters)))
            pages += page[items]
            if page["next_cursor"] is None:
                break
            parameters["cursor"] = page["next_cursor"]
        id_ = "run_id" if items == "runs" else "session_id" if items == "sessions" else "revision_id"
        assert len(whole) > 1, path
        assert [each[id_] for each in pages] == [each[id_] for each in whole], path


@asynccontextmanager
async def served(name: str, roots: str, settings: Settings, logs: Path) -> AsyncIterator[Version]:
    """A projector and an API of one version, as processes."""
    api_port, projector_port = free_port(), free_port()
    services = [
        http_service("api", settings, logs / f"{name}-api.log", port=api_port, roots=roots),
        http_service(
            *("projector", settings, logs / f"{name}-projector.log"),
            port=projector_port,
            worker_id=name,
            roots=roots,
        ),
    ]
    try:
        await asyncio.gather(*(service.start() for service in services))
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{api_port}", timeout=60) as api,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{projector_port + 1}", timeout=60) as projector,
        ):
            yield Version(name, roots, settings, api, projector)
    finally:
        await asyncio.gather(*(service.stop() for service in services))


async def rebuild_under_load(rebuilding: Version, old: Version, new: Version, written: Counter[str]) -> None:
    """`runfold rebuild` of one version, while each version reads what the other writes."""
    enough = asyncio.Event()
    loads = {
        f"{writer.name}-beside-{rebuilding.name}": (writer, reader)
        for writer, reader in ((old, new), (new, old))
    }
    loading = [asyncio.create_task(load(name, *sides, enough)) for name, sides in loads.items()]
    try:
        code, output = await rebuilding.run("rebuild")
    finally:
        enough.set()
        steps = await asyncio.gather(*loading)
    assert code == 0, output
    assert "rebuilt" in output
    written.update(dict(zip(loads, steps, strict=True)))


async def load(name: str, writer: Version, reader: Version, enough: asyncio.Event) -> int:
    """Writes through one version until `enough`, some rounds at the least, and reads each change
    through the other one as soon as it is acknowledged. Gives the number of rounds.
    """
    session, bank = f"/v1/sessions/{name}", f"/v1/banks/{name}"
    await post(writer.api, "/v1/sessions", {"session_id": name, "app": name, "user": "ann"})
    await post(writer.api, "/v1/banks", {"bank_id": name})
    await post(writer.api, f"{bank}/memories", {"memory_id": "m", "fact": "0", "scope": SCOPE})
    for step in count(1):
        run_id = f"{name}-{step}"
        await post(writer.api, "/v1/runs", {"run_id": run_id, "agent_id": f"{name}-runs"})
        await post(writer.api, f"/v1/runs/{run_id}/events", TALK)
        await post(writer.api, f"/v1/runs/{run_id}/status", {"action": "complete"})
        note = {"type": "planner_note", "data": {"note": f"{step}"}}
        state = {"step": step, "user:step": step, "app:step": step}
        await post(writer.api, f"{session}/events", note | {"state_delta": state})
        await send(writer.api, "PATCH", f"{bank}/memories/m", {"fact": f"{step}"})

        read_state = (await get(reader.api, session))["state"]
        assert {key: read_state[key] for key in state} == state
        assert (await get(reader.api, f"{bank}/memories/m"))["fact"] == f"{step}"
        last = f"/v1/runs/{run_id}?min_offset={len(TALK)}"
        assert (await get(reader.api, last))["next_offset"] > len(TALK)
        if enough.is_set() and step >= STEPS_MIN:
            return step
        await asyncio.sleep(PAUSE_SECONDS)
    raise AssertionError  # count() has no end


async def read_all(version: Version, names: Sequence[str]) -> dict[str, Answers]:
    """What one version reads under each of the names."""
    return dict(zip(names, await asyncio.gather(*(read(version.api, name) for name in names)), strict=True))


def notes_of(answers: Answers, name: str) -> list[str]:
    """The notes of the session that the load writes to."""
    events = answers[f"/v1/sessions/{name}?include=events"]["events"]
    return [one["event"]["data"]["note"] for one in events if one["event"]["type"] == "planner_note"]


def differing(older: Answers, newer: Answers) -> list[str]:
    """The requests that the newer version answers differently."""
    return [
        f"{path}: {older.get(path)} is not {newer.get(path)}"
        for path in sorted(older.keys() | newer.keys())
        if path not in older or path not in newer or not agree(older[path], newer[path])
    ]


async def share_the_catalog(*versions: Version) -> bool:
    """Whether the projectors are in one consumer group, each with some of its partitions."""
    owned = [await version.partitions() for version in versions]
    return all(owned) and sum(owned) == PARTITIONS_DEFAULT


async def lists_everything(version: Version, name: str) -> bool:
    """Lists of runs come from MongoDB alone, so they may be a moment behind the log."""
    runs = await listed(version, name)
    return (
        len(runs) > 4
        and [await get(version.api, f"/v1/runs/{run['run_id']}?source=log") for run in runs] == runs
    )


async def both_list_the_same(old: Version, new: Version, name: str) -> bool:
    agents = (name, f"{name}-runs")
    return agree(*[[await listed(version, agent) for agent in agents] for version in (old, new)])


async def listed(version: Version, agent: str) -> list[Any]:
    return list((await get(version.api, f"/v1/runs?agent_id={agent}&limit=1000"))["runs"])


class Names(NamedTuple):
    """What is named in MongoDB."""

    edition: str
    pointer: str
    collections: set[str]


async def stored_names(settings: Settings) -> Names:
    async with connect(settings.mongo, settings.database) as database:
        pointer = await database["pointers"].find_one({})
        return Names(pointer["current"], pointer["_id"], set(await database.list_collection_names()))


async def has_one_edition(settings: Settings) -> bool:
    stored = await stored_names(settings)
    return {name.partition(".")[2] for name in stored.collections if "." in name} == {stored.edition}


async def groups_of(settings: Settings) -> set[str]:
    """Every consumer group that Kafka knows."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        return {name for name, _ in await admin.list_consumer_groups()}
    finally:
        await admin.close()
