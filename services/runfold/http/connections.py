"""The connections of an HTTP service: how many there may be, and how long a client may keep one
waiting.

A client waits as long as it likes for an answer or for the next event of a run. The service waits
`client_timeout_seconds` for the client: for a whole head, and for 512 bytes a second of a body. A
client that reads nothing of an answer that waits for it has three times as long.
"""

import asyncio
import logging
import resource
import sys
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import h11
from prometheus_client import Counter
from starlette.types import Receive, Scope, Send
from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from runfold.http.event_stream import EVENT_STREAM
from runfold.http.guards import is_exempt
from runfold.http.limit_log import LimitLog
from runfold.http.problems import problem
from runfold.http.settings import HttpSettings

_REFUSED: Final = Counter(
    "runfold_refused_connections",
    "Connections that the service closed because of what the client sent or did not send, by reason",
    ["reason"],
)

_SPARE: Final = 100
"""This many connections over the limit get an answer. Further ones are closed at once."""

_SPARE_SECONDS: Final = 1.0
"""How long such a connection may take for the head of its request."""

_OTHER_FILES: Final = 200
"""What the process has open besides: connections to Kafka and MongoDB, libraries, its log."""

_LOOK_SECONDS: Final = 0.5

_FAREWELL_SECONDS: Final = 1.0
"""How long a client may take to read why its request was refused."""

_BODY_BYTES_PER_SECOND: Final = 512

_READER_PATIENCE: Final = 3
"""A client that reads an answer has this many times longer: it may work on what it has read."""

_STREAM_PATIENCE: Final = 30
"""A client that forwards a model's stream has this many times longer: the model thinks."""

_READ_BYTES: Final = 32 * 1024
"""The most bytes that are read at once. Tiny chunks cost 0.7 ms for each KB of them, and other
requests wait meanwhile.
"""

_CHUNKS: Final = 10_000
_CHUNK_BYTES_MIN: Final = 16
"""A body of more chunks than that is refused if they have fewer bytes on average."""

_log = logging.getLogger(__name__)


class _Wait(NamedTuple):
    """A wait for the client: for what, and since when. Waits of two requests differ."""

    reason: str
    request: object


class _Parser(h11.Connection):
    """Refuses two kinds of bodies that h11 accepts."""

    chunks: int
    chunk_bytes: int

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = self.chunk_bytes = 0
            names = {name for name, _ in event.headers}
            # A gateway in front may see another end of the body than we do.
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("the request has both Content-Length and Transfer-Encoding")
        elif isinstance(event, h11.Data):
            self.chunks += 1
            self.chunk_bytes += len(event.data)
            if self.chunks > _CHUNKS and self.chunk_bytes < _CHUNK_BYTES_MIN * self.chunks:
                raise h11.RemoteProtocolError("the chunks of the body are too small: send larger ones")
        return event


class GuardedProtocol(H11Protocol):
    """uvicorn's connection with our limits. `settings` is set in a subclass, because uvicorn makes
    the instances.
    """

    settings: HttpSettings
    limit_log: LimitLog

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Parser(h11.SERVER, self.conn._max_incomplete_event_size)  # noqa: SLF001
        self._wait: _Wait | None = None
        self._since = self.loop.time()
        self._bytes_read = self._bytes_before = 0
        self._unsent = 0
        self._is_surplus = self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        surplus = len(self.connections) - self.settings.connections_max
        if surplus > 0:
            self._is_surplus, self.app = True, self._refuse_unless_exempt
            _REFUSED.labels("too many connections").inc()
            self.limit_log.refused()
        if surplus > _SPARE:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._bytes_read += len(data)
        if not self._is_refused:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        # uvicorn calls this method while it handles the parser's error.
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        _REFUSED.labels("invalid request").inc()
        self._refuse(HTTPStatus(status), f"this is not a valid HTTP request: {error or msg}")

    def check(self, now: float) -> None:
        """Closes the connection if the service has waited too long for the client."""
        if self._is_refused:
            return
        wait = self._waits_for()
        if wait is None or wait != self._wait:
            self._wait, self._since, self._bytes_before = wait, now, self._bytes_read
            self._unsent = self._to_send()
            return
        unsent = self._to_send()
        if unsent < self._unsent:
            self._since = now
        self._unsent = unsent
        if now - self._since < self._patience_seconds(wait.reason):
            return
        body_bytes = self._bytes_read - self._bytes_before
        if wait.reason == "body too slow" and body_bytes >= _BODY_BYTES_PER_SECOND * (now - self._since):
            self._since, self._bytes_before = now, self._bytes_read
            return
        self._give_up(wait.reason)

    def _waits_for(self) -> _Wait | None:
        """What the client has to do next. None: it may wait, because it is our turn or because it
        keeps the connection for another request.
        """
        if self._to_send() > 0:
            return _Wait("answer not read", self.cycle)
        if self.cycle is None or (self.cycle.response_complete and self.conn.their_state is h11.IDLE):
            is_kept = self.cycle is not None and not self.conn.trailing_data[0]
            return None if is_kept else _Wait("head too slow", self.cycle)
        if self.conn.their_state is not h11.SEND_BODY:
            return None
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            return None
        return _Wait("body not wanted" if self.cycle.response_complete else "body too slow", self.cycle)

    def _to_send(self) -> int:
        size: int = self.transport.get_write_buffer_size()
        return size

    def _patience_seconds(self, reason: str) -> float:
        seconds = self.settings.client_timeout_seconds
        if reason == "body too slow" and _forwards_stream(self.cycle.scope["headers"]):
            return _STREAM_PATIENCE * seconds
        if reason == "answer not read":
            return _READER_PATIENCE * seconds
        return _SPARE_SECONDS if self._is_surplus and reason == "head too slow" else seconds

    def _give_up(self, reason: str) -> None:
        _REFUSED.labels(reason).inc()
        if reason == "answer not read" or not self._bytes_read:
            self.transport.abort()
            return
        seconds = self.settings.client_timeout_seconds
        self._refuse(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the request did not arrive in time: send its head within {seconds:g} s, and at least"
            f" {_BODY_BYTES_PER_SECOND} bytes a second of its body",
        )

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Answers if no answer has begun, and closes the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = problem(status, detail)
            headers = [*answer.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=status, headers=headers, reason=status.phrase.encode()),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        if self.cycle is not None:
            # The application must not go on with an answer of its own.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        # If we closed the connection now, a client that still sends would lose the answer.
        self._is_refused = True
        self.transport.write_eof()
        self.loop.call_later(_FAREWELL_SECONDS, self.transport.abort)

    async def _refuse_unless_exempt(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_exempt(scope) or len(self.connections) <= self.settings.connections_max:
            await self.config.loaded_app(scope, receive, send)
            return
        answer = problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"this service has {self.settings.connections_max:,} connections already, as many as"
            " RUNFOLD_CONNECTIONS_MAX allows: retry",
            type_="urn:runfold:problem:TooManyConnections",
        )
        answer.headers["Connection"] = "close"
        await answer(scope, receive, send)


def new_protocol(settings: HttpSettings) -> type[GuardedProtocol]:
    """The class of the connections of one service."""
    limit_log = LimitLog("connections", settings.connections_max, setting="RUNFOLD_CONNECTIONS_MAX")
    return type("Connection", (GuardedProtocol,), {"settings": settings, "limit_log": limit_log})


async def watch(server: Server, protocol: type[GuardedProtocol]) -> None:
    """Endless. Looks at all connections of the server, twice a second."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        for connection in list(server.server_state.connections):
            assert isinstance(connection, GuardedProtocol)
            connection.check(loop.time())
        protocol.limit_log.look(len(server.server_state.connections))


def _forwards_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the body is a stream of events, as `runfold.http.event_stream` reads it."""
    types = [value for name, value in headers if name == b"content-type"]
    return bool(types) and types[0].partition(b";")[0].strip().lower() == EVENT_STREAM.encode()


def with_open_files(settings: HttpSettings) -> HttpSettings:
    """The settings for this process: it asks the system for as many open files as the connections
    need, and has fewer connections if the system refuses.
    """
    wanted = settings.connections_max + _SPARE + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return settings
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    if granted == wanted:
        return settings
    connections_max = max(1, granted - _SPARE - _OTHER_FILES)
    _log.warning(
        "this process may open %d files: it accepts %d connections instead of the %d of"
        " RUNFOLD_CONNECTIONS_MAX",
        granted,
        connections_max,
        settings.connections_max,
    )
    return settings.model_copy(update={"connections_max": connections_max})
