"""The hash chain of a log and the trees of heads, as laws."""

from hypothesis import given
from hypothesis import strategies as st
from tests.records import logs, portions

from runfold.store.page import pack, packed_records, unpack
from runfold_projections.chain import START, digest_of, extend, extend_by_digests, head_of
from runfold_projections.merkle import path_of, root_by, root_of

RECORDS = st.lists(st.binary(max_size=40), max_size=70)
LEAVES = st.lists(st.binary(max_size=8), min_size=1, max_size=40)


@given(RECORDS.flatmap(lambda records: st.tuples(st.just(records), portions(records))))
def test_portions_of_any_size_give_the_same_chain(case):
    records, cut = case
    state = START
    for portion in cut:
        state = extend(state, portion)

    assert state == extend(START, records)
    assert state == extend_by_digests(START, map(digest_of, records))
    assert len(state) <= 16 * 32


@given(RECORDS, RECORDS)
def test_other_records_give_another_head(one: list[bytes], other: list[bytes]):
    """Changed, removed, inserted and reordered records are all of them."""
    assert (head_of(extend(START, one)) == head_of(extend(START, other))) == (one == other)


@given(RECORDS.filter(bool), st.data())
def test_each_mutation_changes_every_later_head(records: list[bytes], data: st.DataObject):
    at = data.draw(st.integers(0, len(records) - 1))
    mutation = data.draw(st.sampled_from(["change", "remove", "insert", "swap"]))
    mutated = [*records]
    match mutation:
        case "change":
            mutated[at] += b"x"
        case "remove":
            del mutated[at]
        case "insert":
            mutated.insert(at, data.draw(st.binary(max_size=40)))
        case _:
            other = data.draw(st.integers(0, len(records) - 1))
            mutated[at], mutated[other] = mutated[other], mutated[at]
    later = data.draw(RECORDS)

    heads = [head_of(extend(START, [*log, *later])) for log in (records, mutated)]

    assert (heads[0] == heads[1]) == (records == mutated)


@given(logs())
def test_the_bytes_of_records_are_those_of_a_page(log):
    assert packed_records(unpack(pack(log))) == packed_records(log)
    assert pack(log) == pack(unpack(pack(log)))


@given(LEAVES, st.data())
def test_a_path_leads_from_each_leaf_to_the_root(leaves: list[bytes], data: st.DataObject):
    index = data.draw(st.integers(0, len(leaves) - 1))
    path = path_of(leaves, index)

    assert root_by(path, leaves[index], index=index, count=len(leaves)) == root_of(leaves)


@given(LEAVES, st.data())
def test_no_path_leads_from_another_leaf(leaves: list[bytes], data: st.DataObject):
    index = data.draw(st.integers(0, len(leaves) - 1))
    path = path_of(leaves, index)
    other = data.draw(st.binary(max_size=8).filter(lambda leaf: leaf != leaves[index]))

    assert root_by(path, other, index=index, count=len(leaves)) != root_of(leaves)
    assert root_by(path[:-1], leaves[index], index=index, count=len(leaves)) != root_of(leaves) or not path
    assert root_by([*path, b""], leaves[index], index=index, count=len(leaves)) is None


@given(LEAVES, LEAVES)
def test_other_leaves_give_another_root(one: list[bytes], other: list[bytes]):
    assert (root_of(one) == root_of(other)) == (one == other)
