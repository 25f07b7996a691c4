"""A hundred real conversations, published by several processes at once, come back message for
message.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conversations import chat_of, plain
from tests.processes import until
from tests.querying import projected, query

from runfold.projector.rebuild import rebuild
from runfold.settings import Settings
from runfold_schemas.messages import Message

FILE = Path(
    os.environ.get("RUNFOLD_CONVERSATIONS")
    or Path(__file__).resolve().parents[3] / "shared" / "data" / "conversations.jsonl"
)
PROCESSES = 3


def generated() -> list[dict[str, Any]]:
    """Conversations of the same kind: repeated ids, spaced arguments, empty results."""
    return [
        {
            "id": str(number),
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": "Höflich, bitte 🙂"},
                *(
                    message
                    for step in range(3)
                    for message in (
                        {
                            "role": "assistant",
                            "content": None,
                            "tool_calls": [_call(f"call_{step % 2}", '{"n":  1}')],
                        },
                        {"role": "tool", "tool_call_id": f"call_{step % 2}", "name": "look", "content": ""},
                    )
                ),
                {"role": "assistant", "content": f"Done {number}."},
            ],
        }
        for number in range(20)
    ]


def _call(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    if FILE.is_file():
        return FILE
    print(f"{FILE} is not there: generated conversations take its place")
    made = tmp_path / "conversations.jsonl"
    made.write_text("\n".join(map(json.dumps, generated())))
    return made


async def test_real_conversations_come_back_from_query_from_the_log_and_after_a_rebuild(
    kafka: str, mongo: str, prefix: str, database: str, file: Path
) -> None:
    settings = Settings(kafka=kafka, mongo=mongo, prefix=prefix, database=database, retire_seconds=0.5)
    recorded = {
        str(one["id"]): [plain(message) for message in one["messages"]]
        for one in map(json.loads, file.read_text().splitlines())
    }
    async with projected(settings), query(settings) as client:
        await asyncio.gather(*(publish(kafka, prefix, file, number) for number in range(PROCESSES)))

        async def all_completed() -> bool:
            answer = (await client.get("/v1/runs", params={"status": "completed", "limit": 200})).json()
            return len(answer["runs"]) == len(recorded)

        await until(all_completed, what="the end of all conversations")
        assert await read(client, recorded, source="snapshot") == recorded
        assert await read(client, recorded, source="log") == recorded

        before = (await client.get("/v1/sessions/conversations/ledger")).json()
        await rebuild(settings, report=lambda _: None, switched=lambda: None)
        # The worker above stays with the edition that is gone; what is read now is what the rebuild
        # wrote.
        await until(lambda: switched(client, recorded), what="the rebuilt runs")
        assert await read(client, recorded, source="snapshot") == recorded
        assert (await client.get("/v1/sessions/conversations/ledger")).json() == before


async def publish(kafka: str, prefix: str, file: Path, number: int) -> None:
    arguments = (kafka, prefix, str(file), str(number), str(PROCESSES))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.conversations", *arguments)
    assert await process.wait() == 0


async def read(client: httpx.AsyncClient, recorded: dict[str, Any], *, source: str) -> dict[str, Any]:
    found = {}
    for run_id in recorded:
        answer = await client.get(f"/v1/runs/{run_id}/ledger", params={"source": source})
        found[run_id] = chat_of([Message.model_validate(message) for message in answer.json()["messages"]])
    return found


async def switched(client: httpx.AsyncClient, recorded: dict[str, Any]) -> bool:
    answer = await client.get("/v1/runs", params={"status": "completed", "limit": 200})
    return answer.status_code == 200 and len(answer.json()["runs"]) == len(recorded)
