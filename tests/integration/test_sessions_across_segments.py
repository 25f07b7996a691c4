"""Sessions and followers go on while logs are sealed, archived and deleted underneath."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from google.genai import types
from tests.adk_services import USER, direct, ids, said
from tests.adk_services import stored as stored_session
from tests.hand_archiving import archive_run
from tests.processes import DEADLINE_SECONDS, projections, until, working
from tests.querying import sent_events
from tests.servers import OwnSettings
from tests.vertex_clients import caller, vertex

from runfold import Run, Runfold, UserMessage
from runfold.openai_agents import RunfoldSession
from runfold.settings import Settings
from runfold_schemas.catalog import Life

WORDS = ("one", "two", "three")
EARLY = datetime(2030, 1, 2, tzinfo=UTC)


def content_of(word: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=word)])


@pytest.fixture
def settings(own_settings: OwnSettings, tmp_path: Path) -> Settings:
    return own_settings(archive_url=f"file://{tmp_path}/archive", sweep_seconds=0.2, partitions=1)


@pytest.fixture
async def runfold(settings: Settings) -> AsyncIterator[Runfold]:
    async with Runfold.of(settings.log()) as runfold:
        yield runfold


async def archive_all(runfold: Runfold, bases: dict[str, int]) -> None:
    """Moves the last topic of every open run to the archive. `bases` are those of the topics."""

    async def archive(life: Life) -> None:
        run = cast(Run, SimpleNamespace(run_id=life.run_id, life=life))
        bases[life.run_id] = (await archive_run(runfold, run, bases.get(life.run_id, 0))).base

    await asyncio.gather(*map(archive, await runfold.connection.catalog.open_lives("")))


async def test_every_kind_of_session_and_a_follower_go_on_across_segments(
    settings: Settings, runfold: Runfold
):
    bases: dict[str, int] = {}
    async with (
        projections(settings) as stored,
        working(settings, stored.edition),
        vertex(settings) as http,
        direct(settings) as adk,
    ):
        url = str(http.base_url).rstrip("/")
        google = caller(url)
        run = await runfold.open_run(agent_id="desk")
        of_adk = await adk.create_session(app_name="app", user_id=USER)
        of_google = await google.create(USER)
        async with (
            RunfoldSession("talk", url) as of_openai,
            http.stream("GET", f"/v1/runs/{run.run_id}/follow") as response,
        ):
            followed = sent_events(response)
            events: list[str] = []
            for word in WORDS:
                await run.publish(UserMessage(message=word))
                events.append((await adk.append_event(of_adk, said(content=content_of(word)))).id)
                await of_openai.add_items([{"role": "user", "content": word}])
                await google.append(of_google.name, EARLY, content=content_of(word))
                count = len(events)

                async with asyncio.timeout(DEADLINE_SECONDS):
                    while (event := await anext(followed)).name != "user_message":
                        pass
                assert event.data["event"]["data"]["message"] == word
                assert ids(await stored_session(adk, of_adk)) == events
                assert [item.get("content") for item in await of_openai.get_items()] == [*WORDS[:count]]
                parts = [each.content.parts[0].text for each in await google.events(of_google.name)]
                assert parts == [*WORDS[:count]]
                ledger = await http.get(f"/v1/runs/{run.run_id}/ledger", params={"min_offset": event.id})
                assert ledger.text.count('"user"') == count
                if word != WORDS[-1]:
                    await archive_all(runfold, bases)
        assert len(bases) == 4

        async def agrees() -> bool:
            return not await stored.differences()

        await until(agrees, what="the fold of all segments")
        assert await stored.stores.quarantine.all() == []
