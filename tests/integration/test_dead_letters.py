"""Dead letters over HTTP and on the command line: listed, shown, and published again once."""

import json
import sys
from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx
import pytest
from tests.commands import command
from tests.processes import append_raw, until
from tests.querying import Projected, ready_api

from runfold import Run, UserMessage
from runfold.log.publisher import Outgoing
from runfold.query.dead_letters import DeadLetters
from runfold.settings import Settings

MENDED = {"type": "user_message", "data": {"message": "mended"}}


@pytest.fixture(scope="module")
async def api(settings: Settings, stored: Projected) -> AsyncIterator[httpx.AsyncClient]:
    async with ready_api(settings) as client:
        yield client


async def buried(settings: Settings, stored: Projected, value: bytes) -> tuple[Run, str]:
    """A run with a dead letter of this value, and the letter's id."""
    run = await stored.runfold.open_run(agent_id="desk")
    await append_raw(stored.runfold, run, value)
    topic = stored.runfold.connection.topics.run(run.run_id, run.life.log_id)

    async def is_there() -> bool:
        page = await DeadLetters(settings.log()).list(run_id=run.run_id, limit=5)
        return [entry.id for entry in page.dead_letters] == [f"{topic}:1"]

    await run.publish(UserMessage(message="behind"))
    await until(is_there, what="the dead letter")
    return run, f"{topic}:1"


async def messages(run: Run) -> list[str]:
    return [event.data.message async for event in run.events() if isinstance(event.data, UserMessage)]


async def test_a_mended_event_is_published_once(
    api: httpx.AsyncClient, settings: Settings, stored: Projected
):
    run, letter_id = await buried(settings, stored, b"\xff no JSON")
    path = f"/v1/dead-letters/{quote(letter_id, safe='')}"

    shown = (await api.get(path)).json()
    assert (shown["run_id"], shown["offset"], shown["partition"]) == (run.run_id, 1, None)
    assert shown["reason"]
    assert (shown["value"], shown["value_base64"], shown["requeued"]) == (None, "/yBubyBKU09O", None)
    refused = await api.post(f"{path}/requeue", json={})
    assert refused.status_code == 422
    assert "still cannot be decoded" in refused.json()["detail"]
    code, printed = await command(settings, "dead-letters", "requeue", letter_id)
    assert (code != 0, "--event FILE" in printed) == (True, True)

    answers = [(await api.post(f"{path}/requeue", json={"event": MENDED})) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    first, second = (answer.json()["requeued"] for answer in answers)
    assert first == second
    assert (first["run_id"], first["offset"], first["by"]) == (run.run_id, 3, "local")
    assert await messages(run) == ["behind", "mended"]
    # Another process sees the trace, and a repetition there publishes nothing either.
    code, printed = await command(settings, "dead-letters", "requeue", letter_id)
    assert (code, "offset 3" in printed) == (0, True)
    assert await messages(run) == ["behind", "mended"]


HOSTILE: tuple[tuple[bytes | None, list[tuple[str, bytes | None]]], ...] = (
    (None, []),
    (b"", [("runfold-origin-topic", b"")]),
    (b"\xff:\xff", [("runfold-origin-topic", b"\xff-\xff")]),
    (b"a", [("runfold-origin-topic", b"TOPIC-" + b"9" * 5_000), ("runfold-origin-offset", b"1")]),
    (b"b", [("runfold-origin-topic", b"TOPIC-0"), ("runfold-origin-offset", b"9" * 5_000)]),
    (b"c", [("runfold-origin-topic", b"TOPIC-0"), ("runfold-record-bytes", b"9" * 5_000)]),
    (b"d", [("runfold-origin-topic", b"TOPIC-0"), ("runfold-reason", None), ("runfold-requeued", None)]),
    (b"e", [("runfold-origin-topic", None), ("runfold-requeued", b"[" * 10_000)]),
    (b"f", [("runfold-origin-topic", "TOPIC-٣".encode()), ("runfold-origin-offset", "²".encode())]),
)


@pytest.mark.parametrize("more", [[], [("runfold-record-bytes", b"7")]], ids=["whole", "a place alone"])
async def test_records_that_no_projector_wrote_hide_no_dead_letter(
    api: httpx.AsyncClient, settings: Settings, stored: Projected, more: list[tuple[str, bytes]]
):
    connection = stored.runfold.connection
    topics, publisher = connection.topics, connection.publisher
    of_sessions = topics.sessions.encode()
    for key, headers in HOSTILE:
        named = [(name, value and value.replace(b"TOPIC", of_sessions)) for name, value in headers]
        letter = Outgoing(key, b"{}", [("x", None), *named, *more])
        await publisher.wait(await publisher.send(topics.dead_letters, letter, partition=0))
    _, letter_id = await buried(settings, stored, b"no event")

    listed = await api.get("/v1/dead-letters", params={"limit": 100})

    assert listed.status_code == 200, listed.text
    ids = [each["id"] for each in listed.json()["dead_letters"]]
    assert letter_id in ids
    for each in filter(None, ids):
        shown = await api.get(f"/v1/dead-letters/{quote(each, safe='')}")
        assert shown.status_code == 200, (each, shown.text)


async def test_reading_a_letter_closes_what_it_reads_from(settings: Settings, stored: Projected):
    """A generator that is left open makes a command print an error of asyncio when it ends."""
    _, letter_id = await buried(settings, stored, b"no event to show")
    left = []
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(finalizer=left.append)
    try:
        letter = await DeadLetters(settings.log()).get(letter_id, sealing=None)
    finally:
        sys.set_asyncgen_hooks(*hooks)

    assert letter.value == "no event to show"
    assert [each for each in left if each.__qualname__.startswith("DeadLetters.")] == []


async def test_lists_are_filtered_and_paged(api: httpx.AsyncClient, settings: Settings, stored: Projected):
    letters = [(await buried(settings, stored, f"no event {number}".encode()))[1] for number in range(3)]
    await api.post(f"/v1/dead-letters/{quote(letters[1], safe='')}/requeue", json={"event": MENDED})

    async def listed(**params: object) -> list[str]:
        page = (await api.get("/v1/dead-letters", params={"limit": 1000, **params})).json()
        return [entry["id"] for entry in page["dead_letters"] if entry["id"] in letters]

    assert await listed() == letters[::-1]
    assert await listed(requeued="true") == [letters[1]]
    assert await listed(requeued="false") == [letters[2], letters[0]]
    first = (await api.get("/v1/dead-letters", params={"limit": 2})).json()
    rest = (await api.get("/v1/dead-letters", params={"cursor": first["next_cursor"]})).json()
    assert [entry["id"] for entry in (*first["dead_letters"], *rest["dead_letters"])][:3] == letters[::-1]
    assert (await api.get("/v1/dead-letters", params={"cursor": "x"})).status_code == 422
    assert (await api.get("/v1/dead-letters/none")).status_code == 404
    assert (await api.post("/v1/dead-letters/none/requeue", json={})).status_code == 404


async def test_the_commands_list_and_show(settings: Settings, stored: Projected, tmp_path):
    run, letter_id = await buried(settings, stored, b'{"type": "user_message", "data": {"message": "hi"}}')

    code, printed = await command(settings, "dead-letters", "list", "--run", run.run_id, "--json")
    assert (code, json.loads(printed)["id"]) == (0, letter_id)
    code, printed = await command(settings, "dead-letters", "show", letter_id)
    assert code == 0
    assert '{"type": "user_message", "data": {"message": "hi"}}' in printed
    await run.complete()
    ending = tmp_path / "ending.json"
    ending.write_text(json.dumps({"type": "run_completed", "data": {}}))
    code, _ = await command(settings, "dead-letters", "requeue", letter_id, "--event", str(ending))
    assert code == 1  # the run has ended
    late = tmp_path / "late.json"
    late.write_text(json.dumps(MENDED))
    code, printed = await command(settings, "dead-letters", "requeue", letter_id, "--event", str(late))
    assert code == 0
    assert await messages(run) == ["behind", "mended"]
    code, printed = await command(settings, "dead-letters", "show", letter_id)
    assert f"of run {run.run_id}" in printed
