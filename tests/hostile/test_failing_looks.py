"""Work of a projector that looks at all runs: an error in it ends neither the projector nor the
work, and runs go on.
"""

from functools import partial
from pathlib import Path

import pytest
from tests.faults import faulty_projector, goes_on
from tests.processes import Projections, until

from runfold import Run, Runfold
from runfold.local import Service
from runfold.settings import Settings

WORK = (
    "the change of partitions",
    "the search for logs",
    "the look at ended runs",
    "the look for shared topics",
    "parking",
    "the sweep",
)


@pytest.fixture
def settings(settings_of_one_test: Settings) -> Settings:
    return settings_of_one_test.model_copy(
        update={"park_seconds": 3.0, "publisher_park_seconds": 3.0, "sweep_seconds": 2.0}
    )


async def has_begun_again(projector: Service, what: str) -> bool:
    return f"{what} failed and begins again" in projector.logged()


async def is_parked(stored: Projections, run: Run) -> bool:
    state = await stored.runs.get(run.run_id)
    return state is not None and not state.active


async def test_a_look_that_fails_begins_again_and_the_projector_goes_on(
    settings: Settings, runfold: Runfold, stored: Projections, tmp_path: Path
):
    projector = faulty_projector(settings, tmp_path, "looks=raise")
    await projector.start()
    run = await runfold.open_run(agent_id="a")

    await goes_on(stored, run)
    await until(partial(is_parked, stored, run), what="the parking of the run")
    for what in WORK:
        await until(partial(has_begun_again, projector, what), what=what)
    await goes_on(stored, run)

    assert "trying again" not in projector.logged()
    await projector.stop()
