"""Texts that were cut within a character, for example an emoji at the end of a tool's output: every
way in stores U+FFFD for the half that is left, says so, and loses nothing else.
"""

import json
import logging
from typing import Any

import httpx
import pytest
from tests.http_sessions import created
from tests.ingesting import opened

from runfold import Runfold, StateChanged, ToolResult, UserMessage
from runfold.client.session import SessionVerbs
from runfold_schemas.events import AnyEvent

CUT = {"out": ["cut \ud83d"], "\ude00 key": "joined \ud83d\ude00"}
WHOLE = {"out": ["cut \ufffd"], "\ufffd key": "joined \U0001f600"}

JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}


def result(number: int) -> ToolResult:
    return ToolResult(tool_call_id=f"call-{number}", result=CUT)


async def events(runfold: Runfold, run_id: str) -> list[AnyEvent]:
    """Those that count, without the opening."""
    run = await runfold.get_run(run_id)
    return [one.event async for one in run.history() if one.counts and one.event][1:]


async def test_the_client_stores_them_whole_and_says_so(runfold: Runfold, caplog: pytest.LogCaptureFixture):
    run = await runfold.open_run(agent_id="a")

    with caplog.at_level(logging.WARNING, logger="runfold"):
        await run.publish(result(1))
        await run.publish_batch([result(2), UserMessage(message="whole")])
        await run.publish(UserMessage(message="m"), labels={"k": "cut \ud83d"})

    found = await events(runfold, run.run_id)
    assert [getattr(event.data, "result", None) for event in found] == [WHOLE, WHOLE, None, None]
    assert found[-1].labels == {"k": "cut \ufffd"}
    assert sum("halves of surrogate pairs" in line for line in caplog.messages) == 2
    assert [
        part.content for message in await run.ledger() for part in message.parts if part.type == "tool_result"
    ]


@pytest.mark.parametrize("kind", ["one", "array", "lines"])
async def test_a_body_is_read_as_if_it_were_whole(
    ingest: httpx.AsyncClient, runfold: Runfold, caplog: pytest.LogCaptureFixture, kind: str
):
    run = await opened(ingest)
    cut: dict[str, Any] = {"type": "tool_result", "data": {"tool_call_id": "c", "result": CUT}}
    text = json.dumps(cut)  # which escapes the halves, as JavaScript does
    body = {"one": text, "array": f"[{text}, {text}]", "lines": f"{text}\n{text}\n"}[kind]

    with caplog.at_level(logging.WARNING, logger="runfold"):
        response = await ingest.post(
            f"{run}/events", content=body, headers=NDJSON if kind == "lines" else JSON
        )

    assert response.status_code == 201, response.text
    found = await events(runfold, run.removeprefix("/v1/runs/"))
    assert [event.data.result for event in found if event.type == "tool_result"] == [WHOLE] * len(found)
    assert len(found) == (1 if kind == "one" else 2)
    assert any("halves of surrogate pairs" in line for line in caplog.messages)


async def test_sessions_and_shared_state_have_them_whole(sessions: SessionVerbs, app: str):
    session = await sessions.create(app=app, state={"k": CUT, "app:k": CUT}, display_name="cut \ud83d")
    await sessions.append(session.session_id, StateChanged(), state_delta={"n": CUT, "app:n": CUT})

    found = await sessions.view(session.session_id)

    assert found.state == {"k": WHOLE, "app:k": WHOLE, "n": WHOLE, "app:n": WHOLE}
    assert found.record.display_name == "cut \ufffd"


async def test_a_body_of_any_other_route_is_read_whole(api: httpx.AsyncClient, app: str):
    path = await created(api, app=app)
    body = json.dumps({"labels": {"k": "cut \ud83d"}})

    answer = await api.patch(path, content=body, headers=JSON)

    assert answer.json()["labels"] == {"k": "cut \ufffd"}


@pytest.mark.parametrize("broken", ['{"a": "\\ud83d"', '{"a": "\\ud83d", "b": NaN}', '{"a": "\\ud83d\\x"}'])
async def test_a_body_that_is_broken_besides_is_refused(api: httpx.AsyncClient, app: str, broken: str):
    path = await created(api, app=app)

    refused = await api.patch(path, content=broken, headers=JSON)

    assert refused.status_code == 422
    assert "broken JSON" in refused.json()["detail"]
