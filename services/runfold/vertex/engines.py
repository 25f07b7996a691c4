"""The routes of engines. An engine is a bank, together with the sessions whose app has its id.

    POST   reasoningEngines      create one
    GET    reasoningEngines      list them, by filter
    GET    {engine}              read one
    PATCH  {engine}              change name, description, labels, and the memories' configuration
    DELETE {engine}              delete it; with force, its memories and sessions too

Ids of engines are numbers, as in Google's product. Banks with other ids exist only in Runfold's own
API.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from runfold.client.memory import MemoryVerbs
from runfold.client.session import SessionVerbs
from runfold.vertex.app import RouteGroup, resource_routes
from runfold.vertex.engine_documents import (
    FILTER_FIELDS,
    DeleteEngine,
    EngineInput,
    EngineMessage,
    filter_value,
)
from runfold.vertex.filters import Filter, matches, parse_filter
from runfold.vertex.messages import Empty, Message
from runfold.vertex.names import ENGINES, Name, new_id
from runfold.vertex.operations import finished_operation
from runfold.vertex.paging import fetch_page, requested_page
from runfold.vertex.requests import json_page, json_response, name_of, query_parameter, read_message
from runfold.vertex.session_documents import belongs
from runfold_projections.memory import BankRecord
from runfold_schemas.errors import BankNotEmptyError, BankNotFoundError, SessionNotFoundError

_NUMBER: Final = re.compile(r"[0-9]{1,19}")

_AT_A_TIME: Final = 100


class BankEngines:
    """The engines: the banks whose ids are numbers."""

    def __init__(self, memories: Callable[[], MemoryVerbs]) -> None:
        self._memories = memories

    async def check(self, engine_id: str) -> None:
        """Raises `BankNotFoundError` if the engine does not exist."""
        await self.bank(engine_id)

    async def bank(self, engine_id: str) -> BankRecord:
        """The bank of the engine. Raises `BankNotFoundError`."""
        return await self._memories().bank(bank_id(engine_id))


def bank_id(engine_id: str) -> str:
    """The id of the engine's bank, which need not exist. Raises `BankNotFoundError` if the id
    cannot be an engine's.
    """
    if not _NUMBER.fullmatch(engine_id):
        raise BankNotFoundError(engine_id)
    return engine_id


def engine_routes(memories: Callable[[], MemoryVerbs], sessions: Callable[[], SessionVerbs]) -> RouteGroup:
    """Both callables return clients that the routes use, or raise while there is no connection."""
    handlers = _EngineHandlers(memories, sessions)
    return RouteGroup(
        resource_routes("/reasoningEngines", "engine", handlers),
        {
            "createReasoningEngine": handlers.read_engine,
            "updateReasoningEngine": handlers.read_engine,
            "deleteReasoningEngine": handlers.read_nothing,
        },
    )


class _EngineHandlers:
    """The handlers of the routes."""

    def __init__(self, memories: Callable[[], MemoryVerbs], sessions: Callable[[], SessionVerbs]) -> None:
        self._memories = memories
        self._sessions = sessions
        self._engines = BankEngines(memories)

    async def create(self, request: Request) -> Response:
        location, engine = name_of(request), await read_message(request, EngineInput)
        bank = await self._memories().create_bank(new_id(), engine.config())
        return finished_operation(
            location.child(ENGINES, bank.bank_id), "createReasoningEngine", EngineMessage.of(bank, location)
        )

    async def get(self, request: Request) -> Response:
        return json_response(await self.read_engine(name_of(request), ()))

    async def read_engine(self, name: Name, _: Sequence[str]) -> Message:
        return EngineMessage.of(await self._engines.bank(name.engine_id), name)

    async def list(self, request: Request) -> Response:
        """Lists the engines that the filter matches, the newest first."""
        location, page = name_of(request), requested_page(request)
        filter_ = parse_filter(query_parameter(request, "filter"), FILTER_FIELDS)
        banks, token = await fetch_page(self._banks, partial(_matches, filter_), page)
        items = [EngineMessage.of(bank, location).json_form() for bank in banks]
        return json_page("reasoningEngines", items, token)

    async def update(self, request: Request) -> Response:
        name, engine = name_of(request), await read_message(request, EngineInput)
        before = await self._engines.bank(name.engine_id)
        changes = engine.changes(before.config, query_parameter(request, "updateMask"))
        bank = await self._memories().update_bank(before.bank_id, changes)
        return finished_operation(name, "updateReasoningEngine", EngineMessage.of(bank, name))

    async def delete(self, request: Request) -> Response:
        """Deletes an engine. If it has memories or sessions, `force` is needed in the query or in
        the body.
        """
        name, message = name_of(request), await read_message(request, DeleteEngine)
        force = message.force or query_parameter(request, "force") == "true"
        bank = await self._engines.bank(name.engine_id)
        await self._delete_sessions(name, force=force)
        await self._memories().delete_bank(bank.bank_id, force=force)
        return finished_operation(name, "deleteReasoningEngine", Empty())

    async def read_nothing(self, _: Name, __: Sequence[str]) -> Message:
        return Empty()

    async def _banks(self, limit: int, cursor: str | None) -> tuple[Sequence[BankRecord], str | None]:
        return await self._memories().banks(limit=limit, cursor=cursor)

    async def _delete_sessions(self, engine: Name, *, force: bool) -> None:
        """Raises `BankNotEmptyError` if there are sessions, and `force` is not set."""
        sessions, cursor = self._sessions(), None
        while True:
            page, cursor = await sessions.list(app=engine.engine_id, limit=_AT_A_TIME, cursor=cursor)
            for session in page:
                if not belongs(session, engine):
                    continue
                if not force:
                    raise BankNotEmptyError(engine.engine_id)
                try:
                    await sessions.delete(session.session_id)
                except SessionNotFoundError:
                    continue  # another request has deleted it
            if cursor is None:
                return


def _matches(filter_: Filter, bank: BankRecord) -> bool:
    return bool(_NUMBER.fullmatch(bank.bank_id)) and matches(filter_, partial(filter_value, bank))
