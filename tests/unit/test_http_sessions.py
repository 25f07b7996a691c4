"""The client of sessions over HTTP: every problem document is the error it tells of, and what is no
problem document too.
"""

import asyncio
from contextlib import suppress

import httpx
import pytest

from runfold.http.problems import problem_of
from runfold.local import free_port
from runfold.remote import api_client
from runfold.remote.api_client import HttpClient, error_of
from runfold.remote.sessions import HttpSessions
from runfold.settings import Settings
from runfold_schemas.errors import (
    ConfigurationError,
    DeadLetterNotFoundError,
    EventTooLargeError,
    ForbiddenError,
    InvalidEventError,
    InvalidIdError,
    NotQuarantinedError,
    NotYetVisibleError,
    OutsideLimitsError,
    QuarantinedError,
    RejectedError,
    RunConflictError,
    RunEndedError,
    RunfoldError,
    RunNotFoundError,
    ScopeMissingError,
    SessionConflictError,
    SessionEndedError,
    SessionNotFoundError,
    UnavailableError,
)

ERRORS = [
    InvalidEventError("data.note: missing", field="data.note"),
    InvalidEventError("data.note: missing", field="data.note", index=0),
    EventTooLargeError(size=9, limit=8),
    InvalidIdError("app is empty", name="app", value=""),
    RunNotFoundError("r"),
    RunConflictError("r", agent_id="a", session_id=None),
    RunConflictError("r"),
    ScopeMissingError("this needs a scope", missing_scope="read"),
    OutsideLimitsError("this needs an agent", limit="agents", value="desk"),
    OutsideLimitsError("this needs all users", limit="users"),
    ForbiddenError("this is refused"),
    RunEndedError("r"),
    SessionNotFoundError("s"),
    SessionConflictError("s"),
    SessionEndedError("s"),
    RejectedError("r", offset=-1, reason="expected_offset"),
    NotYetVisibleError("r", min_offset=3, timeout_seconds=0.5),
    QuarantinedError("run:r", offset=7, reason="ValueError: no"),
    QuarantinedError("run:r", reason="ValueError: no"),
    DeadLetterNotFoundError("t:1"),
    NotQuarantinedError("run:r"),
    UnavailableError("Kafka", reason="away"),
    ConfigurationError("set it"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_from_its_problem_document_with_all_its_facts(error):
    told = problem_of(error)

    found = error_of(httpx.Response(told.status_code, content=bytes(told.body)))

    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateway_that_finds_no_server_is_retriable(status):
    found = error_of(httpx.Response(status, text="<html>no server</html>"))

    assert isinstance(found, UnavailableError)
    assert found.retriable
    assert str(status) in str(found)


@pytest.mark.parametrize("content", [b"", b"[]", b"<html>", b'{"detail": "Not Found"}', b"\xff", b"null"])
def test_an_answer_that_is_no_problem_document_is_an_error_with_its_status(content):
    found = error_of(httpx.Response(404, content=content))

    assert type(found) is RunfoldError
    assert "404" in str(found)


def test_a_field_that_is_wrong_is_named_also_where_our_errors_are_not():
    told = {"type": "about:blank", "title": "", "status": 422, "detail": "limit: too large", "field": "limit"}

    found = error_of(httpx.Response(422, json=told))

    assert isinstance(found, InvalidEventError)
    assert (str(found), found.field) == ("limit: too large", "limit")


def test_a_problem_of_a_later_version_is_told_by_its_status():
    told = {"type": "urn:runfold:problem:Rejected", "status": 409, "detail": "told in other words"}

    found = error_of(httpx.Response(409, json=told))

    assert type(found) is RunfoldError
    assert "told in other words" in str(found)


async def test_a_server_that_is_not_there_is_unavailable_and_the_client_can_be_used_again():
    async with HttpSessions(f"http://127.0.0.1:{free_port()}/") as sessions:
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await sessions.view("s")
        await sessions.close()
        with pytest.raises(UnavailableError):
            await sessions.delete("s")


async def test_a_connection_is_given_up_before_the_server_closes_it(monkeypatch: pytest.MonkeyPatch):
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    assert Settings.model_fields["keep_alive_seconds"].default > api_client.IDLE_SECONDS
    monkeypatch.setattr(api_client, "IDLE_SECONDS", 0.01)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for _ in range(2):
            assert await client.call("GET", "runs") == b"{}"
            await asyncio.sleep(0.02)
        await client.close()

    assert connections == 2


@pytest.mark.parametrize("ending", ["closed", "reset"])
async def test_a_read_is_sent_once_more_if_its_connection_closes_and_a_change_is_not(
    ending: str, caplog: pytest.LogCaptureFixture
):
    asked: list[bytes] = []

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[0])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        with suppress(asyncio.IncompleteReadError):
            asked.append((await reader.readuntil(b"\r\n\r\n")).split()[0])
        if ending == "reset":
            writer.transport.abort()
        writer.close()

    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with caplog.at_level("INFO", "runfold"):
            assert [await client.call("GET", "runs") for _ in range(2)] == [b"{}"] * 2
        with pytest.raises(UnavailableError):
            await client.call("POST", "runs", json=b"{}")
        await client.close()

    assert asked == [b"GET", b"GET", b"GET", b"POST"]
    [line] = [record.getMessage() for record in caplog.records if "once more" in record.getMessage()]
    assert line.startswith("the connection of GET runs closed before its answer")


async def test_an_error_without_a_text_is_named(monkeypatch: pytest.MonkeyPatch):
    async def time_out(*_: object, **__: object) -> None:
        raise httpx.ReadTimeout("")

    monkeypatch.setattr(httpx.AsyncClient, "request", time_out)

    async with HttpSessions("http://127.0.0.1:1") as sessions:
        with pytest.raises(UnavailableError, match="ReadTimeout"):
            await sessions.view("s")
