"""Deletions of sessions that meet something else: another session's run, a run that is not stored
yet, a late word on it.
"""

import asyncio
from datetime import UTC, datetime

import pytest
from tests.processes import DEADLINE_SECONDS, until
from tests.querying import projected
from tests.servers import OwnSettings
from tests.session_verbs import opened

from runfold import UserMessage
from runfold.ids import new_event_id
from runfold.log.shared import send_shared
from runfold.settings import Settings
from runfold_projections.state import Forward
from runfold_schemas.codec import new_data, new_event
from runfold_schemas.data import Data
from runfold_schemas.sessions import SessionCreated, SessionDeleted, session_key


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(wait_timeout_seconds=20)


def fact(data: Data, session_id: str, run_id: str) -> Forward:
    event = new_event(data, event_id=new_event_id(), run_id=run_id, timestamp=datetime.now(UTC))
    return Forward(session_key(session_id), event)


async def test_a_session_that_names_the_run_of_another_does_not_take_it_with_it(settings: Settings) -> None:
    async with projected(settings) as stored, opened("stored", settings) as sessions:
        victim = (await sessions.create(app="shop", user="ann")).record
        created = new_data(SessionCreated, session_id="thief", app="shop", log_id=victim.log_id)
        deleted = new_data(SessionDeleted, session_id="thief")
        await until(lambda: stored.runs.get(victim.run_id), what="the run of the session")
        connection = stored.runfold.connection
        publisher = connection.publisher
        for data in (created, deleted):
            sent = await send_shared(publisher, connection.settings, fact(data, "thief", victim.run_id))
            await publisher.wait(sent)

        await sessions.list()  # which waits until both are folded

        assert (await sessions.view(victim.session_id)).record == victim
        assert await stored.runs.get(victim.run_id) is not None


async def test_a_run_that_names_a_session_goes_with_it_though_nothing_of_it_is_stored_yet(
    settings: Settings,
) -> None:
    async with projected(settings) as stored, opened("stored", settings) as sessions:
        runs = []
        for number in range(5):
            await sessions.create(app="shop", user="ann", session_id=f"s-{number}")
            run = await stored.runfold.open_run(agent_id="shop", session_id=f"s-{number}")
            await run.publish(UserMessage(message="private"))
            await sessions.delete(f"s-{number}")
            runs.append(run.run_id)

        async def are_gone() -> bool:
            return (await stored.runs.deleted(runs)).keys() == set(runs)

        await until(are_gone, what="the deletion of the runs")


async def test_the_catalog_has_a_deleted_run_as_deleted_whatever_is_said_of_it_later(
    settings: Settings,
) -> None:
    async with projected(settings) as stored, opened("stored", settings) as sessions:
        await sessions.create(app="shop", user="ann", session_id="s")
        run = await stored.run(UserMessage(message="m"), agent_id="shop", session_id="s")
        await sessions.delete("s")
        await stored.runfold.connection.announce(run.life.model_copy(update={"ended": True}))

        life = await stored.runfold.connection.catalog.lookup(run.run_id)

        assert life is not None
        assert life.deleted
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert run.run_id not in [each.run_id async for each in stored.runfold.runs()]
