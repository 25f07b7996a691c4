"""What a client sends below and around its requests stops nobody: slow, endless and ambiguous
requests, too many connections, other hosts and origins, made-up methods.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from tests.attacks import Stack
from tests.killing import ROUNDS
from tests.processes import until
from tests.querying import sent_events
from tests.servers import OwnSettings

from runfold.settings import Settings

PATIENCE_SECONDS = 2
CONNECTIONS_MAX = 40
FOLLOWERS_MAX = 3
CUT_SECONDS = 60
"""A client that is cut off notices it within this time on a busy machine. Without the limits it
would go on for minutes.
"""
PAUSE_SECONDS_MAX = PATIENCE_SECONDS / 3
"""With longer pauses, an upload of 1,000 bytes a second may be too slow."""
MADE_UP = 40 * ROUNDS
"""Methods, and paths of each kind. Each would have more than a dozen series of its own."""
ENGINE = "/v1beta1/reasoningEngines"


@pytest.fixture(scope="module")
def settings(module_settings: OwnSettings) -> Settings:
    """Those of the module's stack: little patience and few places."""
    return module_settings(
        client_timeout_seconds=PATIENCE_SECONDS,
        connections_max=CONNECTIONS_MAX,
        followers_max=FOLLOWERS_MAX,
    )


class Socket(NamedTuple):
    """A connection without any library in between."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, seconds: float = CUT_SECONDS) -> tuple[int, Mapping[str, str], bytes]:
        """The status, the headers and the body of an answer; (0, {}, b"") if there is none."""
        async with asyncio.timeout(seconds):
            try:
                status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0, {}, b""
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            length = int(headers.get("content-length", "0"))
            return int(status.split()[1]), headers, await self.reader.readexactly(length)

    async def closed(self, *, seconds: float = CUT_SECONDS) -> float:
        """Waits until the server has closed the connection, and gives the seconds that it took."""
        began = time.monotonic()
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65_536):
                    pass
        return time.monotonic() - began


@asynccontextmanager
async def connected(stack: Stack) -> AsyncIterator[Socket]:
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(stack.url).port)
    try:
        yield Socket(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def answered(stack: Stack, request: bytes) -> tuple[int, Mapping[str, str], bytes]:
    async with connected(stack) as socket:
        await socket.send(request)
        return await socket.answer()


def post(path: str, body: bytes = b"", **headers: str) -> bytes:
    """The bytes of a request with a length."""
    lines = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def problem_in(answer: tuple[int, Mapping[str, str], bytes]) -> Any:
    status, headers, body = answer
    assert headers["content-type"] == "application/problem+json"
    document = json.loads(body)
    assert document["status"] == status
    assert document["detail"]
    return document


async def test_requests_that_come_too_slowly_are_cut_off(under_attack: Stack):
    async with under_attack.attacked("slow requests"):
        await asyncio.gather(
            heads_that_trickle_are_cut_off(under_attack),
            a_connection_without_a_request_is_closed(under_attack),
            a_body_that_trickles_is_cut_off(under_attack, "/v1/runs"),
            a_body_that_trickles_is_cut_off(under_attack, f"{ENGINE}/1/sessions"),
        )


async def heads_that_trickle_are_cut_off(stack: Stack) -> None:
    async with contextlib.AsyncExitStack() as exits:
        began = time.monotonic()
        sockets = [await exits.enter_async_context(connected(stack)) for _ in range(20)]

        async def trickle(socket: Socket) -> None:
            with contextlib.suppress(ConnectionError):
                for byte in post("/v1/runs", X_Long="a" * 4_000):
                    await socket.send(bytes([byte]))
                    await asyncio.sleep(0.2)

        trickling = [asyncio.create_task(trickle(socket)) for socket in sockets]
        for socket in sockets:
            answer = await socket.answer()
            assert answer[0] == 408
            assert "in time" in problem_in(answer)["detail"]
            await socket.closed()
        assert PATIENCE_SECONDS <= time.monotonic() - began < CUT_SECONDS
        for task in trickling:
            task.cancel()


async def a_connection_without_a_request_is_closed(stack: Stack) -> None:
    async with connected(stack) as socket:
        assert await socket.closed() < CUT_SECONDS


async def a_body_that_trickles_is_cut_off(stack: Stack, path: str) -> None:
    async with connected(stack) as socket:
        await socket.send(post(path, Content_Length="10000"))

        async def trickle() -> None:
            while True:
                await socket.send(b" ")
                await asyncio.sleep(0.1)

        trickling = asyncio.create_task(trickle())
        answer = await socket.answer()
        trickling.cancel()
        assert problem_in(answer)["status"] == 408
        await socket.closed()


async def test_a_body_that_nobody_wants_ends(under_attack: Stack):
    async with under_attack.attacked("an endless body"), connected(under_attack) as socket:
        await socket.send(b"POST /none HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await socket.answer())[0] == 404

        async def flood() -> None:
            while True:
                await socket.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(flood(), CUT_SECONDS)


async def test_a_slow_upload_that_makes_progress_arrives(under_attack: Stack):
    body = json.dumps({"agent_id": "slow", "labels": {"k": "v" * 500}}).encode() + b" " * 3_500

    async def upload() -> tuple[int, float]:
        """The status of the answer, and the longest pause in seconds."""
        async with connected(under_attack) as socket:
            await socket.send(post("/v1/runs", Content_Length=str(len(body))))
            sent_at, longest = time.monotonic(), 0.0
            with contextlib.suppress(ConnectionError):
                for first in range(0, len(body), 400):
                    longest, sent_at = max(longest, time.monotonic() - sent_at), time.monotonic()
                    await socket.send(body[first : first + 400])
                    await asyncio.sleep(0.4)
            return (await socket.answer())[0], longest

    async with under_attack.attacked("a slow upload"):
        status, longest = await upload()
        for _ in range(5):
            if longest > PAUSE_SECONDS_MAX:  # this machine stood still, and made no progress
                status, longest = await upload()
        assert status == 201


async def test_a_client_that_reads_no_answer_is_cut_off_and_a_quiet_follower_is_not(under_attack: Stack):
    page = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    opened = await under_attack.client.post("/v1/runs", json={"agent_id": "a"})
    run = f"/v1/runs/{opened.json()['run_id']}"

    async with (
        under_attack.attacked("an answer that is not read, and a follower of a quiet run"),
        under_attack.client.stream("GET", f"{run}/follow") as response,
        connected(under_attack) as socket,
    ):
        events = sent_events(response)
        assert (await anext(events)).name == "run_opened"
        socket.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before = await reasons(under_attack)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(3):
                await socket.send(page * 500)
        await until(lambda: has_more(under_attack, "answer not read", before), what="the cut")
        note = {"type": "planner_note", "data": {"note": "n"}}
        assert (await under_attack.client.post(f"{run}/events", json=note)).status_code == 201
        assert (await anext(events)).name == "planner_note"


async def test_more_followers_than_there_may_be_are_told_so(under_attack: Stack):
    opened = await under_attack.client.post("/v1/runs", json={"agent_id": "a"})
    path = f"/v1/runs/{opened.json()['run_id']}/follow"

    async with under_attack.attacked("too many followers"), contextlib.AsyncExitStack() as exits:
        for _ in range(FOLLOWERS_MAX):
            stream = await exits.enter_async_context(under_attack.client.stream("GET", path))
            assert stream.status_code == 200
        refused = await under_attack.client.get(path)
        assert refused.status_code == 503
        assert "RUNFOLD_FOLLOWERS_MAX" in refused.json()["detail"]
        assert refused.headers["retry-after"]

    await until(lambda: follows(under_attack, path), what="a place after others left")


async def test_more_connections_than_there_may_be_are_told_so(under_attack: Stack):
    def get(path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    async def is_refused() -> bool:
        """Takes all places and asks for another one. A slow machine loses the first of them before
        it has taken the last.
        """
        async with contextlib.AsyncExitStack() as exits:
            for _ in range(CONNECTIONS_MAX):
                socket = await exits.enter_async_context(connected(under_attack))
                with contextlib.suppress(ConnectionError):
                    await socket.send(b"GET /v1/runs")
            answer = await answered(under_attack, get("/v1/runs"))
            if answer[0] != 503:
                return False
            assert "RUNFOLD_CONNECTIONS_MAX" in problem_in(answer)["detail"]
            assert answer[1]["retry-after"]
            for path in ("/health/live", "/health/ready", "/metrics"):
                assert (await answered(under_attack, get(path)))[0] == 200, path
            return True

    await until(is_refused, what="the refusal of a connection")

    async with under_attack.attacked("more connections than there may be"):
        for _ in range(300):
            async with connected(under_attack) as socket:
                socket.writer.write(b"GET /")
        await asyncio.sleep(PATIENCE_SECONDS)


AMBIGUOUS = {
    "both lengths": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a list of lengths": b"Content-Length: 5, 6\r\n\r\nhello!",
    "a signed length": b"Content-Length: +5\r\n\r\nhello",
    "a huge length": b"Content-Length: " + b"9" * 4_000 + b"\r\n\r\nhello",
    "a space before the colon": b"Content-Length : 5\r\n\r\nhello",
    "a chunk of no number": b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a huge chunk": b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
    "a chunk with a bare end": b"Transfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n",
    "two encodings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown encoding": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a null byte": b"X-Y: a\0b\r\nContent-Length: 0\r\n\r\n",
    "a second host": b"Host: localhost\r\nContent-Length: 0\r\n\r\n",
    "large headers": b"X-Y: " + b"a" * 100_000 + b"\r\n\r\n",
    "many headers": b"".join(b"X-%d: a\r\n" % number for number in range(20_000)) + b"\r\n",
    "tiny chunks": b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 200_000,
}


async def test_ambiguous_requests_are_refused(under_attack: Stack):
    head = b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    async with under_attack.attacked("ambiguous requests"):
        for name, rest in AMBIGUOUS.items():
            async with connected(under_attack) as socket:
                with contextlib.suppress(ConnectionError):
                    await socket.send(head + rest)
                answer = await socket.answer()
                if answer[0]:  # a client that still sends may lose the answer with the connection
                    assert problem_in(answer)["status"] in (400, 408, 413, 422, 431, 501), name
                await socket.closed()
    assert "Traceback" not in under_attack.api.logged()


BROKEN = [b"GET " + b"/a" * 50_000, b"\x16\x03\x01" * 30_000, b"GET", b"\0" * 9, b"PRI * HTTP/2.0\r\n\r\n"]


async def test_broken_request_lines_are_refused(under_attack: Stack):
    async with under_attack.attacked("broken request lines"):
        for line in BROKEN:
            async with connected(under_attack) as socket:
                with contextlib.suppress(ConnectionError):
                    await socket.send(line + b"\r\n\r\n")
                answer = await socket.answer()
                if answer[0]:
                    assert problem_in(answer)["status"] in (400, 421, 431), line[:20]
                await socket.closed()
    assert "Traceback" not in under_attack.api.logged()


async def test_a_client_that_leaves_amid_its_body_is_no_defect(under_attack: Stack):
    async with under_attack.attacked("clients that leave"):
        for path in ("/v1/runs", "/v1/banks", f"{ENGINE}/1/sessions"):
            async with connected(under_attack) as socket:
                await socket.send(post(path, b"{", Content_Length="1000"))
                await asyncio.sleep(0.1)
    assert "Traceback" not in under_attack.api.logged()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost@x"]
)
async def test_a_name_that_is_not_loopback_is_refused(under_attack: Stack, host: str):
    request = f"GET /v1/runs HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()

    answer = await answered(under_attack, request)
    assert answer[0] == 421
    assert "RUNFOLD_ALLOWED_HOSTS" in problem_in(answer)["detail"]
    for path in (b"/health/live", b"/health/ready", b"/metrics"):
        assert (await answered(under_attack, request.replace(b"/v1/runs", path)))[0] == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9", "127.0.0.1:8080", "127.0.0.2", "[::1]", "[::1]:80"]
)
async def test_loopback_names_pass_with_any_port(under_attack: Stack, host: str):
    request = f"GET /v1/runs HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()

    assert (await answered(under_attack, request))[0] == 200


SIMPLE = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "")


async def writes(stack: Stack) -> list[str]:
    """The paths of all routes that take a POST, Google's too."""
    paths = (await stack.client.get("/openapi.json")).json()["paths"]
    google = [f"{ENGINE}", f"{ENGINE}/1/sessions", f"{ENGINE}/1/memories", f"{ENGINE}/1/memories:generate"]
    return [path for path, verbs in paths.items() if "post" in verbs] + google


async def test_a_page_cannot_write_with_a_type_that_browsers_send_unasked(under_attack: Stack):
    opened = await under_attack.client.post("/v1/runs", json={"agent_id": "a"})
    run_id = opened.json()["run_id"]
    body = b'{"agent_id": "a", "run_id": "r", "app": "a", "user": "u", "bank_id": "b", "fact": "f"}'

    async with under_attack.attacked("pages that write"):
        for template in await writes(under_attack):
            path = template.replace("{run_id}", run_id)
            for media_type in SIMPLE:
                headers = {"Content-Type": media_type} if media_type else {}
                answer = await under_attack.client.post(path, content=body, headers=headers)
                takes_no_body = path.endswith(("/bell", "/repair", "/login"))
                assert 400 <= answer.status_code < 500 or takes_no_body, (path, media_type)
                foreign = {**headers, "Origin": "https://evil.example"}
                for content in (body, b""):
                    answer = await under_attack.client.post(path, content=content, headers=foreign)
                    assert answer.status_code == 403, (path, media_type)
                    assert "access-control-allow-origin" not in answer.headers
    listed = (await under_attack.client.get("/v1/sessions")).json()
    assert listed["sessions"] == []


async def test_googles_routes_take_json_alone(under_attack: Stack):
    body = b'{"userId": "ann"}'
    for media_type in SIMPLE:
        headers = {"Content-Type": media_type} if media_type else {}
        answer = await under_attack.client.post(f"{ENGINE}/1/sessions", content=body, headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["status"]) == (415, 415, "INVALID_ARGUMENT")

    for media_type in ("application/json", "Application/JSON; charset=UTF-8"):
        headers = {"Content-Type": media_type}
        created = await under_attack.client.post(ENGINE, content=b"{}", headers=headers)
        assert created.status_code == 200, created.text
    assert (await under_attack.client.post(ENGINE)).status_code == 200


async def test_a_page_of_this_server_may_write(under_attack: Stack):
    for headers in (
        {"Origin": under_attack.url},
        {"Origin": "https://gateway.example", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://elsewhere.example", "Content-Type": "application/json"},
    ):
        answer = await under_attack.client.post(ENGINE, content=b"", headers=headers)
        assert answer.status_code == 200, answer.text


async def test_no_origin_is_allowed_unless_it_is_configured(under_attack: Stack):
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}

    for answer in (
        await under_attack.client.options("/v1/runs", headers=headers),
        await under_attack.client.get("/v1/runs", headers=headers),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_made_up_methods_and_paths_make_no_series(under_attack: Stack):
    async def series() -> int:
        lines = (await under_attack.client.get("/metrics")).text.splitlines()
        return sum(line.startswith("runfold_request_seconds_bucket") for line in lines)

    methods = ("GET", "HEAD", "OPTIONS", "X-0")
    paths = ("/v1/runs/n", "/n", "/docs/assets/n", f"{ENGINE}/n/n/n", "/health/n")
    for method in methods:
        for path in paths:
            await under_attack.client.request(method, path)
    before = await series()

    async with under_attack.attacked("made-up methods and paths"):
        for number in range(MADE_UP):
            await under_attack.client.request(f"X-{number}", f"/v1/runs/{number}")
            for path in paths:
                await under_attack.client.request(methods[number % 3], f"{path}{number}")
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        for number in range(20):
            await under_attack.client.get(f"/ws-{number}", headers={**upgrade, "Sec-WebSocket-Key": "a" * 24})

    assert await series() - before < 200
    assert 'method="OTHER"' in (await under_attack.client.get("/metrics")).text


async def reasons(stack: Stack) -> dict[str, float]:
    """How many connections were refused, by reason."""
    lines = (await stack.client.get("/metrics")).text.splitlines()
    counted = [line for line in lines if line.startswith("runfold_refused_connections_total{")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in counted}


async def has_more(stack: Stack, reason: str, before: Mapping[str, float]) -> bool:
    return (await reasons(stack)).get(reason, 0) > before.get(reason, 0)


async def follows(stack: Stack, path: str) -> bool:
    async with stack.client.stream("GET", path) as response:
        return response.status_code == 200
