"""Damaged documents in MongoDB: every read is right, `verify` names the damage, and the damage is
mended.

Damages of the same kind happen to many runs at once, because a command waits for seconds before it
calls a difference one.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import uuid4
from zlib import crc32

import httpx
import pytest
from tests.attacks import Stack
from tests.commands import differences_of, run_command
from tests.partitions import topics_of
from tests.processes import Projections, projections, reaches, until

from runfold import AssistantMessage, Memory, Run, ToolCall, ToolResult, UserMessage
from runfold.cli.restoring import refold_keys
from runfold.settings import Settings
from runfold_schemas.memories import bank_key
from runfold_schemas.sessions import session_key


class Damaged(NamedTuple):
    """A run in several pages, and what the API answered before any damage."""

    run: Run
    client: httpx.AsyncClient
    pages: Any
    runs: Any
    answers: dict[str, Any]

    async def read(self) -> dict[str, Any]:
        return {path: await read(self.client, path) for path in self.answers}

    async def damage_page(self, change: dict[str, Any]) -> None:
        document = await self.page()
        await self.pages.update_one({"_id": document["_id"]}, {"$set": change})

    async def page(self) -> dict[str, Any]:
        """The page in the middle."""
        documents = await self.pages.find({"log_id": self.run.life.log_id}).sort("_id", 1).to_list(None)
        assert len(documents) > 2
        return documents[len(documents) // 2]


async def read(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.get(path)
    assert answer.status_code == 200, (path, answer.status_code, answer.text)
    if "follow" in path:
        return [line for line in answer.text.splitlines() if line.startswith("data:")]
    return answer.json()


@pytest.fixture
async def damaged(under_attack: Stack, stored: Projections) -> Damaged:
    return await opened(under_attack, stored)


async def opened(under_attack: Stack, stored: Projections) -> Damaged:
    """A run to be damaged."""
    run = await under_attack.runfold.open_run(agent_id="damaged")
    for number in range(8):  # so many pages that they are merged when the run ends
        events = [
            UserMessage(message="What is it like?"),
            ToolCall(tool_call_id=f"c{number}", tool_name="look", payload={"model": number}),
            ToolResult(tool_call_id=f"c{number}", tool_name="look", result="fine" * 50),
            AssistantMessage(message="It is fine."),
        ]
        end = (await run.publish_batch(events))[-1].offset
        await until(lambda end=end: reaches(stored, run, end), what="the state of the run")
    # Not merged: the run goes on.
    id_ = run.run_id
    paths = [
        f"/v1/runs/{id_}",
        f"/v1/runs/{id_}/events?limit=1000",
        f"/v1/runs/{id_}/events?type=tool_call&limit=1000",
        f"/v1/runs/{id_}/events?first_offset=7&end_offset=12",
        f"/v1/runs/{id_}/ledger",
        f"/v1/runs/{id_}/ledger?as_of_offset=14",
        f"/v1/runs/{id_}/ledger?format=anthropic",
    ]
    client = under_attack.client
    answers = {path: await read(client, path) for path in paths}
    pages, runs = (stored.database[f"{name}.{stored.edition}"] for name in ("pages", "runs"))
    return Damaged(run, client, pages, runs, answers)


async def opened_for(names: Iterable[str], under_attack: Stack, stored: Projections) -> dict[str, Damaged]:
    """A run for each of these damages."""
    runs = await asyncio.gather(*(opened(under_attack, stored) for _ in names))
    return dict(zip(names, runs, strict=True))


def flipped(page: dict[str, Any]) -> dict[str, Any]:
    body = bytearray(page["body"])
    body[len(body) // 2] ^= 4
    return {"body": bytes(body)}


def garbage(page: dict[str, Any]) -> dict[str, Any]:
    return {"body": b"garbage", "checksum": crc32(b"garbage")}


DAMAGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a flipped bit": flipped,
    "garbage with its checksum": garbage,
    "a cut body": lambda page: {"body": page["body"][:-9]},
    "an empty body": lambda page: {"body": b""},
    "wrong counts": lambda page: {"counts": {"user_message": 9}},
    "counts of another form": lambda page: {"counts": 5},
    "wrong ids": lambda page: {"ids": b"\0" * len(page["ids"])},
    "other outcomes": lambda page: {"exceptions": [[page["first_offset"], "rejected", "no"]]},
    "an end beyond": lambda page: {"next_offset": page["next_offset"] + 2},
    "an end that is no number": lambda page: {"next_offset": "12"},
    "a body that is a text": lambda page: {"body": "text"},
    "a log of another name": lambda page: {"log_id": "0" * 32},
}


async def test_damaged_pages_are_never_served(under_attack: Stack, stored: Projections) -> None:
    settings, runs = under_attack.settings, await opened_for(DAMAGES, under_attack, stored)
    for name, damaged in runs.items():
        await damaged.damage_page(DAMAGES[name](await damaged.page()))

    async with under_attack.attacked("damaged pages"):
        assert await all_read(runs) == answers_of(runs)

    right = await asyncio.gather(*(is_right(settings, damaged.run.run_id) for damaged in runs.values()))
    assert dict(zip(runs, right, strict=True)) == dict.fromkeys(runs, False)
    first = next(iter(runs.values()))
    assert await verified(settings, first.run.run_id, "--restore") == 0
    assert await is_right(settings, first.run.run_id)
    assert await verified(settings, "--restore") == 0
    await assert_mended(settings, runs)


async def all_read(runs: Mapping[str, Damaged]) -> dict[str, Any]:
    """What the API answers of these runs."""
    answers = await asyncio.gather(*(damaged.read() for damaged in runs.values()))
    return dict(zip(runs, answers, strict=True))


def answers_of(runs: Mapping[str, Damaged]) -> dict[str, Any]:
    """What it answered before any damage."""
    return {name: damaged.answers for name, damaged in runs.items()}


async def assert_mended(settings: Settings, runs: Mapping[str, Damaged]) -> None:
    right = await asyncio.gather(*(is_right(settings, damaged.run.run_id) for damaged in runs.values()))
    assert dict(zip(runs, right, strict=True)) == dict.fromkeys(runs, True)
    assert await all_read(runs) == answers_of(runs)


async def test_a_missing_page_is_read_from_the_log(under_attack: Stack, damaged: Damaged) -> None:
    await damaged.pages.delete_one({"_id": (await damaged.page())["_id"]})

    assert await damaged.read() == damaged.answers
    assert await rebuilt(under_attack.settings, damaged.run.run_id) == 0
    assert await is_right(under_attack.settings, damaged.run.run_id)


async def test_a_page_of_an_earlier_version_that_cannot_be_unpacked_is_a_problem_once(
    under_attack: Stack, damaged: Damaged
) -> None:
    page = await damaged.page()
    await damaged.pages.update_one({"_id": page["_id"]}, {"$set": garbage(page), "$unset": {"seal": ""}})

    path = f"/v1/runs/{damaged.run.run_id}/events?limit=1000"
    first = await damaged.client.get(path)

    assert first.status_code == 503
    assert first.headers["content-type"] == "application/problem+json"
    assert "runfold" in first.json()["detail"]
    assert await damaged.read() == damaged.answers


STATES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a record that is no JSON": lambda state: {"record": state["record"][:-5]},
    "a record of another status": lambda state: {"record": state["record"].replace("running", "completed")},
    "a record that is a number": lambda state: {"record": 7},
    "a position beyond": lambda state: {"next_offset": state["next_offset"] + 5},
    "a position that is no number": lambda state: {"next_offset": "x"},
    "another log": lambda state: {"log_id": "0" * 32},
    "another end": lambda state: {"ended": True},
}


def in_a_list(record: dict[str, Any]) -> dict[str, Any]:
    """A run's record as a list shows it: the first counts alone, and the cost beside them."""
    first = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    usage = record["usage"]
    return {**record, "usage": {name: usage[name] for name in first}, "cost": usage["cost"]}


async def test_damaged_states_are_never_served(under_attack: Stack, stored: Projections) -> None:
    settings, runs = under_attack.settings, await opened_for(STATES, under_attack, stored)
    for name, damaged in runs.items():
        change = STATES[name](await state_of(damaged))
        await damaged.runs.update_one({"_id": damaged.run.run_id}, {"$set": change})

    async with under_attack.attacked("damaged states"):
        assert await all_read(runs) == answers_of(runs)
        listed = await under_attack.client.get("/v1/runs?agent_id=damaged&limit=1000")

    assert listed.status_code == 200
    run_ids = [damaged.run.run_id for damaged in runs.values()]
    shown = {record["run_id"]: record for record in listed.json()["runs"]}
    for name, damaged in runs.items():
        run_id = damaged.run.run_id
        assert shown[run_id] == in_a_list(damaged.answers[f"/v1/runs/{run_id}"]), name
    assert await rebuilt(settings, run_ids[0]) == 0
    assert await is_right(settings, run_ids[0])
    assert await rebuilt(settings, *run_ids[1:]) == 0
    await assert_mended(settings, runs)


async def test_a_damaged_page_is_not_merged_and_is_mended_by_its_owner(
    under_attack: Stack, damaged: Damaged
) -> None:
    await damaged.damage_page(flipped(await damaged.page()))

    async with under_attack.attacked("a merge of a damaged page"):
        await damaged.run.complete()  # its pages are merged then

        async def is_mended() -> bool:
            count = await damaged.pages.count_documents({"log_id": damaged.run.life.log_id})
            return count > 0 and await is_right(under_attack.settings, damaged.run.run_id)

        await until(is_mended, what="the mending of the run")


async def test_a_worker_that_begins_loads_no_damaged_page(under_attack: Stack, damaged: Damaged) -> None:
    await damaged.damage_page(flipped(await damaged.page()))
    state = await state_of(damaged)
    await damaged.runs.update_one({"_id": damaged.run.run_id}, {"$set": {"record": "{"}})

    await under_attack.projector.stop()
    await under_attack.projector.start()
    async with under_attack.attacked("a start with a damaged run"):
        await until(
            lambda: is_right(under_attack.settings, damaged.run.run_id), what="the mending of the run"
        )
        event = await damaged.run.publish(UserMessage(message="And now?"))
        answer = await damaged.client.get(
            f"/v1/runs/{damaged.run.run_id}", params={"min_offset": event.offset}
        )

    assert answer.json()["next_offset"] > state["next_offset"]


async def state_of(damaged: Damaged) -> dict[str, Any]:
    document: dict[str, Any] = await damaged.runs.find_one({"_id": damaged.run.run_id})
    return document


async def is_right(settings: Settings, run_id: str) -> bool:
    return not await differences_of(settings, run_id)


async def verified(settings: Settings, *arguments: str) -> int:
    """The exit code of `runfold verify`."""
    return await run_command(settings, "verify", *arguments)


async def rebuilt(settings: Settings, *arguments: str) -> int:
    return await run_command(settings, "rebuild", *arguments)


SHARED: dict[str, dict[str, Any]] = {
    "sessions": {"record": '{"session_id":'},
    "memories": {"record": "{}"},
    "revisions": {"record": 7},
    "decided": {"head": "[]"},
    "values": {"json": b"garbage"},
}


class Shared(NamedTuple):
    """Records of shared topics, and what the API answered before any damage."""

    name: str
    client: httpx.AsyncClient
    answers: dict[str, Any]

    async def damage(self, stored: Projections, collection: str) -> None:
        ids = {
            "values": {"scope": f"user:desk/{self.name}"},
            "revisions": {"_id.memory": {"$regex": self.name}},
        }
        query = ids.get(collection, {"_id": {"$regex": self.name}})
        documents = stored.database[f"{collection}.{stored.edition}"]
        changed = await documents.update_one(query, {"$set": SHARED[collection]})
        assert changed.modified_count == 1, collection

    async def check(self) -> None:
        """Every read is right, or says how the damage is mended."""
        for path, expected in self.answers.items():
            answer = await self.client.get(path)
            if answer.status_code != 200:
                assert answer.status_code == 503, (path, answer.text)
                assert "runfold verify --restore" in answer.json()["detail"]
            else:
                assert answer.json() == expected, path


async def remembered(under_attack: Stack) -> Shared:
    """A session with state of its user, and a memory."""
    client, runfold, name = under_attack.client, under_attack.runfold, f"x{uuid4().hex[:8]}"
    state = {"user:language": "fr"}
    await runfold.sessions.create(app="desk", user=name, session_id=name, state=state)
    await runfold.memories.create_bank(name)
    fact = Memory(fact="Prefers window seats", scope={"user": name})
    memory = await runfold.memories.create(name, fact)
    path = f"/v1/banks/{name}/memories/{memory.memory_id}"
    paths = [f"/v1/sessions/{name}", path, f"{path}/revisions", f"/v1/sessions?user={name}"]
    return Shared(name, client, {each: await read(client, each) for each in paths})


async def test_damaged_records_of_shared_topics_are_problems_and_are_mended(
    under_attack: Stack, stored: Projections
) -> None:
    records = await asyncio.gather(*(remembered(under_attack) for _ in SHARED))
    shared = dict(zip(SHARED, records, strict=True))
    for collection, damaged in shared.items():
        await damaged.damage(stored, collection)

    async with under_attack.attacked("damage in shared collections"):
        await asyncio.gather(*(damaged.check() for damaged in shared.values()))

    assert await verified(under_attack.settings, "--restore") == 0
    for collection, damaged in shared.items():
        answers = {path: await read(damaged.client, path) for path in damaged.answers}
        assert answers == damaged.answers, collection


async def test_a_key_is_restored_by_its_owner_and_keeps_every_change_meanwhile(under_attack: Stack) -> None:
    settings, name = under_attack.settings, f"x{uuid4().hex[:8]}"
    key, path = session_key(name), f"/v1/sessions/{name}"
    await under_attack.runfold.sessions.create(app="desk", user=name, session_id=name)
    answers: list[int] = []
    labels: dict[str, str] = {}
    is_restored = asyncio.Event()
    async with projections(settings) as stored, under_attack.attacked("changes of a restored key"):

        async def change() -> None:
            while not is_restored.is_set():
                labels["number"] = str(len(labels) + len(answers))
                await under_attack.runfold.sessions.update(name, labels=labels)
                answers.append((await under_attack.client.get(path)).status_code)

        changing = asyncio.create_task(change())
        for _ in range(5):
            assert await refold_keys(topics_of(), stored.stores, {key}, report=lambda _: None) == 0
        is_restored.set()
        await changing
    await until(lambda: is_read(under_attack, path, "labels", labels), what="the last change")

    assert answers
    assert set(answers) <= {200, 409}, answers
    assert await verified(settings) == 0


async def test_keys_are_restored_when_a_projector_runs_again(under_attack: Stack) -> None:
    settings, name = under_attack.settings, f"x{uuid4().hex[:8]}"
    await under_attack.runfold.memories.create_bank(name)
    path = f"/v1/banks/{name}"
    before = await read(under_attack.client, path)
    await under_attack.projector.stop()
    async with projections(settings) as stored:
        await stored.stores.banks.delete(name)

        left = await refold_keys(
            topics_of(), stored.stores, {bank_key(name)}, report=lambda _: None, patience_seconds=1
        )
        await under_attack.projector.start()

    assert left == 1
    await until(lambda: is_read(under_attack, path, "bank_id", name), what="the bank")
    assert await read(under_attack.client, path) == before


async def is_read(stack: Stack, path: str, field: str, value: Any) -> bool:
    answer = await stack.client.get(path)
    return answer.status_code == 200 and answer.json()[field] == value
