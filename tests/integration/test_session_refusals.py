"""What changes no session: the status of its run, and events behind an end."""

import pytest
from tests.session_verbs import noted, said

from runfold import InvalidEventError, PhaseChanged, PlannerNote, RunCompleted, RunPaused, StateChanged


@pytest.mark.parametrize("change", [RunCompleted(), RunPaused(), PhaseChanged(phase="planning")])
async def test_a_change_of_the_runs_status_is_not_for_a_session(sessions, app, change):
    session = await noted(sessions, app, 1)

    for refused, place in (
        (sessions.append(session.session_id, change), None),
        (sessions.append_batch(session.session_id, [PlannerNote(note="n"), change]), 1),
    ):
        with pytest.raises(InvalidEventError) as error:
            await refused
        assert (error.value.field, error.value.index) == ("type", place)
    await sessions.append(session.session_id, PlannerNote(note="more"))
    assert await said(sessions, session.session_id) == ["0", "more"]


async def test_an_event_behind_the_end_of_its_run_changes_no_shared_state(sessions, app, runfold):
    run = await runfold.open_run(agent_id=app)
    late = run.event(StateChanged(), state_delta={"app:late": 1})
    await run.publish_batch([RunCompleted(), late])

    await sessions.create(app=app, state={"app:k": 1})

    assert await sessions.app_state(app) == {"app:k": 1}
