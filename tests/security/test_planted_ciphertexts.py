"""A user who has copies of the ciphertexts of another user, and may publish, reads none of them: on
real servers, over HTTP and as a producer without the key.
"""

import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
from tests.processes import until
from tests.security.test_encryption import MARK, client, kafka_bytes, produced, runfold, secret, settings

from runfold import Memory, Runfold
from runfold.settings import Settings
from runfold_schemas.codec import new_data
from runfold_schemas.memories import memory_key
from runfold_schemas.runs import RunLabeled
from runfold_schemas.sessions import StateChanged

__all__ = ["client", "runfold", "settings"]


def ciphertexts(records: list[tuple[str, bytes]], pattern: str) -> Iterator[str]:
    for _, text in records:
        for match in re.finditer(pattern.encode() + rb'"(sealed:v1:[^"]+)"', text):
            yield match[1].decode()


async def test_ciphertexts_of_another_user_are_shown_as_they_are(
    settings: Settings, client: httpx.AsyncClient, runfold: Runfold
) -> None:
    bank = f"bank-{uuid4().hex[:8]}"
    await runfold.memories.create_bank(bank)
    memory = await runfold.memories.create(bank, Memory(fact=secret("ill"), scope={"user": "alice"}))
    hers = await runfold.sessions.create(
        app="desk", user="alice", state={"card": secret("card"), "user:pin": secret("pin")}
    )
    run = await runfold.open_run(agent_id="desk", labels={"diag": secret("diag")})
    records = await kafka_bytes(settings)
    card, pin, diag = (next(ciphertexts(records, f'"{key}":')) for key in ("card", "user:pin", "diag"))
    fact = next(ciphertexts([each for each in records if each[0].endswith(".memories")], '"sealed":'))
    key = memory_key(bank, memory.memory_id)
    planted = {key: fact, "card": card, "label:diag": diag, "user:pin": pin, "app:pin": pin}

    created = await client.post("/v1/sessions", json={"app": "desk", "user": "bob"})
    assert created.status_code == 201, created.text
    his = created.json()["session_id"]
    appended = await client.post(
        f"/v1/sessions/{his}/events", json={"type": "state_changed", "data": {}, "state_delta": planted}
    )
    assert appended.status_code in (200, 201), appended.text
    opened = await client.post(
        "/v1/runs", json={"agent_id": "desk", "labels": {"other": "x", "diag": diag[:512]}}
    )

    async def shown() -> Any:
        answer = await client.get(f"/v1/sessions/{his}")
        assert answer.status_code == 200, answer.text
        assert MARK not in answer.text
        return answer.json()

    # Before and after the projector has stored it.
    assert (await shown())["state"] == planted
    listed = await client.get("/v1/sessions", params={"user": "bob"})
    assert MARK not in listed.text
    assert (await runfold.sessions.view(his)).state == planted
    assert MARK not in (await client.get(f"/v1/runs/{opened.json()['run_id']}")).text

    # The same without the second seal.
    own = await runfold.open_run(agent_id="desk")
    await produced(settings, own, new_data(RunLabeled, labels={"diag": diag, "card": card}))
    end = await produced(settings, own, new_data(StateChanged), state_delta=planted)
    session_run = await runfold.get_run((await runfold.sessions.view(his)).record.run_id)
    await produced(settings, session_run, new_data(StateChanged), state_delta={**planted, "raw": fact})

    async def is_stored() -> bool:
        answer = await client.get(f"/v1/runs/{own.run_id}", params={"min_offset": end})
        assert MARK not in answer.text
        return bool(answer.json()["labels"] == {"diag": diag, "card": card})

    await until(is_stored, what="the labels of the run")

    async def has_raw() -> bool:
        return "raw" in (await shown())["state"]

    await until(has_raw, what="the state of the session")
    assert (await shown())["state"] == {**planted, "raw": fact}

    # Their owner reads them all.
    assert (await client.get(f"/v1/sessions/{hers.session_id}")).json()["state"]["card"] == secret("card")
    assert (await client.get(f"/v1/runs/{run.run_id}")).json()["labels"] == {"diag": secret("diag")}
