"""Fetch sessions with real brokers: what a broker forgets or refuses costs a request, no record."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import uuid4

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.api import Request
from aiokafka.protocol.fetch import FetchRequest_v11
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.clusters import REPLICATED, Cluster, cluster
from tests.fetching import Quota, RawFetch, Requests, SessionReader
from tests.killing import ROUNDS
from tests.processes import soonest, until
from tests.tails import (
    PARTITIONS,
    Appender,
    Course,
    Step,
    TailReader,
    create_topics,
    delete_topics,
    read_on,
    read_plainly,
    steps,
)

from runfold.log import hot_and_cold
from runfold.log.fetch_session import Answer, FetchSession
from runfold.log.hot_and_cold import Pace
from runfold.log.leaders import Leaders, OffsetSearch
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold_schemas.topics import Partition

EXAMPLES: Final = 4 * ROUNDS

SLOTS: Final = "max.incremental.fetch.session.cache.slots"
PLACES: Final = 64
"""The places for sessions at the first broker, eight in each of its eight shards. Tests of a broker
that knows no session leave one there, which the broker keeps for two minutes.
"""
ROOMY, FULL = 1, 2
"""The second broker has one place, which is none: a broker divides them by eight."""

RESTLESS: Final = Pace(hot_seconds=0.1, hot_max=2, cold_wait_ms=200, cold_max=2)
"""Partitions move between sessions all the time."""

LONG_MS: Final = 30_000  # a fetch that waits so long ends by a record, also on a busy machine

FAULTS: Final = ("wrong id", "wrong epoch", "lost request", "lost answer")


@pytest.fixture(scope="module")
async def brokers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder, own = tmp_path_factory.mktemp("kafka"), [{SLOTS: str(PLACES)}, {SLOTS: "1"}]
    settings = {**REPLICATED, "quota.window.num": "2"}  # by default, a quota counts 11 s
    async with cluster(folder, settings=settings, own=own) as brokers:
        yield brokers


@pytest.fixture(scope="module")
async def appender(brokers: Cluster) -> AsyncIterator[Appender]:
    async with Appender.connect(brokers.kafka, f"t{uuid4().hex[:8]}") as appender:
        yield appender


@pytest.fixture
async def client(brokers: Cluster) -> AsyncIterator[AIOKafkaClient]:
    async with connected(brokers) as client:
        yield client


@asynccontextmanager
async def connected(brokers: Cluster, **options: str) -> AsyncIterator[AIOKafkaClient]:
    client = AIOKafkaClient(bootstrap_servers=brokers.kafka, **options)
    await client.bootstrap()
    try:
        yield client
    finally:
        await client.close()


async def partitions(brokers: Cluster, prefix: str, count: int, *, leader: int = ROOMY) -> list[Partition]:
    await brokers.create(f"{prefix}.run.{leader}", leaders=[leader] * count)
    places = [Partition(f"{prefix}.run.{leader}", number) for number in range(count)]
    async with connected(brokers) as client:

        async def are_led() -> bool:
            # A broker may be told of its partitions after the others.
            answer = await client.send(leader, RawFetch(0, -1, *places))
            return not any(entry[1] for _, entries in answer.topics for entry in entries)

        await until(are_led, what="the partitions at their leader")
    return places


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


async def test_after_its_first_request_a_session_names_only_what_changed(
    brokers: Cluster, client: AIOKafkaClient, appender: Appender, prefix: str, requests: Requests
):
    places = await partitions(brokers, prefix, 20)
    session = FetchSession(client, ROOMY, "test")
    reader = SessionReader(session, places)
    requests.begin()
    await reader.fetch()
    await reader.fetch()
    await appender.append(places[7])
    await reader.reads({places[7]: 1})
    await reader.fetch()

    assert session.session_id in requests.sessions
    assert session.session_id != 0
    assert [len(sent.topics) for sent in requests.sent[:2]] == [20, 0]
    assert all(len(sent.topics) <= 1 for sent in requests.sent[1:])
    assert [sent.session_epoch for sent in requests.sent] == list(range(len(requests.sent)))
    assert set(requests.errors) == {0}
    await session.close()


@pytest.mark.parametrize(
    ("wrong", "error"), [({"session_id": 12_345, "epoch": 5}, 70), ({"epoch": 99}, 71)], ids=["70", "71"]
)
async def test_a_session_that_the_broker_does_not_know_begins_anew(
    brokers: Cluster,
    client: AIOKafkaClient,
    appender: Appender,
    prefix: str,
    requests: Requests,
    *,
    wrong: dict[str, int],
    error: int,
):
    places = await partitions(brokers, prefix, 20)
    session = FetchSession(client, ROOMY, "test")
    reader = SessionReader(session, places)
    await asyncio.gather(*(appender.append(at, 3) for at in places))
    await reader.reads(dict.fromkeys(places, 3))
    await asyncio.gather(*(appender.append(at, 2) for at in places[::2]))
    for name, value in wrong.items():
        setattr(session, name, value)

    assert await reader.fetch() == []
    assert requests.errors[-1] == error
    await reader.reads(dict.fromkeys(places[::2], 5) | dict.fromkeys(places[1::2], 3))
    assert session.resets == 1
    assert session.session_id != 0
    await session.close()


async def test_a_session_that_begins_anew_gives_its_old_place_back(
    brokers: Cluster, client: AIOKafkaClient, prefix: str
):
    places = await partitions(brokers, prefix, 20)
    free = await free_places(brokers, places[0])
    session = FetchSession(client, ROOMY, "test")
    reader = SessionReader(session, places)
    for _ in range(PLACES):
        await reader.fetch(0)
        assert session.session_id != 0
        session.epoch = 99
        await reader.fetch(0)
    await reader.fetch(0)

    assert await free_places(brokers, places[0]) == free - 1
    await session.close()
    assert await free_places(brokers, places[0]) == free


async def free_places(brokers: Cluster, at: Partition) -> int:
    """How many sessions the first broker grants. They are closed again."""
    async with connected(brokers) as client:
        opened = [await client.send(ROOMY, RawFetch(0, 0, at)) for _ in range(PLACES)]
        granted = [answer.session_id for answer in opened if answer.session_id]
        for session_id in granted:
            await client.send(ROOMY, RawFetch(session_id, -1, at))
    return len(granted)


@pytest.mark.parametrize("count", [3, 30])
async def test_where_no_session_is_granted_every_request_is_whole(
    brokers: Cluster,
    client: AIOKafkaClient,
    appender: Appender,
    prefix: str,
    *,
    requests: Requests,
    count: int,
):
    places = await partitions(brokers, prefix, count, leader=FULL)
    reader = SessionReader(FetchSession(client, FULL, "test"), places)
    await asyncio.gather(*(appender.append(at, 2) for at in places))
    requests.begin()
    await reader.reads(dict.fromkeys(places, 2))
    await appender.append(places[0])
    await reader.reads({places[0]: 3})

    assert set(requests.sessions) == {0}
    assert {len(sent.topics) for sent in requests.sent} == {count}


async def test_whole_requests_rotate_so_that_no_partition_starves(
    brokers: Cluster, client: AIOKafkaClient, appender: Appender, prefix: str
):
    places = await partitions(brokers, prefix, 4, leader=FULL)
    session = FetchSession(client, FULL, "test", answer_bytes=1_000, partition_bytes=1_000)
    reader = SessionReader(session, places)
    await asyncio.gather(*(appender.append(at, size=900) for at in places))
    for at in places:
        for _ in range(5):
            await appender.append(at, size=900)
    first = [answer.partition for _ in range(4) for answer in await reader.fetch() if answer.data]

    assert sorted(first) == places
    await reader.reads(dict.fromkeys(places, 6))


async def test_a_broker_that_knows_no_sessions_gets_whole_requests(
    brokers: Cluster, client: AIOKafkaClient, appender: Appender, prefix: str
):
    places = await partitions(brokers, prefix, 20)
    connection = await client._get_conn(ROOMY, group="test")
    connection._versions = {**connection._versions, FetchRequest_v11.API_KEY: (0, 6)}
    session = FetchSession(client, ROOMY, "test")
    reader = SessionReader(session, places)
    for count in (1, 2):
        await asyncio.gather(*(appender.append(at) for at in places))
        await reader.reads(dict.fromkeys(places, count))

    assert session.session_id == 0


async def test_a_partition_that_is_forgotten_while_a_request_waits_is_not_in_the_answer(
    brokers: Cluster, client: AIOKafkaClient, appender: Appender, prefix: str, requests: Requests
):
    places = await partitions(brokers, prefix, 20)
    forgotten, other = places[:2]
    session = FetchSession(client, ROOMY, "test")
    reader = SessionReader(session, places)
    await reader.fetch()
    begun = requests.begun
    waiting = asyncio.create_task(session.fetch(LONG_MS))
    await requests.wait_for(begun + 1)
    session.forget(forgotten)
    await appender.append(forgotten)

    assert await waiting == []
    await appender.append(forgotten)
    await appender.append(other)
    await reader.reads({other: 1})
    assert forgotten not in session
    assert reader.records[forgotten] == []

    session.ask(forgotten, 0)
    await reader.reads({forgotten: 2})
    await session.close()


async def test_an_answer_says_from_which_offset_it_was_asked(
    brokers: Cluster, client: AIOKafkaClient, appender: Appender, prefix: str, requests: Requests
):
    [at, *others] = await partitions(brokers, prefix, 20)
    await appender.append(at, 10)
    session = FetchSession(client, ROOMY, "test")
    for one in (at, *others):
        session.ask(one, 10 if one == at else 0)
    await session.fetch(0)
    begun = requests.begun
    waiting = asyncio.create_task(session.fetch(LONG_MS))
    await requests.wait_for(begun + 1)
    session.ask(at, 4)
    await appender.append(at)

    [late] = await waiting
    assert (late.partition, late.asked, late.end) == (at, 10, 11)
    [answer] = await session.fetch(1_000)
    assert (answer.partition, answer.asked, answer.end) == (at, 4, 11)
    await session.close()


async def test_a_throttled_session_waits_and_goes_on(
    brokers: Cluster, appender: Appender, prefix: str, requests: Requests
):
    places = await partitions(brokers, prefix, 20)
    async with connected(brokers, client_id=prefix) as client:
        await client.send(ROOMY, Quota(prefix, 500_000.0))
        session = FetchSession(client, ROOMY, "test", answer_bytes=200_000)
        reader = SessionReader(session, places)
        count = 0

        async def is_throttled() -> bool:
            # A busy machine may read the first records more slowly than the quota allows.
            nonlocal count
            count += 5
            await asyncio.gather(*(appender.append(at, 5, size=15_000) for at in places))
            await reader.reads(dict.fromkeys(places, count))
            return any(answer.throttle_time_ms for answer in requests.answers)

        await until(is_throttled, what="an answer that was throttled")
        await client.send(ROOMY, Quota(prefix, 1e9))
        await session.close()

    assert session.resets == 0


async def test_a_session_begins_anew_after_a_restart_of_its_broker(
    brokers: Cluster, client: AIOKafkaClient, appender: Appender, prefix: str, requests: Requests
):
    places = await partitions(brokers, prefix, 20)
    session = FetchSession(client, ROOMY, "test")
    reader = SessionReader(session, places)
    await appender.append(places[0], 2)
    await reader.reads({places[0]: 2})
    await brokers.brokers[ROOMY].kill()
    with pytest.raises(KafkaError):
        await reader.fetch()
    await brokers.brokers[ROOMY].start()
    await appender.append(places[0], 2)
    await reader.reads({places[0]: 4})

    assert session.resets == 1
    assert session.session_id != 0
    await session.close()


async def test_a_client_with_a_dozen_partitions_takes_no_place_for_sessions(
    brokers: Cluster, appender: Appender, prefix: str
):
    places = await partitions(brokers, prefix, 12)
    free = await free_places(brokers, places[0])
    async with TailReader.connect(brokers.kafka, pace=RESTLESS) as reader:
        for at in places:
            reader.follow(at)
        for count in (1, 2, 3):
            await asyncio.gather(*(appender.append(at) for at in places))
            await reader.has(dict.fromkeys(places, count))
            await asyncio.sleep(0.2)

        assert await free_places(brokers, places[0]) == free > 0


async def test_a_client_with_many_partitions_takes_two_places_and_gives_them_back(
    brokers: Cluster, appender: Appender, prefix: str
):
    places = await partitions(brokers, prefix, 60)
    free = await free_places(brokers, places[0])
    async with TailReader.connect(brokers.kafka, pace=Pace(hot_seconds=0.3, hot_max=20)) as reader:
        for at in places:
            reader.follow(at)
        await asyncio.gather(*(appender.append(at) for at in places))
        await reader.has(dict.fromkeys(places, 1))

        assert free - 2 <= await free_places(brokers, places[0]) < free
    assert await free_places(brokers, places[0]) == free


async def test_a_quiet_partition_that_is_followed_from_an_earlier_offset_arrives_at_once(
    brokers: Cluster, appender: Appender, prefix: str
):
    places = await partitions(brokers, prefix, 20)
    at = places[3]
    async with TailReader.connect(brokers.kafka, pace=Pace(hot_seconds=0.1)) as reader:
        for one in places:
            reader.follow(one)
        await appender.append(at, 5)
        await reader.has({at: 5})
        [sessions] = reader.tail._placing.brokers.values()

        async def is_quiet() -> bool:
            return len(sessions.hot) == 0

        async def arrives() -> float:
            await until(is_quiet, what="the quiet partitions")
            reader.follow(at, 2)
            return await reader.has({at: 3})

        assert await soonest(arrives, seconds=2) < 2


async def test_a_topic_that_is_made_anew_and_grows_at_once_is_read_from_its_beginning(
    brokers: Cluster, appender: Appender, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    [at] = await partitions(brokers, prefix, 1)
    await appender.append(at, 3)
    look, grown, is_anew, growing = Leaders.look, 6, asyncio.Event(), list[asyncio.Task[object]]()

    async def late(leaders: Leaders, places: Collection[Partition], *asked: int, **how: bool) -> OffsetSearch:
        await is_anew.wait()  # an append before would reach the first topic
        growing.extend([] if growing else [asyncio.create_task(appender.append(at, grown))])
        await asyncio.wait(growing)
        return await look(leaders, places, *asked, **how)

    async with TailReader.connect(brokers.kafka) as reader:
        reader.follow(at)
        await reader.reaches({at: 3})
        monkeypatch.setattr(Leaders, "look", late)
        await delete_topics(brokers.kafka, at.topic)
        await until(partial(_is_made_anew, brokers, at), what="the topic's second creation")
        is_anew.set()
        await reader.reaches({at: grown})

    assert reader.records == await read_plainly(brokers.kafka, [at])
    assert reader.tail.rewound == {at: 3}


async def _is_made_anew(brokers: Cluster, at: Partition) -> bool:
    """Kafka deletes a topic some time after it says so."""
    with suppress(AssertionError):
        await create_topics(brokers.kafka, [at.topic])
        return True
    return False


async def test_an_unexpected_error_in_a_task_of_a_tail_ends_its_fetches(
    brokers: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    [at] = await partitions(brokers, prefix, 1)

    async def broken(session: FetchSession, wait_ms: int) -> list[Answer]:
        raise ZeroDivisionError(f"{session} {wait_ms}")

    monkeypatch.setattr(FetchSession, "fetch", broken)
    async with Tail.connect(LogSettings(kafka=brokers.kafka)) as tail:
        tail.follow(at, 0)
        with pytest.raises(ZeroDivisionError):
            await read_on(tail)


class Faults:
    """Spoils the next requests of any session."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed: list[str] = []
        self.made: list[str] = []
        next_request, send = FetchSession._next_request, AIOKafkaClient.send

        def spoiled(session: FetchSession, wait_ms: int) -> Any:
            if session.epoch > 0 and self._takes("wrong id", "wrong epoch"):
                if self.made[-1] == "wrong id":
                    session.session_id += 1
                else:
                    session.epoch += 1
            return next_request(session, wait_ms)

        async def losing(client: AIOKafkaClient, node: int, request: Request, **options: Any) -> Any:
            if request.API_KEY == FetchRequest_v11.API_KEY:
                if self._takes("lost request"):
                    raise KafkaConnectionError("lost request")
                answer = await send(client, node, request, **options)
                if self._takes("lost answer"):
                    raise KafkaConnectionError("lost answer")
                return answer
            return await send(client, node, request, **options)

        monkeypatch.setattr(FetchSession, "_next_request", spoiled)
        monkeypatch.setattr(AIOKafkaClient, "send", losing)
        # All have sessions, also of few partitions.
        monkeypatch.setattr(hot_and_cold, "FetchSession", partial(FetchSession, sessionless_max=0))

    def _takes(self, *kinds: str) -> bool:
        if not self.armed or self.armed[0] not in kinds:
            return False
        self.made.append(self.armed.pop(0))
        return True

    def arm(self, number: int) -> None:
        self.armed.append(FAULTS[number % len(FAULTS)])


@pytest.mark.parametrize("leaders", [[ROOMY], [FULL], [ROOMY, FULL]], ids=["sessions", "none", "both"])
@hypothesis_settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
@given(taken=steps("cool", "fault", "fault"), is_announced=st.booleans())
async def test_whatever_goes_wrong_a_tail_yields_what_a_consumer_reads(
    brokers: Cluster,
    appender: Appender,
    leaders: list[int],
    taken: list[Step],
    is_announced: bool,
):
    pace = replace(RESTLESS, is_announced=is_announced, cooling_seconds=0.01, restless_seconds=0.1)
    topic = f"t{uuid4().hex[:8]}.run.r"
    await brokers.create(topic, leaders=(leaders * PARTITIONS)[:PARTITIONS])
    places = [Partition(topic, number) for number in range(PARTITIONS)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        faults = Faults(monkeypatch)
        async with TailReader.connect(brokers.kafka, pace=pace) as reader:
            await Course(reader, appender, places, cool_seconds=0.3, fault=faults.arm).take(taken)
