"""Sessions and shared state, folded from one partition: what each fact does, and that batches and
redelivery change nothing.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import EPOCH, event, event_id
from tests.records import modest, portions, record

from runfold_projections.session import SessionRecord, SharedFold, apply, shared_event
from runfold_projections.state import Value
from runfold_schemas.codec import Record
from runfold_schemas.data import Data
from runfold_schemas.errors import UndecodableError
from runfold_schemas.events import PlannerNote
from runfold_schemas.sessions import (
    SessionCreated,
    SessionDeleted,
    SessionUpdated,
    StateChanged,
    app_scope,
    session_key,
    session_run_id,
    user_scope,
)

APP, USER = app_scope("a"), user_scope("a", "u")
LOG, OTHER_LOG = "0" * 32, "1" * 32
RUN, OTHER_RUN = session_run_id(LOG), session_run_id(OTHER_LOG)


def creation(session_id: str = "s", **fields: Any) -> SessionCreated:
    return SessionCreated(**{"session_id": session_id, "app": "a", "user": "u", "log_id": LOG, **fields})


def folded(*facts: tuple[Data, str]) -> SessionRecord | None:
    """The session after these facts, each with the run that it is of."""
    session = None
    for data, run_id in facts:
        session = apply(session, event(data, run_id=run_id))
    return session


def test_a_deletion_at_an_expiry_means_that_expiry_only():
    expiry, later = EPOCH + timedelta(days=1), EPOCH + timedelta(days=2)
    created, extended = creation(expires_at=expiry), SessionUpdated(session_id="s", expires_at=later)
    deleted = SessionDeleted(session_id="s", expires_at=expiry)

    assert folded((created, "r"), (deleted, "r")) is None
    assert folded((created, "r"), (extended, "r"), (deleted, "r")) is not None


def test_a_session_is_what_its_creation_says():
    expiry = EPOCH + timedelta(days=1)
    created = event(creation(labels={"k": "v"}, display_name="A talk", expires_at=expiry), run_id="r")

    assert apply(None, created) == SessionRecord(
        session_id="s",
        app="a",
        user="u",
        run_id="r",
        log_id=LOG,
        created_at=created.timestamp,
        changed_at=created.timestamp,
        labels={"k": "v"},
        display_name="A talk",
        expires_at=expiry,
    )


def test_of_two_creations_the_first_stands():
    assert folded((creation(app="first"), "r1"), (creation(app="second"), "r2")).app == "first"


def test_an_update_changes_what_it_names_and_merges_labels():
    updated = SessionUpdated(session_id="s", labels={"b": "2"}, display_name="after")

    session = folded((creation(labels={"a": "1", "b": "1"}, expires_at=EPOCH), "r"), (updated, "r"))

    assert (session.labels, session.display_name) == ({"a": "1", "b": "2"}, "after")
    assert session.expires_at == EPOCH
    assert session.changed_at > session.created_at


@pytest.mark.parametrize(
    "fact", [SessionUpdated(session_id="s", display_name="x"), SessionDeleted(session_id="s")]
)
def test_a_fact_about_another_life_or_about_no_session_changes_nothing(fact):
    assert folded((creation(), "r2"), (fact, "r1")).display_name is None
    assert folded((fact, "r1")) is None


def test_a_deleted_session_is_none_and_its_id_can_be_taken_again():
    deleted = SessionDeleted(session_id="s")

    assert folded((creation(), "r1"), (deleted, "r1")) is None
    assert folded((creation(), "r1"), (deleted, "r1"), (creation(app="b"), "r2")).app == "b"
    assert folded((creation(), "r1"), (deleted, "r1"), (creation(), "r2"), (deleted, "r1")).run_id == "r2"


def shared(key: str, data: Data, offset: int, run_id: str = RUN, **envelope: Any) -> Record:
    if isinstance(data, SessionCreated):
        data = data.model_copy(update={"log_id": run_id.replace("-", "")})
    return record(event(data, run_id=run_id, **envelope), offset, key=key.encode())


def test_a_record_is_read_with_its_key():
    key, said = shared_event(shared(session_key("s"), creation(), 0))

    assert (key, said.data.session_id) == ("session:s", "s")


@pytest.mark.parametrize(
    ("key", "data"),
    [
        (session_key("other"), creation("s")),
        ("", creation("s")),
        ("s", SessionDeleted(session_id="s")),
        (session_key("s"), StateChanged()),
        ("nothing:a", StateChanged()),
        (session_key("s"), PlannerNote(note="n")),
    ],
)
def test_a_record_whose_key_does_not_fit_is_undecodable(key, data):
    with pytest.raises(UndecodableError):
        shared_event(shared(key, data, 0))


def test_a_creation_that_names_another_run_s_log_is_undecodable():
    with pytest.raises(UndecodableError):
        shared_event(record(event(creation(), run_id=OTHER_RUN), 0, key=session_key("s").encode()))


def test_a_record_without_a_readable_key_is_undecodable():
    for key in (None, b"\xff"):
        with pytest.raises(UndecodableError):
            shared_event(record(event(creation(), run_id=RUN), 0, key=key))


def test_a_scope_takes_only_keys_of_its_own_beginning():
    fold = plain_fold([shared(APP, StateChanged(), 4, state_delta={"app:k": 1, "user:k": 2, "k": 3})])

    assert fold.values == {(APP, "app:k"): Value(1, 4)}


def test_what_was_deleted_is_told_with_its_offset():
    deleted = event(SessionDeleted(session_id="s"), run_id=RUN)
    fold = plain_fold(
        [
            shared(session_key("s"), creation(), 0),
            record(deleted, 1, key=session_key("s").encode()),
        ]
    )

    assert [(session.run_id, offset) for session, offset in fold.deleted] == [(RUN, 1)]
    assert fold.sessions == {"s": None}


def test_an_event_counts_once_under_each_key():
    same = {"event_id": event_id(1), "state_delta": {"app:k": 1, "user:k": 1}}
    later = {"state_delta": {"app:k": 2, "user:k": 2}}

    fold = plain_fold(
        [
            shared(APP, StateChanged(), 0, **same),
            shared(USER, StateChanged(), 1, **same),
            shared(APP, StateChanged(), 2, **later),
            shared(APP, StateChanged(), 3, **same),
            shared(USER, StateChanged(), 4, **later),
        ]
    )

    assert fold.values == {(APP, "app:k"): Value(2, 2), (USER, "user:k"): Value(2, 4)}


Stored = tuple[dict[str, SessionRecord], dict[tuple[str, str], Value], list[str]]


def firsts_of(log: Sequence[Record]) -> dict[tuple[str, str], int]:
    firsts: dict[tuple[str, str], int] = {}
    for one in log:
        key, said = shared_event(one)
        firsts.setdefault((key, said.event_id), one.offset)
    return firsts


def plain_fold(log: Sequence[Record]) -> SharedFold:
    return fold_of(log, {}, firsts_of(log))


def fold_of(
    part: Sequence[Record], before: dict[str, SessionRecord], firsts: dict[tuple[str, str], int]
) -> SharedFold:
    fold = SharedFold(before)
    for one in part:
        key, said = shared_event(one)
        if firsts[key, said.event_id] == one.offset:
            fold.take(key, said, one.offset)
    return fold


def stored_after(parts: Sequence[Sequence[Record]], firsts: dict[tuple[str, str], int]) -> Stored:
    """What is stored when each of these parts is folded over what was stored before."""
    sessions: dict[str, SessionRecord] = {}
    positions: dict[str, int] = {}
    values: dict[tuple[str, str], Value] = {}
    deleted: list[str] = []
    for part in parts:
        fold = fold_of(part, sessions, firsts)
        reached = part[-1].offset + 1 if part else 0
        for session_id, session in fold.sessions.items():
            if positions.get(session_id, 0) < reached:
                positions[session_id] = reached
                sessions.pop(session_id, None)
                if session is not None:
                    sessions[session_id] = session
        for name, value in fold.values.items():
            if name not in values or values[name].offset < value.offset:
                values[name] = value
        deleted += [session.run_id for session, _ in fold.deleted]
    return sessions, values, deleted


FACTS = st.one_of(
    st.builds(creation, session_id=st.sampled_from("st"), app=st.sampled_from("ab")),
    st.builds(SessionUpdated, session_id=st.sampled_from("st"), display_name=st.sampled_from(("x", "y"))),
    st.builds(SessionDeleted, session_id=st.sampled_from("st")),
    st.sampled_from((APP, USER)),
)


@st.composite
def shared_logs(draw: st.DrawFn) -> list[Record]:
    """A partition as many publishers write it: few sessions, runs and ids, so that they meet."""
    log: list[Record] = []
    for offset in range(draw(st.integers(0, 12))):
        fact = draw(FACTS)
        envelope: dict[str, Any] = {
            "event_id": event_id(draw(st.integers(0, 9))),
            "run_id": draw(st.sampled_from((RUN, OTHER_RUN))),
        }
        if isinstance(fact, str):
            prefix = fact.partition(":")[0]
            envelope["state_delta"] = {f"{prefix}:{draw(st.sampled_from('kl'))}": draw(st.integers(0, 9))}
        data = StateChanged() if isinstance(fact, str) else fact
        key = fact if isinstance(fact, str) else session_key(fact.session_id)
        log.append(shared(key, data, offset, **envelope))
    return log


@modest
@given(st.data())
def test_folding_in_any_batches_gives_the_same(data):
    log = data.draw(shared_logs())
    firsts = firsts_of(log)

    assert stored_after(data.draw(portions(log)), firsts) == stored_after([log], firsts)


@modest
@given(st.data())
def test_a_batch_that_is_folded_again_after_a_crash_changes_nothing(data):
    log = data.draw(shared_logs())
    firsts = firsts_of(log)
    parts = data.draw(portions(log))
    again = data.draw(st.integers(0, len(parts)))

    sessions, values, _ = stored_after([*parts[:again], *parts[max(0, again - 1) :]], firsts)

    assert (sessions, values) == stored_after([log], firsts)[:2]


@modest
@given(st.data())
def test_an_event_that_is_delivered_again_counts_once(data):
    log = data.draw(shared_logs())
    copies = data.draw(st.lists(st.sampled_from(log), max_size=5)) if log else []
    repeated = [*log, *(one._replace(offset=len(log) + index) for index, one in enumerate(copies))]

    assert stored_after([repeated], firsts_of(repeated)) == stored_after([log], firsts_of(log))
