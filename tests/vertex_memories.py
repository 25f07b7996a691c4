"""Google's own clients of Memory Bank against a server of ours, each of whose calls can be
awaited.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from google.genai import errors
from tests.vertex_clients import TOKEN, called, called_for_all, client_of

ENGINES = "/v1beta1/projects/p/locations/l/reasoningEngines"
SCOPE = {"user_id": "ann"}

NOT_FOUND = (404, "NOT_FOUND")
INVALID = (400, "INVALID_ARGUMENT")
PRECONDITION = (400, "FAILED_PRECONDITION")


async def new_engine(url: str, **engine: Any) -> str:
    """The name of a new engine, made without any client."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answer = await http.post(ENGINES, json=engine)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["response"]["name"])


@dataclass
class Rememberer:
    """One of the clients, with an engine."""

    client: Any
    """Held as long as it is used: one that nobody holds closes its connections."""
    memories: Any
    engine: str

    async def create(
        self, fact: str = "Likes tea", scope: dict[str, str] | None = None, **config: Any
    ) -> Any:
        """The memory as the operation has it."""
        asked = {"name": self.engine, "fact": fact, "scope": scope or SCOPE, "config": config}
        return (await called(self.memories.create, **asked)).response

    async def get(self, name: str) -> Any:
        return await called(self.memories.get, name=name)

    async def list(self, **config: Any) -> Sequence[Any]:
        return await called_for_all(self.memories.list, name=self.engine, config=config)

    async def update(
        self, name: str, fact: str | None = None, scope: dict[str, str] | None = None, **config: Any
    ) -> Any:
        return await called(self.memories._update, name=name, fact=fact, scope=scope, config=config)

    async def delete(self, name: str) -> Any:
        return await called(self.memories.delete, name=name)

    async def rollback(self, name: str, revision: str) -> Any:
        return await called(self.memories.rollback, name=name, target_revision_id=revision)

    async def purge(self, **asked: Any) -> int:
        return int((await called(self.memories.purge, name=self.engine, **asked)).response.purge_count or 0)

    async def retrieve(self, scope: dict[str, str] | None = None, **asked: Any) -> Sequence[Any]:
        return await called_for_all(self.memories.retrieve, name=self.engine, scope=scope or SCOPE, **asked)

    async def pager(self, scope: dict[str, str] | None = None, **asked: Any) -> Any:
        return await called(self.memories.retrieve, name=self.engine, scope=scope or SCOPE, **asked)

    async def nearest(self, query: str, top_k: int | None = None, **asked: Any) -> Sequence[Any]:
        params = {"search_query": query, **({"top_k": top_k} if top_k is not None else {})}
        return await self.retrieve(similarity_search_params=params, **asked)

    async def generate(self, **asked: Any) -> Any:
        """What the operation answers."""
        return (await called(self.memories.generate, name=self.engine, **asked)).response

    async def revisions(self, name: str, **config: Any) -> Sequence[Any]:
        return await called_for_all(self.memories.revisions.list, name=name, config=config)

    async def revision(self, name: str) -> Any:
        return await called(self.memories.revisions.get, name=name)

    async def facts(self, name: str) -> Sequence[str]:
        """Of all revisions, the newest first."""
        return [one.fact or "" for one in await self.revisions(name)]


def rememberer(
    url: str, engine: str, way: str = "agentplatform v1beta1 async", given: dict[str, Any] = TOKEN
) -> Rememberer:
    """One by one of `WAYS`."""
    client = client_of(url, way, given)
    of_engines = client.agent_engines if way.startswith("vertexai") else client.memory_banks
    return Rememberer(client, of_engines.memories, engine)


async def refusal(call: Any) -> tuple[int, str]:
    """What a client is told that is refused."""
    with pytest.raises(errors.ClientError) as raised:
        await call
    assert raised.value.message
    return raised.value.code, raised.value.status
