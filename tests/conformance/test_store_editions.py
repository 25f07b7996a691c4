"""Which edition is read, and the connection itself, with both drivers."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from runfold.local import free_port
from runfold.store import database
from runfold.store import editions as pointing
from runfold.store.database import CLIENT, Database, connect
from runfold.store.editions import Editions, Pointer, new_edition
from runfold.store.pages import PageStore, pages_of
from runfold.store.runs import RunFilter, RunState, RunStore
from runfold_projections.run import RunRecord
from runfold_schemas.errors import UnavailableError

from .conftest import DRIVERS


@pytest.fixture
async def opened(driver, mongo) -> AsyncIterator[Database]:
    """A database of this test's own, since a database has one pointer."""
    async with connect(mongo, f"t{uuid4().hex[:8]}", client=driver) as opened:
        yield opened
        await opened.client.drop_database(opened.name)


@pytest.fixture
def editions(opened) -> Editions:
    return Editions(opened)


async def fill(opened: Database, edition: str) -> None:
    await RunStore(opened, edition).create_indexes()
    await PageStore(opened, edition).insert(pages_of("log", [], first_offset=0, next_offset=1))


async def names(opened: Database) -> list[str]:
    return sorted(await opened.list_collection_names())


async def test_an_empty_database_has_no_edition(editions):
    assert await editions.current() is None
    assert await editions.others() == []


async def test_the_first_edition_stays(editions):
    first = await editions.current_or_first()

    assert await editions.current_or_first() == first
    assert await editions.current() == first


async def test_of_many_that_begin_at_once_all_get_the_same_edition(editions):
    begun = await asyncio.gather(*(editions.current_or_first() for _ in range(20)))

    assert set(begun) == {await editions.current()}


async def test_a_rebuild_begins_joins_and_switches_in_this_order(editions):
    first, second = await editions.current_or_first(), new_edition()

    assert not await editions.join(old=first, new=second)
    assert not await editions.switch(old=first, new=second)
    assert await editions.begin(old=first, new=second)
    assert await editions.pointer() == Pointer(first, second, None, None)
    assert not await editions.switch(old=first, new=second)
    assert await editions.join(old=first, new=second)
    assert await editions.pointer() == Pointer(first, second, second, None)
    assert await editions.switch(old=first, new=second)
    assert await editions.pointer() == Pointer(second, None, None, first)


async def test_a_rebuild_that_another_one_overtook_gets_no_further(editions):
    first, second, third = await editions.current_or_first(), new_edition(), new_edition()
    await editions.begin(old=first, new=second)
    await editions.join(old=first, new=second)

    assert await editions.begin(old=first, new=third)

    assert await editions.pointer() == Pointer(first, third, None, None)
    assert not await editions.switch(old=first, new=second)
    assert await editions.join(old=first, new=third)
    assert await editions.switch(old=first, new=third)
    assert not await editions.begin(old=first, new=second)
    assert await editions.current() == third


async def test_a_rebuild_that_gives_up_is_neither_built_nor_read_any_more(editions):
    first, second, third = await editions.current_or_first(), new_edition(), new_edition()
    await editions.begin(old=first, new=second)
    await editions.join(old=first, new=second)

    await editions.give_up(third)
    assert await editions.pointer() == Pointer(first, second, second, None)
    await editions.give_up(second)

    assert await editions.pointer() == Pointer(first, None, None, None)
    assert not await editions.switch(old=first, new=second)


async def test_joining_ends_by_itself(editions, monkeypatch):
    monkeypatch.setattr(pointing, "JOINED_SECONDS", 0.0)
    first, second = await editions.current_or_first(), new_edition()
    await editions.begin(old=first, new=second)

    assert await editions.join(old=first, new=second)

    assert await editions.pointer() == Pointer(first, second, None, None)
    assert not await editions.switch(old=first, new=second)


async def test_of_many_rebuilds_at_once_one_is_switched_to(editions):
    first = await editions.current_or_first()
    rivals = [new_edition() for _ in range(10)]

    async def rebuild(new: str) -> bool:
        return (
            await editions.begin(old=first, new=new)
            and await editions.join(old=first, new=new)
            and await editions.switch(old=first, new=new)
        )

    made = await asyncio.gather(*(rebuild(rival) for rival in rivals))

    (winner,) = [rival for rival, done in zip(rivals, made, strict=True) if done]
    assert await editions.current() == winner


async def test_the_others_are_those_with_collections_that_are_not_read(editions, opened):
    current = await editions.current_or_first()
    left = sorted(new_edition() for _ in range(2))
    for edition in (current, *left):
        await fill(opened, edition)

    assert await editions.others() == left


async def test_dropping_a_edition_leaves_the_rest(editions, opened):
    current, left = await editions.current_or_first(), new_edition()
    for edition in (current, left):
        await fill(opened, edition)
    await opened["notes"].insert_one({"kept": True})

    await editions.drop(left)
    await editions.drop(left)

    assert await names(opened) == sorted([f"pages.{current}", f"runs.{current}", "notes", "pointers"])
    assert await editions.current() == current


async def test_dropping_all_leaves_a_database_that_begins_anew(editions, opened):
    before, left = await editions.current_or_first(), new_edition()
    for edition in (before, left):
        await fill(opened, edition)

    await editions.drop_all()

    assert await names(opened) == []
    assert await editions.current() is None
    assert await editions.current_or_first() not in (before, left)


async def test_dropping_an_empty_database_is_harmless(editions):
    await editions.drop_all()

    assert await editions.current() is None


def test_editions_have_names_of_their_own():
    made = [new_edition() for _ in range(100)]

    assert len(set(made)) == 100
    assert all("." not in one for one in made)


async def test_a_database_that_does_not_answer_is_unavailable(driver, monkeypatch):
    monkeypatch.setattr(database, "_TIMEOUT_MS", 200)

    async with sockets_left_open():
        with pytest.raises(UnavailableError, match="MongoDB is not available") as refusal:
            async with connect(f"mongodb://127.0.0.1:{free_port()}/?replicaSet=rs0", "t", client=driver):
                pass

    assert refusal.value.retriable
    assert refusal.value.server == "MongoDB"


async def test_every_call_to_a_server_that_has_gone_is_unavailable(driver, mongo, monkeypatch):
    monkeypatch.setattr(database, "_TIMEOUT_MS", 100)
    async with sockets_left_open(), relayed(mongo) as relay, connect(relay.url, "t", client=driver) as opened:
        editions, runs, pages = Editions(opened), RunStore(opened, "g"), PageStore(opened, "g")
        relay.cut()

        answers = await asyncio.gather(
            runs.get("a"),
            runs.active([1]),
            runs.add([RunState("life", partition=0, active=True, record=RunRecord(run_id="a"))]),
            runs.list(RunFilter(), limit=1),
            pages.end("log"),
            pages.insert(pages_of("log", [], first_offset=0, next_offset=1)),
            editions.current(),
            editions.current_or_first(),
            return_exceptions=True,
        )

    assert [type(answer) for answer in answers] == [UnavailableError] * 8


async def test_reads_and_writes_are_of_what_a_majority_holds(store):
    assert store.write_concern.document == {"w": "majority", "j": True}
    assert store.read_concern.document == {"level": "majority"}
    assert store.read_preference.mode == 0


def test_the_driver_that_is_used_is_among_those_that_are_tested():
    assert CLIENT in DRIVERS.values()


class Relay:
    """A way to the server that can be cut."""

    def __init__(self, server: str) -> None:
        self._host, self._port = server.split(":")
        self._writers: list[asyncio.StreamWriter] = []
        self.url = ""

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers += (writer, back)
        await asyncio.gather(pipe(reader, back), pipe(there, writer))

    def cut(self) -> None:
        self._listener.close()
        for writer in self._writers:
            writer.close()

    async def listen(self) -> None:
        self._listener = await asyncio.start_server(self.carry, "127.0.0.1", 0)
        host, port = self._listener.sockets[0].getsockname()
        self.url = f"mongodb://{host}:{port}/?directConnection=true"


@asynccontextmanager
async def relayed(mongo: str) -> AsyncIterator[Relay]:
    relay = Relay(urlsplit(mongo).netloc)
    await relay.listen()
    try:
        yield relay
    finally:
        relay.cut()


@asynccontextmanager
async def sockets_left_open() -> AsyncIterator[None]:
    """PyMongo's async client, closed while it connects anew, leaves that socket to the collector,
    which warns.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
    writer.close()
