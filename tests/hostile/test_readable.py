"""Whatever the API accepts can be read: by every route of reading, in every format."""

import base64
import json
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.attacks import Stack
from tests.killing import ROUNDS

from runfold import Run, UserMessage
from runfold.log.publisher import Outgoing
from runfold_schemas.errors import InvalidEventError, RunNotFoundError
from runfold_schemas.events import ToolCall
from runfold_schemas.messages import PROVIDERS
from runfold_schemas.outline import DEPTH_MAX

JSON = {"Content-Type": "application/json"}


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


async def publish_raw(under_attack: Stack, run: Run, kind: str, data: str, **more: str) -> None:
    """As a program would that writes JSON of its own."""
    fields = {
        "event_id": f'"{uuid4()}"',
        "run_id": json.dumps(run.run_id),
        "timestamp": '"2030-01-02T03:04:05Z"',
        "type": f'"{kind}"',
        "data": data,
        **more,
    }
    value = "{{{}}}".format(",".join(f'"{name}":{text}' for name, text in fields.items()))
    connection = under_attack.runfold.connection
    topic = connection.topics.run(run.run_id, run.life.log_id)
    record = Outgoing(run.run_id.encode(), value.encode())
    await connection.publisher.wait(await connection.publisher.send(topic, record))


async def unreadable(client: httpx.AsyncClient, run_id: str) -> dict[str, str]:
    """The reads of a run that are answered with an error of the server."""
    path = f"/v1/runs/{quote(run_id, safe='')}"
    formats = [f"{path}/ledger?format={name}&lossy=drop&validate={name}" for name in PROVIDERS]
    answers = {
        read: await client.get(read)
        for read in (
            path,
            f"{path}?source=log",
            f"{path}/events?outcome=all",
            f"{path}/events?outcome=all&source=log",
            f"{path}/ledger",
            f"{path}/ledger?source=log",
            f"{path}/ledger?validate=strict",
            *formats,
            "/v1/runs",
        )
    }
    answers["POST"] = await client.post(f"{path}/ledger", json={"messages": []})
    return {read: answer.text[:300] for read, answer in answers.items() if answer.status_code >= 500}


async def test_an_event_that_is_nested_too_deep_is_refused(under_attack: Stack):
    client = under_attack.client
    run = await under_attack.runfold.open_run(agent_id="a", run_id=f"deep-{uuid4()}")
    event = '{"type":"tool_call","data":{"tool_call_id":"c","tool_name":"t","payload":%s}}'
    path = f"/v1/runs/{run.run_id}/events"

    deepest = await client.post(path, content=event % nested(DEPTH_MAX - 2), headers=JSON)
    deeper = await client.post(path, content=event % nested(DEPTH_MAX - 1), headers=JSON)
    deepest_state = json.loads(nested(DEPTH_MAX))

    assert deepest.status_code == 201, deepest.text
    assert deeper.status_code == 422
    assert f"deeper than {DEPTH_MAX} levels" in deeper.json()["detail"]
    with pytest.raises(InvalidEventError, match="deeper than"):
        await run.publish(ToolCall(tool_call_id="c", tool_name="t", payload=deepest_state))
    with pytest.raises(InvalidEventError, match="deeper than"):
        await run.publish(UserMessage(message="m"), state_delta={"key": deepest_state})
    assert await unreadable(client, run.run_id) == {}


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 190, 196, 197, 198, 199])
async def test_what_a_raw_producer_has_nested_deeper_is_readable(under_attack: Stack, levels: int):
    run = await under_attack.runfold.open_run(agent_id="a", run_id=f"raw-{levels}-{uuid4()}")
    # The event and its data are levels too, and so are the state and its key.
    payload, value = nested(levels - 2), nested(levels - 2)
    state = f'{{"own":{value},"app:deep":{value}}}'

    async with under_attack.attacked(f"{levels} levels", steps=1):
        await publish_raw(
            under_attack,
            run,
            "tool_call",
            f'{{"tool_call_id":"c","tool_name":"t","payload":{payload}}}',
            state_delta=state,
        )
        position = await run.publish(UserMessage(message="after it"))
        seen = await under_attack.client.get(
            f"/v1/runs/{run.run_id}/events", params={"outcome": "all", "min_offset": position.offset}
        )

    assert [event["outcome"] for event in seen.json()["events"]] == ["accepted"] * 3
    assert await unreadable(under_attack.client, run.run_id) == {}
    assert (await under_attack.client.get("/v1/apps/a/state")).status_code == 200


_TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\0$./\\\"'é😀\x7f"), max_size=8)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([1e15, 1e308, 5e-324, -0.0, 2**63, 2**64])
    | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=10,
)
_EVENTS = st.one_of(
    st.builds(lambda text, parts: ("user_message", {"message": text, "structured": parts}), _TEXT, _VALUES),
    st.builds(
        lambda id_, value: ("tool_call", {"tool_call_id": id_, "tool_name": id_, "payload": value}),
        _TEXT,
        _VALUES,
    ),
    st.builds(
        lambda id_, value: ("tool_result", {"tool_call_id": id_, "result": value, "error": value}),
        _TEXT,
        _VALUES,
    ),
    st.builds(lambda value: ("provider_part", {"content": value, "finished": True}), _VALUES),
    st.builds(
        lambda body: ("framework_event", {"framework": "adk", "body": body}),
        st.dictionaries(_TEXT, _VALUES, max_size=3),
    ),
    st.builds(
        lambda reason, offset: ("event_amended", {"offset": offset, "reason": reason}),
        _TEXT,
        st.integers(0, 3),
    ),
)


async def test_whatever_is_accepted_is_readable(under_attack: Stack):
    client = under_attack.client
    session = (await client.post("/v1/sessions", json={"app": "a", "user": "u"})).json()["session_id"]
    accepted = 0

    @hypothesis_settings(max_examples=15 * ROUNDS, database=None, suppress_health_check=list(HealthCheck))
    @given(
        event=_EVENTS,
        state=st.dictionaries(_TEXT.filter(bool), _VALUES, max_size=2),
        labels=st.dictionaries(_TEXT, _TEXT, max_size=2),
    )
    def collect(event: tuple[str, dict[str, Any]], state: dict[str, Any], labels: dict[str, str]) -> None:
        kind, data = event
        cases.append({"type": kind, "data": data, "labels": labels, "state_delta": state})

    cases: list[dict[str, Any]] = []
    collect()
    async with under_attack.attacked("events of any content"):
        for case in cases:
            run_id = f"any-{uuid4()}"
            await client.post("/v1/runs", json={"run_id": run_id, "agent_id": "a", "labels": case["labels"]})
            for path in (f"/v1/runs/{run_id}/events", f"/v1/sessions/{session}/events"):
                answer = await client.post(path, content=json.dumps(case).encode(), headers=JSON)
                assert answer.status_code < 500, (case, answer.text)
                accepted += answer.status_code == 201
            assert await unreadable(client, run_id) == {}, case
        for read in ("", "?include=events", "/events", "/runs", "/ledger"):
            answer = await client.get(f"/v1/sessions/{session}{read}")
            assert answer.status_code == 200, (read, answer.text[:300])
        assert (await client.get("/v1/sessions")).status_code == 200
    assert accepted > len(cases)


_CURSORS = [
    "[1e999]",
    "[[[[",
    "1e999",
    "[" * 2_000,
    '[1e999,"a"]',
    '[-1e999,"a"]',
    '[1e308,"a"]',
    '[99999999999999999999999,"a"]',
    '["0001-01-01T00:00:00+23:59","a"]',
    '["9999-12-31T23:59:59-23:59","a"]',
    '[1,"\\ud800"]',
    '[1,"\\u0000"]',
    "[0,1e999]",
    "[0,99999999999999999999999]",
    "[true,true]",
    '["a",9e999]',
    '["createMemory","1e999"]',
    '["createMemory","1e300"]',
    '["createMemory","nan"]',
    "null",
    "{}",
    "",
]


async def test_no_cursor_is_an_error_of_the_server(under_attack: Stack):
    client = under_attack.client
    session = (await client.post("/v1/sessions", json={"app": "9", "user": "u", "session_id": "9/s"})).json()
    await client.post("/v1/banks", json={"bank_id": "9"})
    await client.post("/v1/banks/9/memories", json={"memory_id": "m", "fact": "f", "scope": {"a": "b"}})
    engine, quoted = "/v1beta1/reasoningEngines/9", quote(session["session_id"], safe="")
    reads = [
        ("/v1/runs", "cursor"),
        ("/v1/sessions", "cursor"),
        (f"/v1/sessions/{quoted}/runs", "cursor"),
        ("/v1/banks", "cursor"),
        ("/v1/banks/9/memories", "cursor"),
        ("/v1/banks/9/memories/m/revisions", "cursor"),
        ("/v1beta1/reasoningEngines", "pageToken"),
        (f"{engine}/sessions", "pageToken"),
        (f"{engine}/sessions/s/events", "pageToken"),
        (f"{engine}/memories", "pageToken"),
        (f"{engine}/memories/m/revisions", "pageToken"),
    ]
    texts = [*_CURSORS, *_any_cursors()]
    for text in texts:
        for cursor in (text, _encoded(text)):
            for path, name in reads:
                answer = await client.get(path, params={name: cursor})
                assert answer.status_code < 500, (path, cursor, answer.text)
            answer = await client.get(f"{engine}/operations/{quote(cursor, safe='') or 'x'}")
            assert answer.status_code < 500, (cursor, answer.text)


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def _any_cursors() -> list[str]:
    found: list[str] = []

    @hypothesis_settings(max_examples=5 * ROUNDS, database=None)
    @given(st.lists(_VALUES, max_size=3))
    def collect(values: list[Any]) -> None:
        found.append(json.dumps(values))

    collect()
    return found


async def test_a_deleted_run_that_is_still_held_is_not_found(under_attack: Stack):
    client, runfold = under_attack.client, under_attack.runfold
    session = (await client.post("/v1/sessions", json={"app": "a", "user": "u"})).json()["session_id"]
    run_id = f"held-{uuid4()}"
    await client.post("/v1/runs", json={"run_id": run_id, "agent_id": "a", "session_id": session})
    event = {"type": "user_message", "data": {"message": "m"}}
    assert (await client.post(f"/v1/runs/{run_id}/events", json=event)).status_code == 201
    held = await runfold.get_run(run_id)

    await client.delete(f"/v1/sessions/{session}")
    answer = await client.post(f"/v1/runs/{run_id}/events", json=event, timeout=60)
    while answer.status_code == 201:  # the deletion is on its way
        answer = await client.post(f"/v1/runs/{run_id}/events", json=event, timeout=60)

    assert answer.status_code == 404, answer.text
    assert answer.json()["type"] == "urn:runfold:problem:RunNotFound"
    with pytest.raises(RunNotFoundError):
        await held.publish(UserMessage(message="m"))
