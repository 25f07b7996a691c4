"""The caches of all tenants share the memory of a process."""

from hypothesis import given
from hypothesis import strategies as st

from runfold.query.cache_room import CacheRoom
from runfold.query.checkpoints import Checkpoint, Checkpoints


def checkpoint(size: int) -> Checkpoint:
    return Checkpoint(1, b"x" * size, frozenset())


def test_the_largest_cache_gives_way():
    room = CacheRoom(100)
    loud, quiet = Checkpoints(room), Checkpoints(room)
    quiet.keep(("1", "quiet", None), checkpoint(20))
    for number in range(10):
        loud.keep(("1", f"loud {number}", None), checkpoint(20))

    quiet.keep(("1", "quiet 2", None), checkpoint(20))

    assert (loud.size, quiet.size) == (60, 40)
    assert loud.get(("1", "loud 9", None)).members
    assert not loud.get(("1", "loud 6", None)).members


def test_one_cache_alone_has_all_of_the_room():
    room = CacheRoom(100)
    alone, _empty = Checkpoints(room), Checkpoints(room)

    for number in range(10):
        alone.keep(("1", f"log {number}", None), checkpoint(20))

    assert alone.size == 100


def test_a_cache_that_is_gone_takes_no_room():
    room = CacheRoom(100)
    cache = Checkpoints(room)
    cache.keep(("1", "gone", None), checkpoint(80))
    del cache
    another = Checkpoints(room)

    another.keep(("1", "kept", None), checkpoint(90))

    assert another.size == 90


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=40))
def test_the_caches_never_have_more_than_the_room(kept: list[tuple[int, int]]):
    room = CacheRoom(100)
    caches = [Checkpoints(room) for _ in range(3)]

    for number, (which, size) in enumerate(kept):
        caches[which].keep(("1", str(number), None), checkpoint(size))
        assert sum(cache.size for cache in caches) <= 100
