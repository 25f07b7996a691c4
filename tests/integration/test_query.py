"""Reading runs over HTTP: records, lists, events, sessions, and what is answered when a server is
away.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from tests.ingesting import note
from tests.processes import DEADLINE_SECONDS, append_raw
from tests.querying import POLL_SECONDS, Projected, query, ready_api, sent_events

from runfold import (
    AssistantMessage,
    PlannerNote,
    RejectedError,
    RunLabeled,
    SystemMessage,
    TokenUsage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold.local import free_port
from runfold.settings import Settings
from runfold.store.editions import Editions, new_edition
from runfold.store.pages import PageStore
from runfold.store.runs import RunStore


async def got(client: httpx.AsyncClient, path: str, **params: Any) -> Any:
    response = await client.get(path, params=params)
    assert response.status_code == 200, response.text
    return response.json()


async def offsets(client: httpx.AsyncClient, path: str, **params: Any) -> list[int]:
    return [event["offset"] for event in (await got(client, path, **params))["events"]]


async def test_a_record_shows_what_the_run_has_become(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run(
        UserMessage(message="hi"),
        TokenUsage(input_tokens=7),
        session_id="s-1",
        turn_id="t-1",
        labels={"a": "b"},
    )

    record = await got(client, f"/v1/runs/{run.run_id}")

    assert record["status"] == "running"
    assert record["session_id"] == "s-1"
    assert record["turn_id"] == "t-1"
    assert record["labels"] == {"a": "b"}
    assert record["usage"]["input_tokens"] == 7
    assert record["counts"] == {"run_opened": 1, "user_message": 1, "token_usage": 1}
    assert record["next_offset"] == 3


async def test_a_record_includes_every_page_though_its_saved_state_lags(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run(UserMessage(message="hi"))

    for number in range(20):
        offset = await stored.publish(run, PlannerNote(note=str(number)))
        assert (await got(client, f"/v1/runs/{run.run_id}"))["next_offset"] > offset


@pytest.mark.parametrize(
    "run_id",
    ["a/b c?é%2F", "a/events", "a/ledger", "a/follow", "a/responses", "a/repair", "a/status", "/", "%"],
)
async def test_a_run_is_read_and_written_under_any_id(settings: Settings, stored: Projected, run_id: str):
    async with ready_api(settings) as client:
        opened = await client.post("/v1/runs", json={"agent_id": "a", "run_id": run_id})
        path = opened.headers["location"]
        posted = await client.post(f"{path}/events", json=note("1"))
        paused = await client.post(f"{path}/status", json={"action": "pause"})
        repaired = await client.post(f"{path}/repair")

        record = await got(client, path, min_offset=2)
        read = await offsets(client, f"{path}/events", min_offset=2)
        ledger = await got(client, f"{path}/ledger", min_offset=2)
        async with client.stream("GET", f"{path}/follow", params={"first_offset": 1}) as followed:
            first = await anext(sent_events(followed))

    assert [posted.status_code, paused.status_code, repaired.status_code] == [201, 201, 200]
    assert (record["run_id"], record["status"]) == (run_id, "paused")
    assert read == [0, 1, 2]
    assert ledger["run_id"] == run_id
    assert first.data["event"]["run_id"] == run_id


async def test_an_unknown_run_is_a_problem_document(client: httpx.AsyncClient):
    for path in ("", "/events", "/ledger", "/follow"):
        response = await client.get(f"/v1/runs/nobody{path}")

        assert response.status_code == 404
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["run_id"] == "nobody"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/runs?status=asleep", "status"),
        ("/v1/runs?cursor=bm9wZQ==", "cursor"),
        ("/v1/runs?cursor=%E2%82%AC", "cursor"),
        ("/v1/runs?label=nocolon", "label"),
        ("/v1/runs?since=yesterday", "since"),
        ("/v1/runs?limit=0", "limit"),
        ("/v1/runs?until=2026-01-01T00:00:00", "until"),
        ("/v1/runs/r?min_offset=-1", "min_offset"),
        ("/v1/runs/r?source=memory", "source"),
        ("/v1/runs/r/events?first_offset=-1", "first_offset"),
        ("/v1/runs/r/events?end_offset=last", "end_offset"),
        ("/v1/runs/r/events?limit=1001", "limit"),
        ("/v1/runs/r/events?outcome=good", "outcome"),
        ("/v1/runs/r/events?type=shrug", "type"),
        ("/v1/runs/r/ledger?as_of_offset=1&as_of_turn=t", "as_of_turn"),
        ("/v1/runs/r/ledger?as_of_offset=99999999999999999999", "as_of_offset"),
        ("/v1/runs/r/ledger?as_of_time=yesterday", "as_of_time"),
        ("/v1/runs/r/ledger?min_offset=x", "min_offset"),
        ("/v1/runs/r/ledger?min_ofset=1", "min_ofset"),
        ("/v1/runs/r/ledger?validate=kindly", "validate"),
        ("/v1/runs/r/ledger?validate=bedrock&thinking=maybe", "thinking"),
        ("/v1/runs/r/follow?type=shrug", "type"),
        ("/v1/runs/r/follow?first_offset=x", "first_offset"),
        ("/v1/runs/r/follow?until_end=maybe", "until_end"),
        ("/v1/sessions/s/runs?limit=x", "limit"),
        ("/v1/sessions/s/runs?cursor=bm9wZQ==", "cursor"),
    ],
)
async def test_a_wrong_parameter_is_named(
    client: httpx.AsyncClient, stored: Projected, path: str, field: str
):
    response = await client.get(path)

    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["field"] == field


async def test_an_id_that_is_too_long_is_refused(client: httpx.AsyncClient):
    response = await client.get(f"/v1/runs/{'x' * 101}")

    assert response.status_code == 422
    assert response.json()["field"] == "run_id"


async def test_what_was_published_is_read_at_its_offset(client: httpx.AsyncClient, stored: Projected):
    run = await stored.runfold.open_run(agent_id="a")

    for number in range(10):
        position = await run.publish(PlannerNote(note=str(number)))
        record = await got(client, f"/v1/runs/{run.run_id}", min_offset=position.offset)
        assert record["next_offset"] == position.offset + 1


async def test_an_offset_that_nobody_wrote_is_a_timeout(settings: Settings, stored: Projected):
    run = await stored.run()

    async with query(settings.model_copy(update={"wait_timeout_seconds": 1})) as client:
        response = await client.get(f"/v1/runs/{run.run_id}", params={"min_offset": 5})

    assert response.status_code == 504
    assert response.json()["min_offset"] == 5


async def test_runs_are_listed_by_each_filter_newest_first(client: httpx.AsyncClient, stored: Projected):
    agent = f"lister-{uuid4().hex}"
    runs = [
        await stored.run(
            agent_id=agent, session_id=f"{agent}-{number % 2}", labels={"n": str(number), "k": "a:b"}
        )
        for number in range(4)
    ]
    await runs[0].complete()
    await saved(client, runs[0].run_id, "completed")

    async def listed(**params: Any) -> list[int]:
        found = (await got(client, "/v1/runs", agent_id=agent, **params))["runs"]
        return [[run.run_id for run in runs].index(record["run_id"]) for record in found]

    times = [
        record["started_at"] for record in reversed((await got(client, "/v1/runs", agent_id=agent))["runs"])
    ]
    assert await listed() == [3, 2, 1, 0]
    assert await listed(session_id=f"{agent}-1") == [3, 1]
    assert await listed(status="completed") == [0]
    assert await listed(status="running", label=["k:a:b"]) == [3, 2, 1]
    assert await listed(label=["n:2", "k:a:b"]) == [2]
    assert await listed(since=times[1], until=times[3]) == [2, 1]


async def saved(client: httpx.AsyncClient, run_id: str, status: str) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            listed = (await got(client, "/v1/runs", status=status, limit=1000))["runs"]
            if run_id in {record["run_id"] for record in listed}:
                return
            await asyncio.sleep(POLL_SECONDS)


async def test_pages_of_a_list_are_the_list(client: httpx.AsyncClient, stored: Projected):
    agent = f"pager-{uuid4().hex}"
    runs = [await stored.run(agent_id=agent) for _ in range(7)]

    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await got(client, "/v1/runs", agent_id=agent, limit=3, **cursor)
        found += [record["run_id"] for record in page["runs"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}

    assert found == [run.run_id for run in reversed(runs)]


async def test_events_come_with_their_exact_bytes(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run()
    payload = b'{"big": 123456789012345678901234567890,\n "float": 1.10, "text": "\xc3\xa9 \\u00e9"}'
    value = (
        b'{"type": "tool_call", "event_id": "0190163d-8694-739b-aea5-966c26f8ad90", "run_id": "%b",'
        b' "timestamp": "2026-01-01T00:00:00Z", "unknown": [1],'
        b' "data": {"tool_call_id": "c", "tool_name": "t", "payload": %b}}'
    ) % (run.run_id.encode(), payload)
    await publish_raw(stored, run.run_id, value)

    response = await client.get(f"/v1/runs/{run.run_id}/events", params={"min_offset": 1})

    assert value in response.content
    event = response.json()["events"][1]
    assert event["outcome"] == "accepted"
    assert event["log_time"] > 1_700_000_000_000
    assert event["event"]["data"]["payload"]["big"] == 123456789012345678901234567890


async def publish_raw(stored: Projected, run_id: str, value: bytes) -> None:
    run = await stored.runfold.get_run(run_id)
    await append_raw(stored.runfold, run, value)
    await stored.publish(run, PlannerNote(note="rings the bell"))


async def test_events_are_found_by_range_type_and_turn(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run(UserMessage(message="1"), AssistantMessage(message="2"), turn_id="t-1")
    await stored.publish(run, UserMessage(message="3"), PlannerNote(note="4"), turn_id="t-2")
    path = f"/v1/runs/{run.run_id}/events"

    assert await offsets(client, path) == [0, 1, 2, 3, 4]
    assert await offsets(client, path, first_offset=1, end_offset=3) == [1, 2]
    assert await offsets(client, path, type=["user_message", "planner_note"]) == [1, 3, 4]
    assert await offsets(client, path, turn_id="t-2") == [3, 4]
    assert await offsets(client, path, turn_id="t-2", type="user_message") == [3]
    assert await offsets(client, path, first_offset=9) == []


async def test_pages_of_events_are_the_events(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run(*(PlannerNote(note=str(number)) for number in range(1, 1200)))
    path = f"/v1/runs/{run.run_id}/events"

    found: list[int] = []
    page: dict[str, Any] = {"next_offset": 0, "end_offset": 1}
    while page["next_offset"] < page["end_offset"]:
        page = await got(client, path, first_offset=page["next_offset"], type="planner_note", limit=500)
        found += [event["offset"] for event in page["events"]]

    assert found == list(range(1, 1200))


async def test_only_what_counts_is_shown_unless_all_is_asked_for(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run()
    event = run.event(UserMessage(message="once"))
    await run.publish(event)
    await run.publish(event)
    await publish_raw(stored, run.run_id, b'{"type": "shrug"')
    await run.complete()
    await run.publish(PlannerNote(note="after the end"), late=True)
    with pytest.raises(RejectedError):
        await run.publish(RunLabeled(labels={}), expected_offset=1, late=True)
    await stored.holds(run, 7)
    path = f"/v1/runs/{run.run_id}/events"

    counting = (await got(client, path))["events"]
    everything = (await got(client, path, outcome="all"))["events"]

    assert [(one["offset"], one["outcome"]) for one in counting] == [
        (0, "accepted"),
        (1, "accepted"),
        (4, "accepted"),
        (5, "accepted"),
        (6, "late"),
    ]
    assert [one["outcome"] for one in everything] == [
        "accepted",
        "accepted",
        "duplicate",
        "undecodable",
        "accepted",
        "accepted",
        "late",
        "rejected",
    ]
    assert everything[3]["event"] is None
    assert everything[3]["reason"]
    assert everything[3]["value_base64"] == "eyJ0eXBlIjogInNocnVnIg=="


async def test_a_session_shows_its_runs_and_its_ledger_in_order(client: httpx.AsyncClient, stored: Projected):
    session = f"session/runs {uuid4().hex}"
    first = await stored.run(UserMessage(message="1"), session_id=session)
    second = await stored.run(UserMessage(message="2"), AssistantMessage(message="3"), session_id=session)
    await stored.publish(first, AssistantMessage(message="4"))
    path = f"/v1/sessions/{quote(session, safe='')}"

    page = await got(client, f"{path}/runs", limit=1)
    rest = await got(client, f"{path}/runs", cursor=page["next_cursor"])
    ledger = await got(client, f"{path}/ledger", validate="strict")

    assert [record["run_id"] for record in page["runs"] + rest["runs"]] == [first.run_id, second.run_id]
    assert [message["parts"][0]["text"] for message in ledger["messages"]] == ["1", "4", "2", "3"]
    assert ledger["faults"] == []
    assert ledger["runs"] == [
        {"run_id": first.run_id, "next_offset": 3, "messages": 2},
        {"run_id": second.run_id, "next_offset": 3, "messages": 2},
    ]
    assert await got(client, "/v1/sessions/nobody/ledger") == {
        "session_id": "nobody",
        "messages": [],
        "runs": [],
    }


async def test_a_switch_to_another_edition_is_followed_without_an_error(
    client: httpx.AsyncClient, stored: Projected
):
    run = await stored.run(UserMessage(message="hi"))
    old = await stored.editions.current()
    new = new_edition()
    for kind, store in (("pages", PageStore), ("runs", RunStore)):
        await stored.database[f"{kind}.{old}"].aggregate([{"$out": f"{kind}.{new}"}]).to_list(None)
        assert store(stored.database, new)
    before = await got(client, f"/v1/runs/{run.run_id}/ledger")

    # As abruptly as it can happen: what was read a moment ago is gone.
    assert await switched(stored.editions, old, new)
    renamed = {kind: stored.database[f"{kind}.{old}"] for kind in ("pages", "runs")}
    for kind, collection in renamed.items():
        await collection.rename(f"{kind}.gone")
    after = await got(client, f"/v1/runs/{run.run_id}/ledger")
    source = (await client.get(f"/v1/runs/{run.run_id}")).headers["runfold-source"]

    for kind in renamed:
        await stored.database[f"{kind}.gone"].rename(f"{kind}.{old}")
    assert await switched(stored.editions, new, old)
    assert after == before
    assert source == "snapshot"
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await got(client, f"/v1/runs/{run.run_id}"))["next_offset"] < 2:
            await asyncio.sleep(POLL_SECONDS)


async def switched(editions: Editions, old: str, new: str) -> bool:
    return (
        await editions.begin(old=old, new=new)
        and await editions.join(old=old, new=new)
        and await editions.switch(old=old, new=new)
    )


async def test_requests_are_counted_by_route_and_not_by_run(client: httpx.AsyncClient, stored: Projected):
    run = await stored.run(run_id=f"counted/{uuid4().hex}")
    await got(client, f"/v1/runs/{quote(run.run_id, safe='')}/events")

    metrics = (await client.get("/metrics")).text

    assert (
        'runfold_request_seconds_count{method="GET",route="/v1/runs/{run_id}/events",status="200"}' in metrics
    )
    assert "counted" not in metrics


async def test_health_and_openapi_describe_the_service(client: httpx.AsyncClient):
    assert (await client.get("/health/ready")).status_code == 200

    paths = (await got(client, "/openapi.json"))["paths"]

    described = [operation for path in paths.values() for operation in path.values() if "tags" in operation]
    assert "/v1/runs/{run_id}/ledger" in paths
    assert len(described) > 5
    assert all(operation["summary"] for operation in described)
    assert all(
        parameter["description"] for operation in described for parameter in operation.get("parameters", [])
    )


@pytest.mark.parametrize(
    "filters",
    [
        {"agent_id": "a"},
        {"session_id": "s"},
        {"status": "running"},
        {"label_pairs": {"$all": ['["k", "v"]']}},
        {"started_us": {"$gte": 5}},
        {},
    ],
)
async def test_every_filter_of_the_list_is_served_by_an_index_in_order(
    stored: Projected, filters: dict[str, Any]
):
    runs = stored.database[f"runs.{await stored.editions.current()}"]
    place = {"$or": [{"started_us": {"$lt": 9}}, {"started_us": 9, "_id": {"$lt": "r"}}]}
    bound = {**filters.get("started_us", {}), "$lte": 9}

    for wanted in (filters, {**filters, **place, "started_us": bound}):
        plan = await runs.find(wanted).sort([("started_us", -1), ("_id", -1)]).limit(51).explain()

        stages = json.dumps(plan["queryPlanner"]["winningPlan"], default=str)
        assert '"IXSCAN"' in stages
        assert '"COLLSCAN"' not in stages
        assert '"SORT"' not in stages


async def test_without_mongodb_the_log_answers_and_the_rest_may_be_retried(
    settings: Settings, stored: Projected
):
    run = await stored.run(
        UserMessage(message="hi"), ToolCall(tool_call_id="c", tool_name="t"), ToolResult(tool_call_id="c")
    )
    port = free_port()
    without = settings.model_copy(update={"mongo": f"mongodb://127.0.0.1:{port}/?directConnection=true"})

    async with query(without) as client:
        refused = await client.get(f"/v1/runs/{run.run_id}/ledger")
        from_log = await got(client, f"/v1/runs/{run.run_id}/ledger", source="log")
        record = await got(client, f"/v1/runs/{run.run_id}", source="log")
        unready = await client.get("/health/ready")
        async with forwarding(port, settings.mongo.get_secret_value()), asyncio.timeout(DEADLINE_SECONDS):
            while (recovered := await client.get(f"/v1/runs/{run.run_id}/ledger")).status_code != 200:
                await asyncio.sleep(POLL_SECONDS)

    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert refused.headers["content-type"] == "application/problem+json"
    assert unready.status_code == 503
    assert [message["role"] for message in from_log["messages"]] == ["user", "assistant", "user"]
    assert record["next_offset"] == 4
    assert recovered.json() == from_log


@asynccontextmanager
async def forwarding(port: int, mongo: str) -> AsyncIterator[None]:
    """MongoDB at another port, for as long as the block lasts."""
    host, _, real_port = mongo.removeprefix("mongodb://").partition("/")[0].partition(":")
    writers: set[asyncio.StreamWriter] = set()

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(real_port))
        writers.update((writer, back))
        await asyncio.gather(pipe(reader, back), pipe(there, writer), return_exceptions=True)

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def test_without_kafka_snapshots_are_served(settings: Settings, stored: Projected):
    run = await stored.run(SystemMessage(message="hi"))
    without = settings.model_copy(update={"kafka": f"127.0.0.1:{free_port()}"})

    async with query(without) as client:
        record = await got(client, f"/v1/runs/{run.run_id}", min_offset=1)
        ledger = await got(client, f"/v1/runs/{run.run_id}/ledger")
        from_log = await client.get(f"/v1/runs/{run.run_id}/ledger", params={"source": "log"})

    assert record["next_offset"] == 2
    assert len(ledger["messages"]) == 1
    assert from_log.status_code == 503
