"""ADK's events as they are read from a log that anybody can append to."""

import gc
import json

import pytest

from runfold.adk.events import events_of
from runfold.client.session import RecordedEvent


def logged(body: object, *unset: str) -> RecordedEvent:
    data = {"framework": "adk", "body": body, "unset": unset}
    return RecordedEvent(0, 0, "accepted", json.dumps({"data": data}).encode())


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "nothing/x",
        "author/99/x",
        "author/0/x",
        "content/parts/7/text",
        "content/parts/-1/text",
        f"content/parts/{'9' * 5000}/text",
        "content/parts/0/text/0/x",
        "content/nothing/0",
        "longRunningToolIds/3/x",
        "actions/stateDelta/k/x",
        "model_dump/x",
        "__class__/x",
    ],
)
def test_a_note_of_what_is_not_there_is_passed_over(path: str):
    body = {
        "id": "e",
        "timestamp": 1.5,
        "author": "m",
        "content": {"parts": [{"text": "x"}]},
        "longRunningToolIds": ["a"],
        "actions": {"stateDelta": {"k": [1]}},
    }

    noted = events_of([logged(body, path, "content/parts/0/text")])

    assert noted == events_of([logged(body)])
    assert noted[0].content is not None
    assert noted[0].content.parts is not None
    assert noted[0].content.parts[0].model_fields_set == set()


@pytest.mark.parametrize("bodies", [[], [{"author": "m"}], [{"author": "m"}, {"author": 1}]])
def test_reading_leaves_the_garbage_collector_as_the_program_has_it(bodies: list[object]):
    events = [logged(body) for body in bodies]
    try:
        for switch in (gc.disable, gc.enable):
            switch()
            before = gc.isenabled()

            events_of(events)

            assert gc.isenabled() == before
    finally:
        gc.enable()
