"""Pages, with both drivers: the log's exact bytes, without a gap."""

import pytest
from pymongo import WriteConcern
from tests.builders import event
from tests.records import LOG_TIME, admit, record, records

from runfold.store.pages import BYTES_MAX, EVENTS_MAX, Page, PageStore, pages_of
from runfold_projections.admission import Admitted
from runfold_schemas.codec import Record
from runfold_schemas.errors import UnavailableError
from runfold_schemas.events import AssistantMessage, UserMessage
from runfold_schemas.runs import RunCompleted, RunOpened

LOG, OTHER = "0" * 31 + "1", "0" * 31 + "2"


@pytest.fixture
def pages(store, edition) -> PageStore:
    return PageStore(store, edition)


def texts(count: int, *, first_offset: int = 0, size: int = 1) -> list[Admitted]:
    return admit(records(*[AssistantMessage(message="x" * size)] * count, first_offset=first_offset))


def paged(admitted: list[Admitted], *, log_id: str = LOG, first_offset: int | None = None) -> list[Page]:
    """The pages of records without a gap around them."""
    first = admitted[0].record.offset if first_offset is None else first_offset
    return pages_of(log_id, admitted, first_offset=first, next_offset=admitted[-1].record.offset + 1)


async def all_of(pages: PageStore, *, log_id: str = LOG, first_offset: int = 0) -> list[Page]:
    return [page async for page in pages.read(log_id, first_offset=first_offset)]


def offsets(read: list[Page]) -> list[int]:
    return [one.offset for page in read for one in page.records()]


def raw(value: bytes | None, offset: int = 0, **fields) -> Admitted:
    """A record of any bytes at all: nothing of it is looked at."""
    return Admitted(record(value, offset, **fields), "undecodable", None, "raw")


async def test_an_empty_log_has_no_pages_and_ends_at_zero(pages):
    assert await all_of(pages) == []
    assert await pages.end(LOG) == 0
    assert await pages.all(LOG) == []


async def test_what_was_inserted_is_read(pages):
    inserted = paged(texts(3))

    beaten = await pages.insert(inserted)

    assert beaten == set()
    assert await all_of(pages) == inserted
    assert await pages.all(LOG) == inserted
    assert await pages.end(LOG) == 3


async def test_inserting_nothing_is_harmless(pages):
    assert await pages.insert([]) == set()


@pytest.mark.parametrize(
    "one",
    [
        Record(0, LOG_TIME, None, (), None),
        Record(0, LOG_TIME, b"", (("", b""),), b""),
        Record(0, 0, b"\0\xff", (("é\0", b"\xfe"), ("twice", b"1"), ("twice", b"2")), b"\0\xff{"),
        Record(2**62, 2**62, b"k", (), b"v"),
        Record(0, LOG_TIME, None, (), b'{"a": 1e400, "b": ' + b"9" * 400 + b"}"),
    ],
)
async def test_a_record_comes_back_byte_for_byte(pages, one):
    admitted = [Admitted(one, "undecodable", None, "\0 é")]

    await pages.insert(paged(admitted))
    (page,) = await all_of(pages, first_offset=one.offset)

    assert page.records() == [one]
    assert page.exceptions == [(one.offset, "undecodable", "\0 é")]


async def test_a_record_as_large_as_a_topic_takes_is_stored(pages, chance):
    value = chance.randbytes(8 * 1024 * 1024)

    await pages.insert(paged([raw(value)]))
    (page,) = await all_of(pages)

    assert page.records()[0].value == value


async def test_a_page_says_what_is_in_it(pages):
    opened = event(RunOpened(agent_id="a", log_id=LOG))
    log = [
        record(opened, 0, log_time=50),
        record(event(UserMessage(message="hi"), turn_id="t.1"), 1, log_time=90),
        record(opened, 2, log_time=70),
        record(b"{", 3, log_time=71),
        record(event(AssistantMessage(message="x"), turn_id="t.1", expected_offset=0), 4, log_time=72),
        record(event(RunCompleted()), 5, log_time=73),
        record(event(UserMessage(message="bye"), turn_id="$t"), 6, log_time=74),
    ]
    admitted = admit(log)

    await pages.insert(paged(admitted))
    (page,) = await all_of(pages)

    assert (page.log_id, page.first_offset, page.next_offset, page.count) == (LOG, 0, 7, 7)
    assert (page.first_time, page.max_time) == (50, 90)
    assert page.counts == {"run_opened": 1, "user_message": 2, "run_completed": 1}
    assert page.turns == ["t.1", "$t"]
    assert page.event_ids() == [one.event.event_id for one in admitted if one.counts]
    assert [(offset, outcome) for offset, outcome, _ in page.exceptions] == [
        (2, "duplicate"),
        (3, "undecodable"),
        (4, "rejected"),
        (6, "late"),
    ]


async def test_without_bodies_a_page_is_its_summary(pages):
    (inserted,) = paged(texts(3))
    await pages.insert([inserted])

    (page,) = [page async for page in pages.read(LOG, bodies=False)]

    assert page.body == b""
    assert (page.count, page.event_ids()) == (3, inserted.event_ids())


async def test_who_comes_second_learns_which_logs_were_there(pages):
    await pages.insert(paged(texts(1)))
    mine = [*paged(texts(2)), *paged(texts(2), log_id=OTHER)]

    beaten = await pages.insert(mine)

    assert beaten == {LOG}
    assert await pages.end(LOG) == 1
    assert await all_of(pages, log_id=OTHER) == mine[1:]


async def test_a_write_that_no_majority_holds_is_not_taken_for_done(store, edition):
    # This set has one node, so the page is written but never acknowledged by two.
    pages = PageStore(store.with_options(write_concern=WriteConcern(w=2, wtimeout=1)), edition)

    with pytest.raises(UnavailableError):
        await pages.insert(paged(texts(1)))


async def test_logs_do_not_mix_even_where_one_id_begins_with_another(pages):
    names = ["a", "a0", "b", "ab"]
    for name in names:
        await pages.insert(paged(texts(len(name)), log_id=name))

    for name in names:
        assert await pages.end(name) == len(name)
        assert {page.log_id for page in await pages.all(name)} == {name}


async def test_pages_go_on_over_gaps_in_the_offsets(pages):
    await pages.insert(paged(texts(2)))
    await pages.insert(pages_of(LOG, texts(1, first_offset=90), first_offset=2, next_offset=100))
    await pages.insert(pages_of(LOG, [], first_offset=100, next_offset=105))
    await pages.insert(paged(texts(1, first_offset=105)))

    read = await all_of(pages)

    assert offsets(read) == [0, 1, 90, 105]
    assert await pages.end(LOG) == 106
    assert offsets(await all_of(pages, first_offset=50)) == [90, 105]
    assert offsets(await all_of(pages, first_offset=102)) == [105]


async def test_reading_stops_at_the_first_offset_that_nothing_covers(pages):
    await pages.insert(paged(texts(2)))
    await pages.insert(paged(texts(2, first_offset=5)))

    assert offsets(await all_of(pages)) == [0, 1]
    assert await pages.end(LOG) == 2
    assert await all_of(pages, first_offset=3) == []
    assert await pages.end(LOG, first_offset=3) == 3
    assert offsets(await all_of(pages, first_offset=5)) == [5, 6]


@pytest.mark.parametrize("first", [0, 1, 9, 10, 15, 119])
async def test_reading_from_the_middle_begins_with_the_page_that_covers_it(pages, first):
    for start in range(0, 120, 10):
        await pages.insert(paged(texts(10, first_offset=start)))

    read = await all_of(pages, first_offset=first)

    assert read[0].first_offset == first // 10 * 10
    assert offsets(read) == list(range(first // 10 * 10, 120))
    assert await pages.end(LOG, first_offset=first) == 120


async def test_offsets_sort_by_number_and_not_by_their_text(pages):
    for start, after in ((9, 10), (10, 99), (99, 100), (100, 10**16), (10**16, 2**63 - 1)):
        await pages.insert(pages_of(LOG, texts(1, first_offset=start), first_offset=start, next_offset=after))

    assert offsets(await all_of(pages, first_offset=9)) == [9, 10, 99, 100, 10**16]


async def test_the_first_times_of_logs_are_those_of_their_first_records(pages):
    await pages.insert([*paged(texts(1)), *paged([raw(b"x", log_time=7)], log_id=OTHER)])

    assert await pages.first_times([LOG, OTHER, "none"]) == {LOG: LOG_TIME, OTHER: 7}


async def test_deleting_a_log_leaves_the_others(pages):
    for log_id in (LOG, OTHER, f"{LOG}0"):
        await pages.insert(paged(texts(1), log_id=log_id))

    await pages.delete_logs([LOG])

    assert [await pages.end(log_id) for log_id in (LOG, OTHER, f"{LOG}0")] == [0, 1, 1]


def test_a_page_holds_at_most_500_events():
    cut = paged(texts(1201))

    assert [page.count for page in cut] == [EVENTS_MAX, EVENTS_MAX, 201]
    assert [(page.first_offset, page.next_offset) for page in cut] == [(0, 500), (500, 1000), (1000, 1201)]


@pytest.mark.parametrize(
    "fields",
    [{"value": b"x" * 200_000}, {"key": b"x" * 200_000}, {"headers": (("h", b"x" * 200_000),)}],
    ids=list,
)
def test_a_page_holds_at_most_512_kilobytes_of_values_keys_and_headers(fields):
    cut = paged([raw(offset=offset, **({"value": None} | fields)) for offset in range(7)])

    assert [page.count for page in cut] == [2, 2, 2, 1]


def test_a_record_larger_than_a_page_has_one_of_its_own():
    sizes = [1, BYTES_MAX + 1, BYTES_MAX, 1, BYTES_MAX - 1]

    cut = paged([raw(b"x" * size, offset) for offset, size in enumerate(sizes)])

    assert [page.count for page in cut] == [1, 1, 1, 2]
    assert [page.first_offset for page in cut] == [0, 1, 2, 3]


def test_pages_cut_in_a_gap_leave_none():
    admitted = [*texts(500), *texts(1, first_offset=700)]

    cut = pages_of(LOG, admitted, first_offset=0, next_offset=800)

    assert [(page.first_offset, page.next_offset) for page in cut] == [(0, 700), (700, 800)]
