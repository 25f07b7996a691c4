"""What a fetch session asks for, without a broker, and its bytes."""

import asyncio
from io import BytesIO
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11

from runfold.log.fetch_session import FetchSession
from runfold_schemas.topics import Partition

A, B, C = (Partition(name, 0) for name in "abc")

VERSIONS = {1: (4, 17)}


class Broker:
    """A client whose broker answers with what it is told, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error, self.session_id = 0, 7
        self.is_away = False
        self.ends: dict[Partition, int] = {}

    async def send(self, node: int, request: Any, *, group: object = None) -> Any:
        struct = request.prepare(VERSIONS)
        self.asked.append(FetchRequest_v11.SCHEMA.decode(BytesIO(struct.encode())))
        if self.is_away:
            raise KafkaConnectionError("away")
        topics = [(at.topic, [(at.partition, 0, end, end, 0, [], -1, b"")]) for at, end in self.ends.items()]
        answer = FetchResponse_v11(0, self.error, self.session_id, topics)
        return struct.RESPONSE_TYPE.decode(answer.encode())

    @property
    def last(self) -> tuple[int, int, set[str], set[str]]:
        """The session, the epoch, the topics that were named and those that were forgotten."""
        session_id, epoch, topics, forgotten = self.asked[-1][5:9]
        return session_id, epoch, {topic for topic, _ in topics}, {topic for topic, _ in forgotten}


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def session(broker: Broker) -> FetchSession:
    client: Any = broker
    return FetchSession(client, 1, "test", sessionless_max=1)


def fetch(session: FetchSession) -> list[Partition]:
    return [answer.partition for answer in asyncio.run(session.fetch(0))]


def test_a_session_names_only_what_has_changed(session: FetchSession, broker: Broker):
    session.ask(A, 0)
    session.ask(B, 5)
    fetch(session)
    assert broker.last == (0, 0, {"a", "b"}, set())

    session.ask(B, 6)
    session.ask(C, 0)
    session.forget(A)
    fetch(session)
    assert broker.last == (7, 1, {"b", "c"}, {"a"})

    fetch(session)
    assert broker.last == (7, 2, set(), set())


@pytest.mark.parametrize(("error", "session_id"), [(70, 0), (71, 7)])
def test_a_lost_session_begins_anew(session: FetchSession, broker: Broker, error: int, session_id: int):
    session.ask(A, 0)
    session.ask(B, 0)
    fetch(session)
    session.ask(A, 3)
    broker.error = error

    assert fetch(session) == []
    assert not session.is_confirmed(A)

    broker.error = 0
    fetch(session)
    assert broker.last == (session_id, 0, {"a", "b"}, set())
    assert session.is_confirmed(A)


def test_a_request_that_failed_is_sent_anew(session: FetchSession, broker: Broker):
    session.ask(A, 0)
    session.ask(B, 0)
    fetch(session)
    session.ask(C, 0)
    broker.is_away = True
    with pytest.raises(KafkaConnectionError):
        fetch(session)

    broker.is_away = False
    fetch(session)

    assert broker.last == (7, 0, {"a", "b", "c"}, set())


def test_without_a_session_each_request_is_whole(session: FetchSession, broker: Broker):
    broker.session_id = 0
    for at in (A, B):
        session.ask(at, 0)
    for _ in range(2):
        fetch(session)
        assert broker.last == (0, 0, {"a", "b"}, set())
    assert not session.has_new


def test_few_partitions_take_no_session(session: FetchSession, broker: Broker):
    broker.session_id = 0
    session.ask(A, 0)
    fetch(session)
    assert broker.last == (0, -1, {"a"}, set())

    session.ask(B, 0)
    fetch(session)
    assert broker.last == (0, 0, {"a", "b"}, set())


def test_a_partition_that_was_forgotten_is_not_answered(session: FetchSession, broker: Broker):
    session.ask(A, 0)
    session.ask(B, 0)
    broker.ends = {A: 3, B: 4}
    assert fetch(session) == [A, B]
    assert session.end(A) == 3

    session.forget(A)
    broker.ends = {A: 5, B: 6}
    assert fetch(session) == [B]
    assert session.end(A) is None
    assert not session.is_confirmed(A)


def test_a_partition_is_confirmed_by_the_answer_to_a_request_that_names_it(
    session: FetchSession, broker: Broker
):
    session.ask(A, 0)
    session.ask(B, 0)
    fetch(session)
    session.ask(C, 0)
    assert session.has_new
    assert not session.is_confirmed(C)

    fetch(session)
    assert session.is_confirmed(C)
    assert not session.has_new
