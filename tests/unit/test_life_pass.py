"""What a view remembers of a partition of the catalog, and the pass over the partition's lives."""

from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfold.log.catalog import folded_life, life_key, life_record, naming_session
from runfold.log.life_pass import HeldLives, RunLives
from runfold.log.life_places import LifePlaces
from runfold.log.watched_life import FollowedPartition
from runfold_schemas.catalog import Life
from runfold_schemas.codec import Record

LIVES = st.lists(
    st.builds(
        Life,
        run_id=st.sampled_from("abcdef"),
        log_id=st.sampled_from(["1", "2"]),
        agent_id=st.just("a"),
        ended=st.booleans(),
        deleted=st.sampled_from([False, False, True]),
    ),
    max_size=40,
)


def logged(lives: Iterable[Life], first_offset: int = 0) -> list[Record]:
    outgoing = map(life_record, lives)
    return [Record(offset, 0, each.key, (), each.value) for offset, each in enumerate(outgoing, first_offset)]


def by_rule(lives: Iterable[Life]) -> dict[str, Life]:
    """The life of each run that counts: the first, until its last change, or until its deletion."""
    counting: dict[str, Life] = {}
    for life in lives:
        current = counting.get(life.run_id)
        if current is None or (current.log_id == life.log_id and not current.deleted):
            counting[life.run_id] = life
    return counting


def passed(counted: Sequence[Record], read: Sequence[Record], later: Sequence[Record]) -> list[RunLives]:
    places = LifePlaces()
    for record in counted:
        places.add(record.key or b"", record.offset)
    held = HeldLives(places.remaining())
    runs = [run for record in read for run in held.take(record.key or b"", record.value or b"")]
    for record in later:
        held.take_later(record.key or b"", record.value or b"")
    return [*runs, *held.rest()]


def folded(runs: Iterable[RunLives]) -> Mapping[str, Life | None]:
    lives: dict[str, Life | None] = {}
    for key, values in runs:
        life = None
        for value in values:
            life = folded_life(life, key, value)
        run_id = key.removeprefix(life_key("")).decode()
        assert run_id not in lives, "a run comes once"
        lives[run_id] = life
    return lives


@given(LIVES)
def test_a_pass_returns_each_run_once_with_the_life_that_counts(lives: list[Life]):
    records = logged(lives)

    assert folded(passed(records, records, [])) == by_rule(lives)


@given(LIVES, LIVES, st.data())
def test_a_pass_loses_no_run_when_compaction_removes_records_meanwhile(
    before: list[Life], after: list[Life], data: st.DataObject
):
    counted, later = logged(before), logged(after, first_offset=len(before))
    replaced = [
        record
        for record in counted
        if any(other.key == record.key and other.offset > record.offset for other in counted + later)
    ]
    removed = data.draw(st.sets(st.sampled_from(replaced))) if replaced else set()
    read = [record for record in counted if record not in removed]

    lives = folded(passed(counted, read, later))

    assert {life.run_id for life in before} <= lives.keys()
    for run_id, life in lives.items():
        history = [*read, *later] if run_id in {r.run_id for r in after} else read
        values = [record.value for record in history if record.key == life_key(run_id)]
        possible = None
        folds = [possible := folded_life(possible, life_key(run_id), value) for value in values]
        assert life in folds


@given(st.lists(st.sampled_from("abcdef"), max_size=400), st.sampled_from("abcdef"))
def test_the_places_of_a_run_cover_all_of_its_records_and_few_others(run_ids: list[str], run_id: str):
    places = LifePlaces()
    for number, each in enumerate(run_ids):
        places.add(life_key(each), 10 * number)

    covered = places.find(life_key(run_id))

    ranges = [range(begin, 10 * len(run_ids) if end is None else end) for begin, end in covered]
    own = [10 * number for number, each in enumerate(run_ids) if each == run_id]
    assert all(any(offset in each for each in ranges) for offset in own)
    assert sum(map(len, ranges)) <= 640 * len(own)
    assert len(places) == len(run_ids)


def test_a_life_that_nobody_holds_is_not_kept():
    partition = FollowedPartition()
    partition.begin(0)
    held = partition.watch(life_key("held"))
    partition.watch(life_key("dropped"))

    for run_id in ("held", "dropped"):
        life = Life(run_id=run_id, log_id="1", agent_id="a")
        [record] = logged([life], first_offset=len(partition.places))
        taken = partition.take(record, life_key(run_id), watch=False)
        assert taken is (held if run_id == "held" else None)

    assert held.life == Life(run_id="held", log_id="1", agent_id="a")
    assert held.unread == 0


def test_a_partition_that_is_read_again_takes_no_life_back():
    partition = FollowedPartition()
    partition.begin(0)
    watched = partition.watch(life_key("r"))
    opened = Life(run_id="r", log_id="1", agent_id="a")
    records = logged([opened, opened.model_copy(update={"ended": True})])
    for record in records:
        partition.take(record, life_key("r"), watch=False)

    partition.begin(0)
    partition.take(records[0], life_key("r"), watch=False)

    assert watched.life is not None
    assert watched.life.ended


@pytest.mark.parametrize("value", [b'{"session_id":"caf\xc3\xa9"}', b'{"session_id":"caf\\u00e9"}'])
def test_a_life_that_may_name_a_session_is_found_in_any_form(value):
    assert naming_session("café")(value)
    assert not naming_session("other")(value.replace(b"\\", b""))
