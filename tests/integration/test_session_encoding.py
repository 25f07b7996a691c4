"""How often the events of one append to a session are made and encoded."""

import json
from collections import Counter
from typing import Any

import pytest

from runfold import Runfold, UserMessage
from runfold.ids import new_event_id
from runfold.remote.api_client import HttpClient
from runfold.remote.sessions import HttpSessions
from runfold.settings import Settings
from runfold_schemas import codec


class CountingEvents:
    """The adapter that makes events of Python objects and of JSON, with a count of its calls for
    one event. `encode` reads back what it writes, so one reading of JSON is one encoding.
    """

    def __init__(self, events: Any, event_id: str) -> None:
        self._events = events
        self._event_id = event_id
        self.counts: Counter[str] = Counter()

    def validate_python(self, fields: dict[str, Any]) -> Any:
        self.counts["made"] += fields.get("event_id") == self._event_id
        return self._events.validate_python(fields)

    def validate_json(self, value: bytes) -> Any:
        self.counts["encoded"] += self._event_id.encode() in value
        return self._events.validate_json(value)


@pytest.mark.parametrize(
    ("state_delta", "events"),
    [
        ({"step": 1, "temp:x": 1}, 1),
        ({"step": 1, "app:theme": "dark"}, 2),
        ({"app:theme": "dark", "user:language": "fr"}, 3),
    ],
)
async def test_each_event_of_an_append_is_made_once_and_encoded_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, state_delta: dict[str, Any], events: int
) -> None:
    """The event itself, and one more for each scope of shared state that it changes."""
    async with Runfold.of(settings.log()) as runfold:
        session = await runfold.sessions.create(app="shop", user="ann")
        event_id = new_event_id()
        counting = CountingEvents(codec._EVENTS, event_id)
        sessions = runfold.sessions
        await sessions.append(session.session_id, UserMessage(message="opens the session"))
        monkeypatch.setattr(codec, "_EVENTS", counting)

        await sessions.append(
            session.session_id, UserMessage(message="Hello"), event_id=event_id, state_delta=state_delta
        )

        monkeypatch.undo()
        state = (await sessions.view(session.session_id)).state
    stored = {key: value for key, value in state_delta.items() if key != "temp:x"}
    assert stored.items() <= state.items()
    assert "temp:x" not in state
    assert counting.counts == {"made": events, "encoded": events}


async def test_the_client_over_http_makes_and_encodes_an_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    event_id = new_event_id()
    counting = CountingEvents(codec._EVENTS, event_id)
    bodies: list[bytes] = []

    async def answer(_: HttpClient, method: str, path: str, *, json: bytes, **options: Any) -> bytes:
        bodies.append(json)
        return b'{"run_id": "r", "offset": 1}'

    monkeypatch.setattr(HttpClient, "call", answer)
    monkeypatch.setattr(codec, "_EVENTS", counting)
    async with HttpSessions("http://127.0.0.1:1") as sessions:
        message, delta = UserMessage(message="Hello"), {"step": 2**200, "temp:x": 1}
        await sessions.append("s", message, event_id=event_id, state_delta=delta)

    assert counting.counts == {"made": 1, "encoded": 1}
    sent = json.loads(bodies[0])
    assert "run_id" not in sent
    assert (sent["event_id"], sent["state_delta"]) == (event_id, {"step": 2**200})
