"""Fetches with a session alone, the requests that were sent, and requests that aiokafka lacks."""

from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.fetch import FetchRequest_v11
from aiokafka.protocol.types import Array, Boolean, Float64, Int16, Int32, Schema, String
from tests.processes import until

from runfold.log.fetch_answer import Budget, PartitionAnswer
from runfold.log.fetch_session import Answer, FetchSession
from runfold_schemas.codec import Record
from runfold_schemas.topics import Partition


class SessionReader:
    """Reads with one session, and keeps the offsets of what came."""

    def __init__(self, session: FetchSession, places: list[Partition]) -> None:
        self.session = session
        self.records: dict[Partition, list[Record]] = {at: [] for at in places}
        self.positions = dict.fromkeys(places, 0)
        for at in places:
            session.ask(at, 0)

    async def fetch(self, wait_ms: int = 100) -> list[Answer]:
        answers = await self.session.fetch(wait_ms)
        for answer in answers:
            assert answer.error == 0
            at, position = answer.partition, self.positions[answer.partition]
            assert answer.asked <= position
            reader = PartitionAnswer(at, answer.data, offset=position, end=answer.end, skipped=lambda _: ())
            self.records[at] += reader.take(Budget())
            if reader.next_offset != position:
                self.positions[at] = reader.next_offset
                self.session.ask(at, reader.next_offset)
        return answers

    async def reads(self, counts: dict[Partition, int]) -> None:
        async def has_read() -> bool:
            await self.fetch()
            return all(len(self.records[at]) >= count for at, count in counts.items())

        await until(has_read, what=f"{counts} records")
        for at, count in counts.items():
            assert [record.offset for record in self.records[at]] == list(range(count))


class Requests:
    """The fetches that were answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[FetchRequest_v11] = []
        self.answers: list[Any] = []
        self.begun = 0
        send = AIOKafkaConnection.send

        async def noted(request: FetchRequest_v11, sending: Any) -> Any:
            answer = await sending
            self.sent.append(request)
            self.answers.append(answer)
            return answer

        def noting(connection: AIOKafkaConnection, request: Request, **options: bool) -> Any:
            sending = send(connection, request, **options)
            if request.API_KEY != FetchRequest_v11.API_KEY:
                return sending
            self.begun += 1
            return noted(request.prepare(connection._versions), sending)

        monkeypatch.setattr(AIOKafkaConnection, "send", noting)

    async def wait_for(self, begun: int) -> None:
        """Waits until so many fetches were sent, answered or not."""

        async def have_begun() -> bool:
            return self.begun >= begun

        await until(have_begun, what=f"{begun} fetches")

    def begin(self) -> None:
        """Forgets what was sent so far."""
        self.sent.clear()
        self.answers.clear()

    @property
    def errors(self) -> list[int]:
        return [answer.error_code for answer in self.answers]

    @property
    def sessions(self) -> list[int]:
        return [answer.session_id for answer in self.answers]


class RawFetch(Request[FetchRequest_v11]):
    """A whole request, outside of a session, or to begin or end one."""

    API_KEY = 1

    def __init__(self, session_id: int, epoch: int, *places: Partition) -> None:
        self._session = (session_id, epoch)
        self._places = places

    def build(self, request_struct_class: type[FetchRequest_v11]) -> FetchRequest_v11:
        entries = [(topic, [(number, -1, 0, -1, 1000)]) for topic, number in self._places]
        return request_struct_class(-1, 0, 1, 1000, 0, *self._session, entries, [], "")


class _QuotaResponse(Response):
    API_KEY = 49
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "entries",
            Array(
                ("error_code", Int16),
                ("error_message", String("utf-8")),
                ("entity", Array(("type", String("utf-8")), ("name", String("utf-8")))),
            ),
        ),
    )


class _QuotaStruct(RequestStruct):
    API_KEY = 49
    API_VERSION = 0
    RESPONSE_TYPE = _QuotaResponse
    SCHEMA = Schema(
        (
            "entries",
            Array(
                ("entity", Array(("type", String("utf-8")), ("name", String("utf-8")))),
                ("ops", Array(("key", String("utf-8")), ("value", Float64), ("remove", Boolean))),
            ),
        ),
        ("validate_only", Boolean),
    )


class Quota(Request[_QuotaStruct]):
    """Sets how many bytes a second a client may fetch, which aiokafka has no request for."""

    API_KEY = 49

    def __init__(self, client_id: str, rate: float) -> None:
        self._entry = ([("client-id", client_id)], [("consumer_byte_rate", rate, False)])

    def build(self, request_struct_class: type[_QuotaStruct]) -> _QuotaStruct:
        return request_struct_class([self._entry], False)
