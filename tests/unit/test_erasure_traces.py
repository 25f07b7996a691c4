"""What an erasure finds of a user in the topics that runs share."""

from itertools import count

from tests.builders import event

from runfold.encryption.subjects import subject_of_scope, user_subject
from runfold.erasure.traces import Traces, _take
from runfold.log.shared import Keyed
from runfold_projections.memory import MemoryFold, MemoryRecord
from runfold_schemas.codec import new_data
from runfold_schemas.data import Data
from runfold_schemas.memories import Memory, MemoryCreated, MemoryDeleted, memory_key
from runfold_schemas.sessions import SessionCreated, SessionDeleted, session_key

SUBJECT = 64 * "a"
KEY = memory_key("b", "m")


def created(user: str, **scope: str) -> MemoryCreated:
    memory = Memory(fact=f"of {user}", scope={"user": user, **scope})
    return new_data(MemoryCreated, bank_id="b", memory_id="m", memory=memory)


def deleted(**erased: object) -> MemoryDeleted:
    return new_data(MemoryDeleted, bank_id="b", memory_id="m", **erased)


def traces_of(user: str, key: str, *changes: Data, runs: tuple[str, ...] = ()) -> Traces:
    traces = Traces()
    for offset, data in enumerate(changes):
        envelope = {"run_id": runs[offset]} if runs else {}
        _take(traces, Keyed(key, event(data, **envelope), offset, 0), user=user, subject=SUBJECT)
    return traces


def test_an_erasure_names_the_life_of_a_memory():
    again = traces_of("ann", KEY, created("ann"), deleted(), created("bob"))

    assert [(each.key, each.began) for each in again.memories.values()] == [(KEY, 0)]
    assert traces_of("bob", KEY, created("ann"), deleted(), created("bob")).memories[KEY].began == 2


def test_an_erasure_leaves_a_later_memory_of_somebody_else():
    numbers, fold = count(), MemoryFold({})
    for data in (created("ann"), deleted(), created("bob"), deleted(erased=SUBJECT, began=0)):
        fold.take(KEY, event(data), next(numbers))

    record = fold.records()[KEY]
    assert isinstance(record, MemoryRecord)
    assert record.memory.fact == "of bob"
    assert [revision.fact for _, revision in fold.revisions] == ["of bob"]
    assert fold.erased == {KEY: 2}


def test_an_erased_earlier_memory_is_no_trace_any_more():
    erasure = deleted(erased=SUBJECT, began=0)
    traces = traces_of("ann", KEY, created("ann"), deleted(), created("bob"), erasure)

    assert (traces.memories, set(traces.erased_memories)) == ({}, {KEY})
    back = traces_of("ann", KEY, created("ann"), deleted(), created("ann"), erasure)
    assert back.memories[KEY].began == 2


def test_the_first_creation_of_a_session_owns_its_id():
    session = [
        new_data(SessionCreated, session_id="s", app="a", user=user, log_id=f"{number:032x}")
        for number, user in enumerate(("bob", "ann"))
    ]

    loser = traces_of("ann", session_key("s"), *session, runs=("r-bob", "r-ann"))
    winner = traces_of("bob", session_key("s"), *session, runs=("r-bob", "r-ann"))

    assert (loser.own_session_ids("ann"), loser.sessions) == (set(), {})
    assert winner.own_session_ids("bob") == {"s"}
    changes = (session[0], new_data(SessionDeleted, session_id="s"), session[1])
    later = traces_of("ann", session_key("s"), *changes, runs=("r-bob", "r-bob", "r-ann"))
    assert later.own_session_ids("ann") == {"s"}


def test_a_scope_of_two_users_has_a_key_that_both_erasures_destroy():
    subject = subject_of_scope("b", {"user": "bob", "user_id": "ann"})

    assert subject == subject_of_scope("b", {"user": "ann", "user_id": "bob"})
    assert subject not in (user_subject("ann"), user_subject("bob"))
    assert subject_of_scope("b", {"user": "ann", "user_id": "ann"}) == user_subject("ann")
    for user in ("ann", "bob"):
        assert traces_of(user, KEY, created("bob", user_id="ann")).subjects == {subject}
