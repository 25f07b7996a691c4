"""Attacks by a program that may write to the topics of its own runs alone. Without keys of effects,
each attack has its effect. With keys, none has.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from aiokafka import AIOKafkaProducer
from tests.kafka_roles import RUNS, append, new_installation, produced, settings_of
from tests.processes import projections, until, working
from tests.querying import ready_api
from tests.secured_kafka import secured_kafka

from runfold import Runfold
from runfold.client.records import outgoing
from runfold.log.acls import Role
from runfold.log.effect_keys import add_effect_key, effect_signer_of, read_effect_keys
from runfold.settings import Settings
from runfold_schemas.codec import new_data, new_event
from runfold_schemas.memories import BankCreated, BankDeleted, MemoriesGenerated, MemoryUpdated
from runfold_schemas.sessions import StateChanged

RUN = f"{RUNS}1"

OTHERS = {"memory_id": "m-1", "fact": "others", "scope": {"user": "ann"}}


@pytest.fixture(scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("kafka")
    async with secured_kafka(folder, users=[*Role], allows_by_default=False) as address:
        yield address


class Installation(NamedTuple):
    settings: Settings
    api: httpx.AsyncClient
    producer: AIOKafkaProducer
    topic: str
    """The topic of the producer's run, which is of the app "desk"."""

    async def found(self) -> list[object]:
        """What an attack can change: two banks, a memory and the state of an app."""
        return [
            (await self.api.get("/v1/banks/spare")).status_code,
            (await self.api.get("/v1/banks/new")).status_code,
            (await self.api.get("/v1/banks/others/memories/m-1")).json()["fact"],
            (await self.api.get("/v1/banks/others/memories/m-2")).status_code,
            (await self.api.get("/v1/sessions/s-1")).json()["state"]["app:theme"],
        ]

    async def attack(self) -> None:
        """Appends all events that change what is not the producer's, and waits until the projector
        has stored the run.
        """
        memory = {"fact": "forged", "scope": {"user": "ann"}}
        changed = new_data(MemoryUpdated, bank_id="others", memory_id="m-1", memory=memory)
        created = {"bank_id": "others", "memory_id": "m-2", "memory": memory}
        await append(self.producer, self.topic, RUN, BankDeleted(bank_id="spare"))
        await append(self.producer, self.topic, RUN, new_data(BankCreated, bank_id="new", config={}))
        await append(self.producer, self.topic, RUN, changed)
        generated = new_data(MemoriesGenerated, bank_id="others", created=[created])
        await append(self.producer, self.topic, RUN, generated)
        state = {"app:theme": "forged", "own": 1}
        await append(self.producer, self.topic, RUN, StateChanged(), state_delta=state)
        assert (await self.api.post(f"/v1/runs/{RUN}/bell")).status_code == 204
        await until(self.is_stored, what="the fold of the run")

    async def is_stored(self) -> bool:
        record = (await self.api.get(f"/v1/runs/{RUN}")).json()
        runs = (await self.api.get("/v1/runs")).json()["runs"]
        return record["next_offset"] == 6 and any(
            run["run_id"] == RUN and run["next_offset"] == 6 for run in runs
        )


@asynccontextmanager
async def installation(secured: str, mongo: str, **options: Any) -> AsyncIterator[Installation]:
    """The things of others, and a run of the producer."""
    topics = await new_installation(secured)
    settings = settings_of(Role.service, secured, topics, mongo, **options)
    async with (
        projections(settings) as stored,
        working(settings, stored.edition),
        ready_api(settings) as api,
        produced(secured) as producer,
    ):
        await made(api, "/v1/banks", {"bank_id": "others"})
        await made(api, "/v1/banks", {"bank_id": "spare"})
        await made(api, "/v1/banks/others/memories", OTHERS)
        session = {"session_id": "s-1", "app": "desk", "user": "ann", "state": {"app:theme": "light"}}
        await made(api, "/v1/sessions", session)
        opened = await made(api, "/v1/runs", {"run_id": RUN, "agent_id": "desk"})
        yield Installation(settings, api, producer, opened["topic"])


async def made(api: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    response = await api.post(path, json=body)
    assert response.is_success, response.text
    return response.json()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "effect-keys.txt"
    add_effect_key(path)
    return path


async def test_without_keys_a_producer_changes_what_belongs_to_others(secured: str, mongo: str):
    async with installation(secured, mongo) as here:
        assert await here.found() == [200, 404, "others", 404, "light"]
        await here.attack()
        assert await here.found() == [404, 200, "forged", 200, "forged"]


async def test_with_keys_the_events_of_a_producer_count_for_its_run_alone(
    secured: str, mongo: str, keys: Path
):
    async with installation(secured, mongo, effect_keys=keys) as here:
        await here.attack()
        assert await here.found() == [200, 404, "others", 404, "light"]
        events = (await here.api.get(f"/v1/runs/{RUN}/events")).json()["events"]
        assert [event["outcome"] for event in events] == ["accepted"] * 6
        assert [event.get("effects") for event in events] == [None, *["unsigned"] * 5]

        # Over HTTP the same event has its effect, because the API has authorised it.
        theme = {"type": "state_changed", "data": {}, "state_delta": {"app:theme": "dark"}}
        await made(here.api, f"/v1/runs/{RUN}/events", theme)
        assert (await here.found())[-1] == "dark"


async def test_the_projector_forwards_what_a_publisher_with_a_key_has_signed(
    secured: str, mongo: str, keys: Path
):
    """The publisher ends before it has forwarded its change."""
    async with installation(secured, mongo, effect_keys=keys) as here:
        async with Runfold.of(here.settings.log()) as runfold:
            run = await runfold.get_run(RUN)
            event = run.event(StateChanged(), state_delta={"app:theme": "signed"})
            signer = effect_signer_of(read_effect_keys(keys), here.topic)
            publisher = runfold.connection.publisher
            record = outgoing(event, source="test", signer=signer)
            await publisher.wait(await publisher.send(here.topic, record))
            await runfold.connection.ring(RUN)

        async def is_applied() -> bool:
            return (await here.found())[-1] == "signed"

        await until(is_applied, what="the forward")


async def test_a_signature_of_another_record_is_worth_nothing(secured: str, mongo: str, keys: Path):
    async with installation(secured, mongo, effect_keys=keys) as here:
        other = await made(here.api, "/v1/runs", {"run_id": f"{RUNS}2", "agent_id": "desk"})
        event = new_event(
            StateChanged(),
            event_id="0190a000-0000-7000-8000-000000000001",
            run_id=f"{RUNS}2",
            timestamp=datetime.now(UTC),
            state_delta={"app:theme": "copied"},
        )
        signed = outgoing(event, source="test", signer=effect_signer_of(read_effect_keys(keys), here.topic))
        await here.producer.send_and_wait(
            other["topic"], signed.value, key=signed.key, headers=list(signed.headers), partition=0
        )
        await here.attack()
        assert await here.found() == [200, 404, "others", 404, "light"]
