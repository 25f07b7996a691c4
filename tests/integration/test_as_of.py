"""Runs as they were: ledger, record and state at an earlier moment, from Python and over HTTP."""

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from tests.querying import Projected, query

from runfold import (
    AssistantMessage,
    HttpRuns,
    InvalidEventError,
    Run,
    RunNotFoundError,
    TokenUsage,
    UserMessage,
)
from runfold.settings import Settings
from runfold.sync import Runfold as SyncRunfold

MOMENTS: list[dict[str, Any]] = [
    {},
    {"as_of_offset": 0},
    {"as_of_offset": 2},
    {"as_of_turn": "t-1"},
    {"as_of_turn": "t-2"},
    {"before_turn": "t-1"},
    {"before_turn": "t-2"},
]


@pytest.fixture(scope="module")
async def run(stored: Projected) -> Run:
    """Two turns, of which only the questions name their turn."""
    run = await stored.runfold.open_run(agent_id="desk", labels={"channel": "chat"})
    await run.publish(UserMessage(message="1"), turn_id="t-1")
    await run.publish(AssistantMessage(message="a"), state_delta={"step": 1, "app:seen": True})
    await run.publish(TokenUsage(input_tokens=7))
    await run.publish(UserMessage(message="2"), turn_id="t-2")
    await run.publish(AssistantMessage(message="b"), state_delta={"step": 2, "done": None})
    await run.publish(UserMessage(message="3"), turn_id="t-3")
    await run.fail("no train")
    await run.publish(AssistantMessage(message="late"), late=True, state_delta={"step": 9})
    await stored.holds(run, 8)
    return run


async def answer(client: httpx.AsyncClient, path: str, moment: dict[str, Any]) -> Any:
    response = await client.get(path, params={**moment, "min_offset": 8})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
@pytest.mark.parametrize("source", ["snapshot", "log"])
async def test_a_moment_is_the_same_in_python_and_over_http(
    run: Run, client: httpx.AsyncClient, moment: dict[str, Any], source: str
):
    path, view = f"/v1/runs/{run.run_id}", await run.view(**moment)
    shown = moment | {"source": source}

    ledger = await answer(client, f"{path}/ledger", shown)
    record = await answer(client, path, shown)
    state = await answer(client, f"{path}/state", shown)

    messages = [message.model_dump(mode="json") for message in await run.ledger(**moment)]
    assert [each["parts"] for each in ledger["messages"]] == [each["parts"] for each in messages]
    request = await run.ledger("anthropic", **moment)
    asked = await answer(client, f"{path}/ledger", shown | {"format": "anthropic"})
    assert asked["request"]["messages"] == request.body["messages"]
    expected = view.record.model_dump(mode="json", exclude={"usage"})
    assert {name: record[name] for name in expected} == expected
    assert record["usage"]["input_tokens"] == view.record.usage.input_tokens
    assert state == {
        "run_id": run.run_id,
        "next_offset": view.record.next_offset,
        "state": view.state,
        "offsets": view.offsets,
    }


async def test_a_run_is_shown_as_it_was(run: Run):
    first, second, now = (
        await run.view(before_turn="t-2"),
        await run.view(as_of_turn="t-2"),
        await run.view(),
    )

    assert (first.state, first.offsets) == ({"step": 1}, {"step": 2})
    assert (second.state, second.offsets) == ({"step": 2, "done": None}, {"step": 5, "done": 5})
    assert now.state == second.state  # a late event changes no state
    assert [each.record.status for each in (first, second, now)] == ["running", "running", "failed"]
    assert [each.record.next_offset for each in (first, second, now)] == [4, 6, 9]
    assert first.record.usage.input_tokens == 7
    texts = [message.parts[0].text for message in await run.ledger(as_of_turn="t-1")]
    assert texts == ["1", "a"]
    with pytest.raises(InvalidEventError, match="has no offset 9: its log ends at 9") as beyond:
        await run.view(as_of_offset=9)
    assert beyond.value.field == "as_of_offset"


async def test_a_run_is_shown_as_it_was_at_a_time(run: Run, client: httpx.AsyncClient):
    times = [admitted.record.log_time async for admitted in run.history()]
    moment = datetime.fromtimestamp(times[4] / 1000, UTC)
    expected = next((offset for offset, time in enumerate(times) if time > times[4]), len(times))

    view = await run.view(as_of_time=moment)
    record = await answer(client, f"/v1/runs/{run.run_id}", {"as_of_time": moment.isoformat()})

    assert view.record.next_offset == record["next_offset"] == expected


async def test_answers_belong_to_the_turn_of_their_question(run: Run, client: httpx.AsyncClient):
    async def offsets(**parameters: Any) -> list[int]:
        shown = await answer(client, f"/v1/runs/{run.run_id}/events", parameters)
        return [each["offset"] for each in shown["events"]]

    assert await offsets(turn_id="t-1") == [1, 2, 3]
    assert await offsets(turn_id="t-2") == [4, 5]
    assert await offsets(turn_id="t-3") == [6, 7, 8]
    assert await offsets(turn_id="t-2", first_offset=5) == [5]
    assert await offsets(turn_id="t-1", first_offset=5) == []
    assert await offsets(turn_id="t-2", type="assistant_message") == [5]
    assert await offsets(turn_id="t-1", limit=1, first_offset=2) == [2]
    assert await offsets(turn_id="t-2", first_offset=5, source="log", outcome="all") == [5]
    async with client.stream(
        "GET",
        f"/v1/runs/{run.run_id}/follow",
        params={"turn_id": "t-2", "first_offset": 5, "until_end": True},
    ) as stream:
        lines = [line async for line in stream.aiter_lines()]
    assert [line for line in lines if line.startswith("id: ")] == ["id: 5"]


async def test_turns_are_the_same_from_pages_of_one_event_each(stored: Projected, settings: Settings):
    run = await stored.runfold.open_run(agent_id="desk")
    for turn_id in (None, "t-1", None, None, "t-2", None):
        await stored.publish(run, UserMessage(message="x"), turn_id=turn_id)

    async with query(settings) as client:
        path = f"/v1/runs/{run.run_id}"
        shown = (await client.get(f"{path}/events", params={"turn_id": "t-1"})).json()
        behind = (await client.get(f"{path}/events", params={"turn_id": "t-1", "first_offset": 4})).json()
        ledger = (await client.get(f"{path}/ledger", params={"as_of_turn": "t-1"})).json()

    assert [each["offset"] for each in shown["events"]] == [2, 3, 4]
    assert [each["offset"] for each in behind["events"]] == [4]
    assert ledger["next_offset"] == 5


async def test_the_history_of_a_key_names_the_events_that_set_it(run: Run, client: httpx.AsyncClient):
    path = f"/v1/runs/{run.run_id}/state"

    changes = await run.state_changes("step")
    shown = await answer(client, f"{path}/step", {})
    shared = await answer(client, f"{path}/app%3Aseen", {})
    first = await answer(client, f"{path}/step", {"limit": 1})
    rest = await answer(client, f"{path}/step", {"first_offset": first["next_offset"]})

    assert [(each.offset, each.type, each.value) for each in changes] == [
        (2, "assistant_message", 1),
        (5, "assistant_message", 2),
    ]
    assert shown["changes"] == [each._asdict() for each in changes]
    assert shown["next_offset"] == 9
    assert [each["value"] for each in shared["changes"]] == [True]
    assert [each["offset"] for each in first["changes"]] == [2]
    assert [each["offset"] for each in rest["changes"]] == [5]
    assert await run.state_changes("step", before_turn="t-2") == changes[:1]


async def test_the_client_over_http_has_the_same(run: Run, url: str):
    async with HttpRuns(url) as runs:
        remote = await runs.get_run(run.run_id)
        for moment in MOMENTS:
            assert await remote.view(**moment) == await run.view(**moment)
            assert await remote.ledger(**moment) == await run.ledger(**moment)
            assert await remote.faults("openai-chat", **moment) == await run.faults("openai-chat", **moment)
        assert await remote.state_changes("step") == await run.state_changes("step")
        with pytest.raises(InvalidEventError, match="has no turn"):
            await remote.ledger(before_turn="t-9")

        fork = await remote.fork(before_turn="t-2", run_id=f"{run.run_id}-http", labels={"k": "v"})
        again = await remote.fork(before_turn="t-2", run_id=f"{run.run_id}-http")

        assert fork.forked_from == again.forked_from
        assert await fork.ledger() == await run.ledger(before_turn="t-2")
        assert (await fork.view()).record.labels == {"channel": "chat", "k": "v"}
        with pytest.raises(RunNotFoundError):
            await runs.get_run("no-run")


def test_the_client_without_await_has_the_same(settings: Settings):
    with SyncRunfold(settings.kafka, prefix=settings.prefix) as runfold:
        run = runfold.open_run(agent_id="desk")
        run.publish(UserMessage(message="1"), turn_id="t-1", state_delta={"step": 1})
        run.publish(UserMessage(message="2"), turn_id="t-2", state_delta={"step": 2})

        fork = run.fork(before_turn="t-2")

        assert [message.parts[0].text for message in run.ledger(before_turn="t-2")] == ["1"]
        assert run.view(as_of_turn="t-1").state == {"step": 1}
        assert [each.value for each in run.state_changes("step")] == [1, 2]
        assert len(fork.ledger()) == 1
        assert fork.forked_from is not None
        assert fork.forked_from.events == 1
