"""Logs from before there were keys of effects: what was changed stays changed."""

from pathlib import Path

from tests.processes import projections, working
from tests.querying import projected
from tests.servers import OwnSettings
from tests.session_stores import shared_ends
from tests.session_verbs import check_rebuild, differences

from runfold import Runfold
from runfold.log.effect_keys import add_effect_key
from runfold_schemas.sessions import StateChanged


async def test_a_rebuild_with_keys_keeps_what_unsigned_events_have_changed(
    own_settings: OwnSettings, tmp_path: Path
):
    settings = own_settings(wait_timeout_seconds=20)
    async with projected(settings) as stored:
        await stored.runfold.sessions.create(app="desk", user="ann", session_id="s")
        run = await stored.runfold.open_run(agent_id="desk")
        await stored.publish(run, StateChanged())
        position = await run.publish(StateChanged(), state_delta={"app:theme": "dark"})
        await stored.holds(run, position.offset)
        assert await differences(settings, stored.stores) == []
    path = tmp_path / "keys.txt"
    add_effect_key(path)
    with_keys = settings.model_copy(update={"effect_keys": path})
    ends = await shared_ends(with_keys)

    await check_rebuild(with_keys, before=settings)

    assert await shared_ends(with_keys) == ends
    async with (
        projections(settings) as stored,
        working(settings, stored.edition),
        Runfold.of(settings.log()) as runfold,
    ):
        assert (await runfold.sessions.view("s")).state == {"app:theme": "dark"}
