"""Values that sessions share are deleted in each of the ways of sessions: over the log alone, with
MongoDB, and over HTTP.
"""

import pytest

from runfold import InvalidEventError, PlannerNote


async def test_shared_state_is_deleted_by_key_or_whole_and_can_be_set_again(sessions, others, app):
    state = {"k": 1, "user:a": 1, "user:b": 2, "app:a": 3, "app:b": 4}
    await sessions.create(app=app, user="ann", session_id=app, state=state)
    other = await sessions.create(app=app, user="bob", state={"user:a": "bob's"})

    await sessions.delete_user_state(app, "ann", ["user:a", "user:missing"])
    await sessions.delete_app_state(app, ["app:b"])

    assert (await others.view(app)).state == {"k": 1, "user:b": 2, "app:a": 3}
    await sessions.append(app, PlannerNote(note="n"), state_delta={"user:a": 5})
    assert await others.user_state(app, "ann") == {"user:a": 5, "user:b": 2}
    await others.delete_user_state(app, "ann")
    await others.delete_app_state(app)
    assert (await sessions.view(app)).state == {"k": 1}
    assert (await sessions.view(other.session_id)).state == {"user:a": "bob's"}


async def test_only_a_key_of_the_scope_can_be_deleted(sessions, app):
    for wrong in (["app:k"], ["user:k", "k"], [""], []):
        if not wrong:
            await sessions.delete_user_state(app, "ann", wrong)
            continue
        with pytest.raises(InvalidEventError) as refusal:
            await sessions.delete_user_state(app, "ann", wrong)
        assert refusal.value.field == "key"
