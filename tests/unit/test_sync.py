"""The synchronous classes have every verb of the asynchronous ones, with its parameters. They share
a connection, which stays open as long as any of them is in use.
"""

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from typing import Any, Self, get_type_hints

import pytest
from tests.builders import event
from tests.faces import INTERNAL
from tests.processes import DEADLINE_SECONDS

from runfold import AssistantMessage, Position, UserMessage, sync
from runfold.client import recording
from runfold.client.background import background
from runfold.client.background_reading import BackgroundReading
from runfold.client.memories import Memories
from runfold.client.run import Run
from runfold.client.runfold import Runfold
from runfold.client.sessions import Sessions

PAIRS = [(Runfold, sync.Runfold), (Run, sync.Run), (Sessions, sync.Sessions), (Memories, sync.Memories)]

NOT_VERBS = {"connection"}
"""What services use: the connection of an event loop."""

ADDED = {"close", "forked_from", "life", "is_new"}
"""Properties for attributes of a run, and the end of a connection that needs no block."""

OTHER_ANSWERS = {
    Runfold: {"history", "run", "runs", "session_runs", "sessions", "memories"},
    Run: {"events", "fork", "history", "record_stream", "send"},
}
"""Verbs whose asynchronous answer is an iterator, a task or an asynchronous object."""


def public(kind: type) -> dict[str, Any]:
    hidden = NOT_VERBS | INTERNAL.get(kind, set())
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and name not in hidden
    }


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_every_public_name_is_there(asynchronous: type, synchronous: type):
    names, twins = public(asynchronous).keys(), public(synchronous).keys()

    assert names - twins == set()
    assert twins - names <= ADDED


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_every_verb_takes_the_same_parameters(asynchronous: type, synchronous: type):
    for name, attribute in public(asynchronous).items():
        if isinstance(attribute, property):
            assert isinstance(public(synchronous)[name], property), name
        else:
            twin = getattr(synchronous, name)
            assert parameters(twin) == parameters(getattr(asynchronous, name)), name
            assert not inspect.iscoroutinefunction(twin)
            assert not inspect.isasyncgenfunction(twin)


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_every_verb_has_the_same_annotations(asynchronous: type, synchronous: type):
    for name in public(asynchronous).keys() - OTHER_ANSWERS.get(asynchronous, set()):
        method, twin = getattr(asynchronous, name), getattr(synchronous, name)
        if isinstance(method, property):
            method, twin = method.fget, twin.fget
        assert get_type_hints(twin) == get_type_hints(method), name


@pytest.mark.parametrize(("asynchronous", "synchronous"), PAIRS)
def test_every_verb_is_documented(asynchronous: type, synchronous: type):
    documented = [name for name, method in public(asynchronous).items() if method.__doc__]

    assert documented
    assert [name for name in documented if not public(synchronous)[name].__doc__] == []


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults. A stream that is recorded is a plain iterable here."""
    return [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]


def test_options_are_checked_before_anything_connects():
    with pytest.raises(ValueError, match="replication_factor"):
        sync.Runfold(replication_factor=0)


class FakeRun:
    """The asynchronous run of a fake client."""

    run_id = "r-1"

    def __init__(self, client: "FakeClient") -> None:
        self._client = client
        self.published: list[Any] = []

    async def label(self, **labels: str) -> dict[str, str]:
        assert not self._client.closed.is_set()
        return labels

    async def publish_batch(self, batch: Any, *, late: bool = False) -> list[Any]:
        return [*batch, late]

    async def send(self, data: Any, *, late: bool = False) -> asyncio.Task[Any]:
        async def sent() -> Any:
            await asyncio.sleep(0.05)
            assert not self._client.closed.is_set()
            return data, late

        return asyncio.create_task(sent())

    async def events(self) -> AsyncIterator[int]:
        for number in range(3):
            yield number

    def record_stream(self, stream: Any, *, provider: Any, **options: Any) -> Any:
        assert set(options.values()) == {None}
        return recording.record_stream(stream, recording.Recording(event, self._publish, provider=provider))

    async def _publish(self, events: Any) -> list[Position]:
        assert not self._client.closed.is_set()
        self.published += [each.data for each in events]
        return [Position("r", offset) for offset in range(len(events))]


class FakeReader:
    async def values(self, _: Any) -> dict[str, Any]:
        return {"step": 1}

    async def banks(self, **_: Any) -> tuple[list[Any], None]:
        return [], None


class FakeClient:
    """The asynchronous client without servers."""

    made: list["FakeClient"]

    def __init__(self, *_: Any, **__: Any) -> None:
        self.closed = threading.Event()
        self.made.append(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed.set()

    @property
    def sessions(self) -> Any:
        return Sessions(None, FakeReader())  # type: ignore[arg-type]

    async def open_run(self, *, agent_id: str) -> FakeRun:
        assert agent_id == "a"
        return FakeRun(self)

    async def history(self, *, session_id: str | None) -> AsyncIterator[tuple[FakeRun, int]]:
        assert session_id is None
        for number in range(3):
            assert not self.closed.is_set()
            yield FakeRun(self), number


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[FakeClient]:
    """The asynchronous clients that were made. The last one is connected."""
    FakeClient.made = []
    monkeypatch.setattr("runfold.client.runfold.Runfold", FakeClient)
    return FakeClient.made


def open_run() -> sync.Run:
    return sync.Runfold().open_run(agent_id="a")


def use_of_a_run() -> Callable[[], object]:
    run = open_run()
    return lambda: run.label(step="1")


def use_of_sessions() -> Callable[[], object]:
    sessions = sync.Runfold().sessions
    return lambda: sessions.app_state("a")


def use_of_a_future() -> Callable[[], object]:
    return open_run().send(UserMessage(message="hi")).result


def use_of_a_history() -> Callable[[], object]:
    history = sync.Runfold().history()
    return lambda: next(history)


def use_of_a_recording() -> Callable[[], object]:
    chunks = open_run().record_stream(CHUNKS, provider="anthropic")
    return lambda: next(chunks)


CHUNKS: list[Any] = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "At 07:04."}},
    {"type": "content_block_stop", "index": 0},
]


@pytest.mark.parametrize(
    "opened", [use_of_a_run, use_of_sessions, use_of_a_future, use_of_a_history, use_of_a_recording]
)
def test_the_connection_stays_open_while_anything_of_it_is_in_use(
    opened: Callable[[], Callable[[], object]], clients: list[FakeClient]
):
    use = opened()
    gc.collect()
    use()
    gc.collect()
    use()
    connected = clients[-1]
    assert not connected.closed.is_set()

    del use
    gc.collect()

    assert connected.closed.wait(60)


def test_a_client_has_its_sessions_and_memories_once(clients: list[FakeClient]):
    runfold = sync.Runfold()

    assert runfold.sessions is runfold.sessions
    assert runfold.memories is runfold.memories
    assert len(clients) == 1  # which has checked the options, and nothing connects
    assert runfold.sessions.app_state("a") == {"step": 1}


def test_a_client_connects_again_after_it_was_closed(clients: list[FakeClient]):
    runfold = sync.Runfold()
    for _ in range(2):
        assert runfold.sessions.app_state("a") == {"step": 1}
        runfold.close()

    assert [client.closed.is_set() for client in clients] == [False, True, True]


def test_the_future_of_a_sent_event_cannot_be_cancelled(clients: list[FakeClient]):
    future = open_run().send(UserMessage(message="hi"), late=True)

    assert isinstance(future, Future)
    assert not future.cancel()
    assert future.result(10) == (UserMessage(message="hi"), True)
    assert not clients[-1].closed.is_set()


@pytest.mark.usefixtures("clients")
def test_a_batch_may_be_a_generator_that_reads_runfold_itself():
    run = open_run()

    def batch() -> Iterator[Any]:
        yield threading.current_thread()
        yield from run.events()

    assert run.publish_batch(batch(), late=True) == [threading.current_thread(), 0, 1, 2, True]


@pytest.mark.usefixtures("clients")
def test_a_batch_for_a_session_is_read_in_the_callers_thread(monkeypatch: pytest.MonkeyPatch):
    async def append_batch(_: Any, session_id: str, batch: Any) -> list[Any]:
        return [session_id, *batch]

    monkeypatch.setattr(Sessions, "append_batch", append_batch)
    run = open_run()

    assert sync.Runfold().sessions.append_batch("s-1", run.events()) == ["s-1", 0, 1, 2]


@pytest.mark.usefixtures("clients")
def test_a_stream_is_read_in_the_callers_thread():
    run, threads = open_run(), []

    def stream() -> Iterator[Any]:
        for chunk in CHUNKS:
            threads.append(threading.current_thread())
            assert list(run.events()) == [0, 1, 2]
            yield chunk

    assert list(run.record_stream(stream(), provider="anthropic")) == CHUNKS

    assert set(threads) == {threading.current_thread()}
    assert [part.message for part in run._target.published if isinstance(part, AssistantMessage)] == [
        "At 07:04."
    ]


@pytest.mark.usefixtures("clients")
def test_waiting_streams_leave_the_background_loop_its_threads():
    gate = threading.Event()

    def waiting() -> Iterator[Any]:
        gate.wait(10 * DEADLINE_SECONDS)
        yield from CHUNKS

    run = open_run()
    readers = [
        threading.Thread(target=lambda: list(run.record_stream(waiting(), provider="anthropic")))
        for _ in range(40)
    ]
    for reader in readers:
        reader.start()

    async def look_up() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 9092)

    background().call(look_up())
    gate.set()
    for reader in readers:
        reader.join()


@pytest.mark.parametrize("breaks", [True, False], ids=["it breaks off", "it is left early"])
@pytest.mark.usefixtures("clients")
def test_a_stream_that_does_not_end_is_recorded_as_unfinished(breaks: bool):
    def stream() -> Iterator[Any]:
        yield from CHUNKS[:2]
        if breaks:
            raise ConnectionError("gone")
        yield from CHUNKS[2:]

    run = open_run()
    recorded = run.record_stream(stream(), provider="anthropic")
    assert [next(recorded) for _ in range(2)] == CHUNKS[:2]
    if breaks:
        with pytest.raises(ConnectionError, match="gone"):
            next(recorded)
    else:
        recorded.close()

    assert [part.message for part in run._target.published if isinstance(part, AssistantMessage)] == [
        "At 07:04."
    ]


def test_a_reading_is_empty_at_its_end():
    async def numbers() -> AsyncIterator[int]:
        yield 1

    reading = BackgroundReading(numbers(), background())

    assert [reading.next(), reading.next()] == [[1], []]
    reading.close()
