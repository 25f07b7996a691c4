"""What is asked about logs that are not there: it is answered at once, and nobody else waits for
it.
"""

import asyncio
import time
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from tests.processes import soonest
from tests.session_verbs import WAYS, Projector, opened

from runfold import InvalidEventError, Runfold, UnavailableError, UserMessage
from runfold.ids import new_event_id, new_log_id
from runfold.log.ends import LogEnds
from runfold.log.reader import LogGoneError, end_offset, read
from runfold.log.shared import send_shared
from runfold.settings import Settings
from runfold_projections.state import Forward
from runfold_schemas.codec import new_event
from runfold_schemas.sessions import SessionCreated, session_key, session_run_id
from runfold_schemas.topics import Partition

SOON_SECONDS = 10.0
"""Half of the shortest deadline in these tests, which is that of reads."""


async def made_up(runfold: Runfold, session_id: str, app: str, run_id: str | None = None) -> None:
    """A session that somebody has said to be created, who has made no log for it."""
    log_id = new_log_id()
    event = new_event(
        SessionCreated(session_id=session_id, app=app, log_id=log_id),
        event_id=new_event_id(),
        run_id=run_id or session_run_id(log_id),
        timestamp=datetime.now(UTC),
    )
    fact = Forward(session_key(session_id), event)
    await runfold.connection.publisher.wait(
        await send_shared(runfold.connection.publisher, runfold.connection.settings, fact)
    )


@pytest.mark.parametrize("way", WAYS)
async def test_a_session_without_a_log_is_not_listed_and_nobody_waits_for_it(
    way: str, settings: Settings, runfold: Runfold, projector: Projector
):
    app, lost = f"app-{uuid4().hex[:8]}", f"lost-{uuid4().hex[:8]}"
    async with opened(way, settings) as sessions:
        good = await sessions.create(app=app)
        await sessions.append(good.session_id, UserMessage(message="hello"))
        await made_up(runfold, lost, app)
        await made_up(runfold, f"{lost}-2", app, run_id="é" * 100)

        async with asyncio.timeout(SOON_SECONDS):
            listed, _ = await sessions.list(app=app)
            waiting = asyncio.gather(*(sessions.view(lost) for _ in range(5)), return_exceptions=True)
            viewed = await sessions.view(good.session_id)
            refused = await waiting

    assert [one.session_id for one in listed] == [good.session_id]
    assert viewed.next_offset == 2
    assert all(isinstance(one, UnavailableError) for one in refused)


@pytest.mark.parametrize("way", WAYS)
async def test_lists_and_other_reads_go_on_while_sessions_are_deleted(
    way: str, settings: Settings, projector: Projector
):
    app = f"app-{uuid4().hex[:8]}"
    async with opened(way, settings) as sessions, opened(way, settings) as elsewhere:
        await asyncio.gather(*(sessions.create(app=app, session_id=f"{app}-{n}") for n in range(6)))
        deleting = asyncio.gather(*(sessions.delete(f"{app}-{n}") for n in range(1, 6)))

        while not deleting.done():
            listed, _ = await elsewhere.list(app=app)
            assert f"{app}-0" in {one.session_id for one in listed}
            await elsewhere.view(f"{app}-0")

        await deleting
        assert [one.session_id for one in (await elsewhere.list(app=app))[0]] == [f"{app}-0"]


async def test_a_cursor_below_the_beginning_is_refused(settings: Settings):
    async with opened("log", settings) as sessions:
        with pytest.raises(InvalidEventError):
            await sessions.list(cursor="-1")


async def test_the_ends_of_topics_are_told_and_nothing_of_those_that_do_not_exist(
    settings: Settings, runfold: Runfold
):
    run = await runfold.open_run(agent_id="agent")
    topic = runfold.connection.topics.run(run.run_id, run.life.log_id)
    there, gone = Partition(topic, 0), Partition(f"{settings.prefix}.run.gone.1", 0)
    beyond = Partition(topic, 7)

    async with LogEnds.connect(settings.log()) as ends, asyncio.timeout(SOON_SECONDS):
        assert await ends.ends_of([there, gone, beyond]) == {there: 1}
        assert await ends.ends([there.topic, gone.topic]) == {there.topic: 1, gone.topic: 0}
        assert await ends.ends_of([]) == {}


async def test_a_topic_that_was_known_and_was_deleted_has_no_end(settings: Settings, runfold: Runfold):
    run = await runfold.open_run(agent_id="agent")
    at = Partition(runfold.connection.topics.run(run.run_id, run.life.log_id), 0)

    async with LogEnds.connect(settings.log()) as ends:
        assert await ends.ends_of([at]) == {at: 1}
        await runfold.connection.delete_topic(at.topic)
        async with asyncio.timeout(SOON_SECONDS):
            while await ends.ends_of([at]):  # until every broker has heard of it
                await asyncio.sleep(0.01)


async def test_each_of_many_that_ask_at_once_has_what_was_there_when_it_asked(
    settings: Settings, runfold: Runfold
):
    runs = [await runfold.open_run(agent_id="agent") for _ in range(5)]
    places = [Partition(runfold.connection.topics.run(one.run_id, one.life.log_id), 0) for one in runs]

    async with LogEnds.connect(settings.log()) as ends:

        async def publish_and_ask(index: int) -> None:
            for _ in range(20):
                position = await runs[index].publish(runs[index].event(UserMessage(message="x")))
                assert await ends.ends_of([places[index]]) == {places[index]: position.offset + 1}

        await asyncio.gather(*(publish_and_ask(index) for index in range(5)))


async def test_who_stops_waiting_for_an_end_leaves_the_others_theirs(settings: Settings, runfold: Runfold):
    run = await runfold.open_run(agent_id="agent")
    at = Partition(runfold.connection.topics.run(run.run_id, run.life.log_id), 0)

    async with LogEnds.connect(settings.log()) as ends:
        asked = [asyncio.create_task(ends.ends_of([at])) for _ in range(3)]
        await asyncio.sleep(0)
        asked[0].cancel()

        assert await asyncio.gather(*asked[1:]) == [{at: 1}, {at: 1}]


async def test_a_log_that_is_not_there_is_said_to_be_gone_at_once(settings: Settings):
    topic = f"{settings.prefix}.run.gone.2"

    async def is_gone() -> float:
        began = time.monotonic()
        with pytest.raises(LogGoneError):
            await end_offset(settings.log(), topic)
        with pytest.raises(LogGoneError):
            async for _ in read(settings.log(), topic):
                pass
        return time.monotonic() - began

    assert await soonest(is_gone, seconds=2) < 2
