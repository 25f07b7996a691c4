"""What becomes of a session whose time is over: the projector deletes it, as anybody would."""

from datetime import timedelta
from uuid import uuid4

import pytest
from tests.processes import until
from tests.querying import projected
from tests.session_verbs import check_rebuild

from runfold import Runfold
from runfold.settings import Settings


@pytest.fixture(scope="module")
def settings(kafka: str, mongo: str) -> Settings:
    name = f"t{uuid4().hex[:8]}"
    return Settings(kafka=kafka, mongo=mongo, prefix=name, database=name, sweep_seconds=0.2)


async def test_an_expired_session_is_deleted_with_its_topic(settings: Settings):
    async with projected(settings), Runfold.of(settings.log()) as runfold:
        sessions = runfold.sessions
        kept = await sessions.create(app="shop", session_id="kept", ttl=timedelta(hours=1))
        over = await sessions.create(app="shop", session_id="over", ttl=timedelta(seconds=5))

        async def only_one_topic_is_left() -> bool:
            topics = await runfold.connection.admin.list_run_topics()
            return topics == [runfold.connection.topics.run(kept.record.run_id, kept.record.log_id)]

        await until(only_one_topic_is_left, what="the end of an expired session's topic")

        again = await sessions.create(app="shop", session_id="over")
        assert again.record.run_id != over.record.run_id
        assert (await sessions.view("kept")).record == kept.record


async def test_everything_is_the_same_after_a_rebuild_from_the_logs(settings: Settings):
    async with projected(settings):
        await check_rebuild(settings)
