"""Ordinary requests beside an ordinary run: what the other tests of this folder compare with."""

from tests.attacks import Stack


async def test_an_ordinary_run_harms_nobody(under_attack: Stack):
    async with under_attack.attacked("an ordinary run") as harm:
        run = await under_attack.runfold.open_run(agent_id="a")
        await run.complete()

    assert harm.steps >= 3
    assert all(response.status_code == 200 for response in await under_attack.ready())
