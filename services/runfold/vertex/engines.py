"""Engines of Agent Engine over HTTP, each of them a bank of ours with the sessions of its id.

    POST   reasoningEngines      create one
    GET    reasoningEngines      list them, by filter
    GET    {engine}              read one
    PATCH  {engine}              name, description, labels, configuration of its memories
    DELETE {engine}              gone; by force with its memories and sessions

Engines have numbers for ids, as the product's: banks of other ids are there for our own verbs
alone.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.client.memories import Memories
from runfold.client.sessions import Sessions
from runfold.vertex.app import RouteGroup
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
from runfold.vertex.requests import json_response, name_of, query_parameter, read_message
from runfold.vertex.session_documents import belongs
from runfold_projections.memory import BankRecord
from runfold_schemas.errors import BankNotEmptyError, BankNotFoundError, SessionNotFoundError

_NUMBER: Final = re.compile(r"[0-9]{1,19}")

_AT_A_TIME: Final = 100


class BankEngines:
    """Which engines there are: the banks of ours whose ids are numbers."""

    def __init__(self, memories: Callable[[], Memories]) -> None:
        self._memories = memories

    async def check(self, engine_id: str) -> None:
        """Raises `BankNotFoundError`."""
        await self.bank(engine_id)

    async def bank(self, engine_id: str) -> BankRecord:
        """Raises `BankNotFoundError`."""
        return await self._memories().bank(bank_id(engine_id))


def bank_id(engine_id: str) -> str:
    """The bank that is the engine, which need not be there. Raises `BankNotFoundError` for what no
    engine is called.
    """
    if not _NUMBER.fullmatch(engine_id):
        raise BankNotFoundError(engine_id)
    return engine_id


def engine_routes(memories: Callable[[], Memories], sessions: Callable[[], Sessions]) -> RouteGroup:
    """Both give what the routes speak to, or raise while there is no connection."""
    handlers = _EngineHandlers(memories, sessions)
    one, many = "/reasoningEngines/{engine}", "/reasoningEngines"
    routes = [
        Route(many, handlers.create, methods=["POST"]),
        Route(many, handlers.list, methods=["GET"]),
        Route(one, handlers.get, methods=["GET"]),
        Route(one, handlers.update, methods=["PATCH"]),
        Route(one, handlers.delete, methods=["DELETE"]),
    ]
    return RouteGroup(
        routes,
        {
            "createReasoningEngine": handlers.written,
            "updateReasoningEngine": handlers.written,
            "deleteReasoningEngine": handlers.deleted,
        },
    )


class _EngineHandlers:
    """What the routes share, and what they do with it."""

    def __init__(self, memories: Callable[[], Memories], sessions: Callable[[], Sessions]) -> None:
        self._memories = memories
        self._sessions = sessions
        self._engines = BankEngines(memories)

    async def create(self, request: Request) -> Response:
        location, asked = name_of(request), await read_message(request, EngineInput)
        bank = await self._memories().create_bank(new_id(), asked.config())
        return finished_operation(
            location.child(ENGINES, bank.bank_id), "createReasoningEngine", EngineMessage.of(bank, location)
        )

    async def get(self, request: Request) -> Response:
        return json_response(await self.written(name_of(request), ()))

    async def written(self, name: Name, _: Sequence[str]) -> Message:
        return EngineMessage.of(await self._engines.bank(name.engine_id), name)

    async def list(self, request: Request) -> Response:
        """Engines that the filter holds of, the newest first."""
        location, asked = name_of(request), requested_page(request)
        wanted = parse_filter(query_parameter(request, "filter"), FILTER_FIELDS)
        found, token = await fetch_page(self._banks, partial(_is_wanted, wanted), asked)
        shown = [EngineMessage.of(bank, location).json_form() for bank in found]
        return json_response({"reasoningEngines": shown, **({"nextPageToken": token} if token else {})})

    async def update(self, request: Request) -> Response:
        name, asked = name_of(request), await read_message(request, EngineInput)
        before = await self._engines.bank(name.engine_id)
        changes = asked.changes(before.config, query_parameter(request, "updateMask"))
        bank = await self._memories().update_bank(before.bank_id, changes)
        return finished_operation(name, "updateReasoningEngine", EngineMessage.of(bank, name))

    async def delete(self, request: Request) -> Response:
        """With `force` in the query or in the body, also an engine that has something in it."""
        name, asked = name_of(request), await read_message(request, DeleteEngine)
        force = asked.force or query_parameter(request, "force") == "true"
        bank = await self._engines.bank(name.engine_id)
        await self._delete_sessions(name, force=force)
        await self._memories().delete_bank(bank.bank_id, force=force)
        return finished_operation(name, "deleteReasoningEngine", Empty())

    async def deleted(self, _: Name, __: Sequence[str]) -> Message:
        return Empty()

    async def _banks(self, limit: int, cursor: str | None) -> tuple[Sequence[BankRecord], str | None]:
        return await self._memories().banks(limit=limit, cursor=cursor)

    async def _delete_sessions(self, engine: Name, *, force: bool) -> None:
        """Raises `BankNotEmptyError` where there are any, and no `force`."""
        sessions, cursor = self._sessions(), None
        while True:
            found, cursor = await sessions.list(app=engine.engine_id, limit=_AT_A_TIME, cursor=cursor)
            for session in found:
                if not belongs(session, engine):
                    continue
                if not force:
                    raise BankNotEmptyError(engine.engine_id)
                try:
                    await sessions.delete(session.session_id)
                except SessionNotFoundError:
                    continue  # somebody else was faster
            if cursor is None:
                return


def _is_wanted(wanted: Filter, bank: BankRecord) -> bool:
    return bool(_NUMBER.fullmatch(bank.bank_id)) and matches(wanted, partial(filter_value, bank))
