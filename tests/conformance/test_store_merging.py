"""Merging pages, with both drivers: fewer of them, and not a record less or more at any moment."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import pytest
from tests.builders import event
from tests.records import admit, record, records

from runfold.store.pages import BYTES_MAX, EVENTS_MAX, Page, PageStore, pages_of
from runfold_projections.admission import Admitted
from runfold_schemas.events import AssistantMessage, UserMessage

LOG = "0" * 31 + "1"


@pytest.fixture
async def pages(store, edition) -> PageStore:
    pages = PageStore(store, edition)
    await pages.create_indexes()
    return pages


def texts(count: int, *, first_offset: int = 0, size: int = 1) -> list[Admitted]:
    return admit(records(*[AssistantMessage(message="x" * size)] * count, first_offset=first_offset))


async def insert(pages: PageStore, admitted: list[Admitted]) -> None:
    """Inserts a page for each record."""
    for one in admitted:
        offset = one.record.offset
        assert await pages.insert(pages_of(LOG, [one], first_offset=offset, next_offset=offset + 1)) == set()


async def covered(pages: PageStore, first_offset: int = 0) -> list[int]:
    """The offsets of what a reader takes, who skips what he has had and never meets a gap."""
    cursor, offsets = first_offset, []
    async for page in pages.read(LOG, first_offset=first_offset):
        assert page.first_offset <= cursor < page.next_offset
        offsets += [one.offset for one in page.records() if one.offset >= cursor]
        cursor = page.next_offset
    return offsets


class Interrupted(PageStore):
    """A store to which something happens while it reads, after so many pages."""

    def __init__(self, store, edition: str, *, after: int, happens: Callable[[], Awaitable[None]]) -> None:
        super().__init__(store, edition)
        self._after = after
        self._happens = happens

    async def read(self, log_id: str, *, first_offset: int = 0, bodies: bool = True) -> AsyncIterator[Page]:
        count = 0
        async with aclosing(super().read(log_id, first_offset=first_offset, bodies=bodies)) as pages:
            async for page in pages:
                yield page
                count += 1
                if count == self._after:
                    await self._happens()


async def test_small_pages_become_one_and_nothing_is_lost(pages):
    await insert(pages, texts(64))
    before = [page async for page in pages.read(LOG)]

    await pages.merge(LOG, first_offset=0)

    (merged,) = await pages.all(LOG)
    assert merged.records() == [one for page in before for one in page.records()]
    assert (merged.first_offset, merged.next_offset, merged.count) == (0, 64, 64)
    assert await covered(pages) == list(range(64))


async def test_a_merged_page_is_the_page_that_the_records_make_at_once(pages):
    spoken = event(UserMessage(message="hi"), turn_id="t-1")
    log = [
        record(spoken, 0, log_time=30),
        record(spoken, 1, log_time=90),
        record(b"{", 2, log_time=50),
        *records(AssistantMessage(message="a"), first_offset=3, turn_id="t-2"),
        *records(AssistantMessage(message="b"), UserMessage(message="c"), first_offset=4, turn_id="t-1"),
    ]
    admitted = admit(log)
    await insert(pages, admitted)

    await pages.merge(LOG, first_offset=0)

    assert await pages.all(LOG) == pages_of(LOG, admitted, first_offset=0, next_offset=6)


async def test_a_slice_of_nothing_but_a_gap_is_merged_like_any_other(pages):
    await pages.insert(pages_of(LOG, [], first_offset=0, next_offset=3))
    await insert(pages, texts(2, first_offset=3))

    await pages.merge(LOG, first_offset=0)

    assert await pages.all(LOG) == pages_of(
        LOG, (await covered_records(pages)), first_offset=0, next_offset=5
    )


async def covered_records(pages: PageStore) -> list[Admitted]:
    return admit([one async for page in pages.read(LOG) for one in page.records()])


async def test_merging_twice_is_harmless(pages):
    await insert(pages, texts(30))

    first = await pages.merge(LOG, first_offset=0)
    once = await pages.all(LOG)
    again = await pages.merge(LOG, first_offset=0)

    assert (first, again) == (0, 0)
    assert await pages.all(LOG) == once


@pytest.mark.parametrize("count", [0, 1])
async def test_there_is_nothing_to_merge_in_a_log_of_at_most_one_page(pages, count):
    await insert(pages, texts(count))

    assert await pages.merge(LOG, first_offset=0) == 0
    assert len(await pages.all(LOG)) == count


async def test_merging_goes_on_where_it_left_off(pages):
    position = 0
    for start in range(0, 1200, 40):
        for one in (20, 20):
            await pages.insert(
                pages_of(LOG, texts(one, first_offset=start), first_offset=start, next_offset=start + one)
            )
            start += one  # noqa: PLW2901 - two pages a round
        position = await pages.merge(LOG, first_offset=position)

    assert [page.count for page in await pages.all(LOG)] == [500, 500, 200]
    assert position == 1000
    assert await covered(pages) == list(range(1200))


async def test_a_merged_page_holds_at_most_500_events(pages):
    for start in range(0, 1250, 50):
        await pages.insert(
            pages_of(LOG, texts(50, first_offset=start), first_offset=start, next_offset=start + 50)
        )

    await pages.merge(LOG, first_offset=0)

    assert [page.count for page in await pages.all(LOG)] == [EVENTS_MAX, EVENTS_MAX, 250]


async def test_a_merged_page_holds_at_most_512_kilobytes_however_well_it_compresses(pages):
    await insert(pages, texts(12, size=100_000))
    await insert(pages, texts(1, first_offset=12, size=BYTES_MAX + 1))
    await insert(pages, texts(2, first_offset=13, size=100_000))

    await pages.merge(LOG, first_offset=0)

    stored = await pages.all(LOG)
    assert [page.count for page in stored] == [5, 5, 2, 1, 2]
    assert await covered(pages) == list(range(15))


async def test_merging_leaves_other_logs_alone(pages):
    await insert(pages, texts(3))
    others = ["0" * 31 + "0", "0" * 31 + "10", "0" * 31 + "2"]
    for log_id in others:
        await pages.insert(pages_of(log_id, texts(1), first_offset=0, next_offset=1))

    await pages.merge(LOG, first_offset=0)

    assert [len(await pages.all(log_id)) for log_id in others] == [1, 1, 1]


async def test_a_merge_never_replaces_a_page_that_reaches_further(store, edition, pages):
    await insert(pages, texts(20))

    async def other_worker() -> None:
        await insert(pages, texts(10, first_offset=20))
        await pages.merge(LOG, first_offset=0)

    slow = Interrupted(store, edition, after=20, happens=other_worker)
    await slow.merge(LOG, first_offset=0)

    (page,) = await pages.all(LOG)
    assert (page.first_offset, page.next_offset) == (0, 30)
    assert await covered(pages) == list(range(30))


async def test_two_workers_that_merge_the_same_log_store_no_record_twice(store, edition, pages):
    # More pages than the driver fetches at once, so that the slow worker meets what the other has
    # merged.
    await insert(pages, texts(150))

    async def other_worker() -> None:
        await pages.merge(LOG, first_offset=0)
        await insert(pages, texts(10, first_offset=150))

    slow = Interrupted(store, edition, after=3, happens=other_worker)
    await slow.merge(LOG, first_offset=0)
    await pages.merge(LOG, first_offset=0)

    (page,) = await pages.all(LOG)
    assert [one.offset for one in page.records()] == list(range(160))
    assert (page.count, len(set(page.event_ids())), len(page.event_ids())) == (160, 160, 160)


async def test_a_reader_in_the_middle_of_a_merge_sees_every_record_once(store, edition, pages):
    await insert(pages, texts(150))

    async def merge() -> None:
        await pages.merge(LOG, first_offset=0)

    for after in (1, 50, 101, 102, 149):
        reader = Interrupted(store, edition, after=after, happens=merge)
        assert await covered(reader) == list(range(150))


async def test_a_merge_that_stopped_before_it_deleted_is_finished_by_the_next(pages):
    await insert(pages, texts(20))
    # What a crash leaves: the merged page, and some of the pages inside it.
    small = await pages.all(LOG)
    await pages.merge(LOG, first_offset=0)
    await pages.insert(small[12:])
    await insert(pages, texts(5, first_offset=20))

    for first in (0, 5, 12, 15, 19, 24):
        assert await covered(pages, first) == list(range(first, 25))
    await pages.merge(LOG, first_offset=0)

    (page,) = await pages.all(LOG)
    assert [one.offset for one in page.records()] == list(range(25))


async def test_a_full_page_is_rid_of_what_a_merge_that_stopped_left_inside_it(pages):
    for start in range(0, EVENTS_MAX, 50):
        await pages.insert(
            pages_of(LOG, texts(50, first_offset=start), first_offset=start, next_offset=start + 50)
        )
    small = await pages.all(LOG)
    await pages.merge(LOG, first_offset=0)
    for page in small[6:]:
        await pages.insert([page])

    await pages.merge(LOG, first_offset=0)

    assert [(page.first_offset, page.next_offset) for page in await pages.all(LOG)] == [(0, EVENTS_MAX)]


async def test_a_page_that_an_overtaken_writer_puts_inside_a_merged_one_hides_nothing(pages):
    await insert(pages, texts(60))
    await pages.merge(LOG, first_offset=0)

    # It had folded this when it was paused; the merge took the page away whose id would have
    # refused it.
    for start in (20, 25):
        late = pages_of(LOG, texts(5, first_offset=start), first_offset=start, next_offset=start + 5)
        assert await pages.insert(late) == set()

    for first in (0, 19, 20, 22, 25, 29, 30, 31, 59, 60):
        assert await covered(pages, first) == list(range(first, 60))
        assert await pages.end(LOG, first_offset=first) == 60
    await pages.merge(LOG, first_offset=0)
    assert [(page.first_offset, page.next_offset) for page in await pages.all(LOG)] == [(0, 60)]


async def test_merging_goes_on_behind_a_page_that_an_overtaken_writer_put_across_the_end_of_a_merged_one(
    pages,
):
    await insert(pages, texts(60))
    await pages.merge(LOG, first_offset=0)
    await insert(pages, texts(5, first_offset=60))
    assert (
        await pages.insert(pages_of(LOG, texts(15, first_offset=55), first_offset=55, next_offset=70))
        == set()
    )
    await insert(pages, texts(10, first_offset=70))

    position = await pages.merge(LOG, first_offset=0)
    await insert(pages, texts(10, first_offset=80))
    await pages.merge(LOG, first_offset=position)

    for first in (0, 54, 55, 59, 60, 69, 70, 89):
        assert await covered(pages, first) == list(range(first, 90))
    assert [(page.first_offset, page.next_offset) for page in await pages.all(LOG)] == [(0, 60), (55, 90)]


async def test_the_last_events_are_all_there_where_pages_overlap(pages):
    for first, end in ((0, 20), (20, 65), (55, 90)):
        page = pages_of(LOG, texts(end - first, first_offset=first), first_offset=first, next_offset=end)
        assert await pages.insert(page) == set()

    for wanted in (1, 35, 36, 71, 80, 90):
        begin = await pages.begin_of_last(
            LOG, end=90, newest=wanted, counts=lambda counts: sum(counts.values())
        )
        assert 90 - begin >= wanted


async def test_readers_meet_no_gap_while_two_workers_merge_and_one_writes(pages):
    count = 240
    admitted = texts(count)
    acknowledged = 0
    reads = 0

    async def write() -> None:
        nonlocal acknowledged
        for one in admitted:
            await insert(pages, [one])
            acknowledged += 1

    async def merge(step: int) -> None:
        position = 0
        while acknowledged < count:
            position = await pages.merge(LOG, first_offset=position if step else 0)

    async def read(back: int) -> None:
        nonlocal reads
        while acknowledged < count:
            known = acknowledged
            first = max(0, known - back)
            seen = await covered(pages, first)
            assert seen == list(range(first, first + len(seen)))
            assert first + len(seen) >= known
            reads += 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        for step in (0, 1):
            tasks.create_task(merge(step))
        for back in (5, 60, count):
            tasks.create_task(read(back))

    assert reads > 20
    await pages.merge(LOG, first_offset=0)
    stored: list[Page] = await pages.all(LOG)
    assert [one.offset for page in stored for one in page.records()] == list(range(count))
    assert len(stored) == 1
