"""`runfold retention` on real servers."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.commands import command
from tests.processes import until
from tests.querying import Projected, projected
from tests.servers import OwnSettings

from runfold import Run, UserMessage
from runfold.settings import Settings
from runfold.store.run_filter import RunFilter
from runfold_schemas.runs import RunCompleted


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings()


async def ended_run(stored: Projected, run_id: str, **options: Any) -> Run:
    return await stored.run(UserMessage(message="Hello"), RunCompleted(), run_id=run_id, **options)


async def test_old_runs_are_counted_shown_and_deleted_by_agent_and_label(settings: Settings):
    async with projected(settings) as stored:
        await stored.run(UserMessage(message="Hello"), run_id="open", agent_id="desk", labels={"team": "eu"})
        for run_id, agent, team in (
            ("first", "desk", "eu"),
            ("second", "desk", "eu"),
            ("of-us", "desk", "us"),
            ("of-others", "shop", "eu"),
        ):
            await ended_run(stored, run_id, agent_id=agent, labels={"team": team})
        session = await stored.runfold.sessions.create(app="desk", user="ann")

        async def ids() -> set[str]:
            return {state.run_id for state in (await stored.runs.list(RunFilter(), limit=100))[0]}

        async def are_there(expected: set[str]) -> None:
            async def holds() -> bool:
                return await ids() == expected

            await until(holds, what=f"the runs {sorted(expected)} and no others")

        before = {"open", "first", "second", "of-us", "of-others", session.record.run_id}
        await are_there(before)
        selected = ("retention", "--older-than", "0s", "--agent", "desk", "--label", "team=eu")

        code, output = await command(settings, "retention", "--older-than", "1h", "--yes")
        assert (code, "0 runs without an event since" in output) == (0, True)
        code, output = await command(settings, *selected, "--dry-run")
        assert (code, "2 runs without an event since" in output) == (0, True)
        assert all(f"{run_id} " in output for run_id in ("first", "second"))
        assert (await command(settings, *selected))[0] != 0
        assert await ids() == before
        code, output = await command(settings, *selected, "--yes")
        assert (code, "2 runs are deleted" in output) == (0, True), output
        await are_there(before - {"first", "second"})

        async def are_old() -> bool:
            matching = RunFilter(is_session=False, updated_until=datetime.now(UTC))
            return len((await stored.runs.list(matching, limit=100))[0]) == 3

        # Lists round the time of an open run up, so it is not old at once.
        await until(are_old, what="three runs without an event since now")
        code, output = await command(settings, "retention", "--older-than", "0s", "--include-open", "--yes")
        assert (code, "3 runs are deleted" in output) == (0, True), output
        await are_there({session.record.run_id})
        assert (await command(settings, "retention", "--older-than", "soon"))[0] == 2
