"""Two who write one document at the same moment, when it is not there yet: what the rule says
stands, whoever came first.
"""

import asyncio
from datetime import UTC, datetime

from runfold.store.runs import RunState, RunStore
from runfold.store.sessions import SessionStore
from runfold.store.state import Entry, StateStore
from runfold_projections.run import RunRecord
from runfold_projections.session import SessionRecord
from runfold_projections.state import Value

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIMES = 40
"""Without the rule, one in four or more goes wrong."""


async def test_of_two_values_that_are_set_at_once_the_later_one_stands(store, edition):
    values = StateStore(store, edition)
    keys = [f"app:{number}" for number in range(TIMES)]

    for key in keys:
        await asyncio.gather(
            *(values.save([Entry("app:shop", key, Value(at, offset=at))]) for at in (3, 8, 5))
        )

    held = (await values.read(["app:shop"]))["app:shop"]
    assert held == dict.fromkeys(keys, Value(8, offset=8))


async def test_of_two_that_save_a_session_at_once_the_further_one_stands(store, edition):
    sessions = SessionStore(store, edition)
    ids = [f"s-{number}" for number in range(TIMES)]

    for session_id in ids:
        await asyncio.gather(
            *(sessions.save({session_id: session(session_id, user=f"{at}")}, position=at) for at in (3, 8, 5))
        )

    assert {one.user for one in (await sessions.get(ids)).values()} == {"8"}


async def test_a_run_that_is_deleted_while_it_is_added_is_deleted(store, edition):
    runs = RunStore(store, edition)
    states = [
        RunState(log_id=f"l-{number}", partition=0, active=True, record=RunRecord(run_id=f"r-{number}"))
        for number in range(TIMES)
    ]

    for state in states:
        await asyncio.gather(runs.add([state]), runs.delete([(state.life, 0)]))

    assert await runs.get_many([state.run_id for state in states]) == {}
    deleted = await runs.deleted_logs(state.run_id for state in states)
    assert sorted(deleted) == sorted(state.log_id for state in states)


def session(session_id: str, *, user: str) -> SessionRecord:
    return SessionRecord(
        session_id=session_id,
        app="shop",
        user=user,
        run_id="r",
        log_id="l",
        created_at=NOON,
        changed_at=NOON,
    )
