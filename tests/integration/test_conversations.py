"""A hundred real conversations, published by several processes at once, come back message for
message.
"""

import asyncio
import sys
from typing import Any

import httpx
from tests.conversations import chat_of, conversations, plain
from tests.processes import until
from tests.querying import projected, query

from runfold.projector.rebuild import rebuild
from runfold.settings import Settings
from runfold_schemas.messages import Message

PROCESSES = 3


async def test_real_conversations_come_back_from_query_from_the_log_and_after_a_rebuild(
    kafka: str, mongo: str, prefix: str, database: str
) -> None:
    settings = Settings(
        kafka=kafka,
        mongo=mongo,
        prefix=prefix,
        database=database,
        retire_seconds=0.5,
        wait_timeout_seconds=20,
    )
    recorded = {str(one["id"]): [plain(message) for message in one["messages"]] for one in conversations()}
    async with projected(settings), query(settings) as client:
        await asyncio.gather(*(publish(kafka, prefix, number) for number in range(PROCESSES)))

        await until(lambda: are_completed(client, recorded), what="the end of all conversations")
        assert await read(client, recorded, source="snapshot") == recorded
        assert await read(client, recorded, source="log") == recorded

        before = (await client.get("/v1/sessions/conversations/ledger")).json()
        await rebuild(settings, report=lambda _: None, switched=lambda: None)
        # The worker above stays with the edition that is gone; what is read now is what the rebuild
        # wrote.
        await until(lambda: are_completed(client, recorded), what="the rebuilt runs")
        assert await read(client, recorded, source="snapshot") == recorded
        assert (await client.get("/v1/sessions/conversations/ledger")).json() == before


async def publish(kafka: str, prefix: str, number: int) -> None:
    arguments = (kafka, prefix, str(number), str(PROCESSES))
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.conversations", *arguments)
    assert await process.wait() == 0


async def read(client: httpx.AsyncClient, recorded: dict[str, Any], *, source: str) -> dict[str, Any]:
    async def ledger(run_id: str) -> list[Any]:
        answer = await client.get(f"/v1/runs/{run_id}/ledger", params={"source": source})
        return chat_of([Message.model_validate(message) for message in answer.json()["messages"]])

    return dict(zip(recorded, await asyncio.gather(*map(ledger, recorded)), strict=True))


async def are_completed(client: httpx.AsyncClient, recorded: dict[str, Any]) -> bool:
    answer = await client.get("/v1/runs", params={"status": "completed", "limit": 200})
    return answer.status_code == 200 and len(answer.json()["runs"]) == len(recorded)
