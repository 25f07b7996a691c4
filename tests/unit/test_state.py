"""State: which keys a run's own log decides, and what of an event goes where it is shared."""

from hypothesis import given
from hypothesis import strategies as st
from tests.builders import event
from tests.records import modest

from runfold_projections.state import forwards, own_keys, without_temporary
from runfold_schemas.codec import decode, encode
from runfold_schemas.events import PlannerNote
from runfold_schemas.runs import RunOpened
from runfold_schemas.sessions import StateChanged, app_scope, user_scope

NOTE = PlannerNote(note="n")
KEYS = st.builds(
    str.__add__, st.sampled_from(("", "app:", "user:", "temp:", "app", "user")), st.text(max_size=3)
)
DELTAS = st.dictionaries(KEYS, st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=6)


def test_own_keys_are_those_that_begin_with_no_scope():
    delta = {"k": 1, "app:k": 2, "user:k": 3, "temp:k": 4, "app": 5, "": None, "App:k": 6}

    assert own_keys(delta) == {"k": 1, "app": 5, "": None, "App:k": 6}
    assert own_keys(None) == own_keys({}) == {}


def test_temporary_keys_are_stored_nowhere():
    delta = {"k": 1, "temp:k": 2, "app:temp:k": 3}

    assert without_temporary(delta) == {"k": 1, "app:temp:k": 3}
    assert forwards(event(NOTE, state_delta={"temp:k": 1}), app="a", user="u") == []


def test_an_event_is_forwarded_once_for_each_scope_that_it_changes():
    one = event(NOTE, state_delta={"k": 1, "app:a": 2, "app:b": None, "user:u": 3})

    to_app, to_user = forwards(one, app="shop", user="ann")

    assert (to_app.key, to_user.key) == (app_scope("shop"), user_scope("shop", "ann"))
    assert (to_app.event.state_delta, to_user.event.state_delta) == (
        {"app:a": 2, "app:b": None},
        {"user:u": 3},
    )
    for forward in (to_app, to_user):
        assert isinstance(forward.event.data, StateChanged)
        assert (forward.event.event_id, forward.event.run_id) == (one.event_id, one.run_id)
        assert (forward.event.timestamp, forward.session_id) == (one.timestamp, None)


def test_an_event_that_changes_nothing_shared_is_not_forwarded():
    assert forwards(event(NOTE), app="a", user="u") == []
    assert forwards(event(NOTE, state_delta={"k": 1}), app="a", user="u") == []


def test_a_run_without_a_user_changes_no_user_and_one_with_an_empty_name_does():
    one = event(NOTE, state_delta={"user:k": 1})

    assert forwards(one, app="a", user=None) == []
    assert [forward.key for forward in forwards(one, app="a", user="")] == [user_scope("a", "")]


def test_an_opening_says_for_which_session_it_is():
    opening = event(RunOpened(agent_id="a", log_id="l", session_id="s"), state_delta={"app:k": 1})

    (forward,) = forwards(opening, app="a", user="u")

    assert forward.session_id == "s"


@given(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))
def test_two_users_share_a_scope_only_if_they_are_one(app, user, other_app, other_user):
    same = (app, user) == (other_app, other_user)

    assert (user_scope(app, user) == user_scope(other_app, other_user)) is same
    assert app_scope(app) != user_scope(other_app, other_user)


@modest
@given(DELTAS)
def test_every_key_that_is_stored_goes_to_one_place_and_survives_its_way(delta):
    one = event(NOTE, state_delta=delta)

    found = dict(own_keys(delta))
    for forward in forwards(one, app="a", user="u"):
        sent = decode(encode(forward.event)).state_delta
        assert not found.keys() & sent.keys()
        found |= sent

    assert found == without_temporary(delta)
