"""The routes of revisions: the states of a memory after each change.

    GET {memory}/revisions       list them, the newest first, filtered by labels
    GET {revision}               read one

The revisions of a deleted memory can be read for 48 hours.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.client.memory import MemoryVerbs
from runfold.vertex.app import RouteGroup
from runfold.vertex.engines import bank_id
from runfold.vertex.filters import Filter, Kind, Path, label_equalities, matches, parse_filter
from runfold.vertex.memories import memory_id
from runfold.vertex.memory_documents import REVISIONS, RevisionMessage
from runfold.vertex.paging import fetch_page, requested_page
from runfold.vertex.requests import json_page, json_response, name_of, query_parameter
from runfold_projections.memory import Revision

_FILTER_FIELDS: Final[Mapping[str, Kind]] = {
    "labels": "map",
    "fact": "text",
    "create_time": "time",
    "expire_time": "time",
}


def revision_routes(memories: Callable[[], MemoryVerbs]) -> RouteGroup:
    """`memories` returns the client that the routes use, or raises while there is no connection."""

    async def list_revisions(request: Request) -> Response:
        memory, page = name_of(request), requested_page(request)
        filter_ = parse_filter(query_parameter(request, "filter"), _FILTER_FIELDS)
        bank, labels = bank_id(memory.engine_id), label_equalities(filter_)

        async def fetch(limit: int, cursor: str | None) -> tuple[Sequence[Revision], str | None]:
            id_ = memory_id(memory)
            return await memories().revisions(bank, id_, labels=labels, limit=limit, cursor=cursor)

        revisions, token = await fetch_page(fetch, partial(_matches, filter_), page)
        items = [RevisionMessage.of(revision, memory).json_form() for revision in revisions]
        return json_page("memoryRevisions", items, token)

    async def get_revision(request: Request) -> Response:
        name = name_of(request)
        bank, memory = bank_id(name.engine_id), memory_id(name)
        revision = await memories().revision(bank, memory, name.id_in(REVISIONS) or "")
        return json_response(RevisionMessage.of(revision, name.parent))

    collection = "/reasoningEngines/{engine}/memories/{memory}/revisions"
    return RouteGroup(
        [
            Route(collection, list_revisions, methods=["GET"]),
            Route(f"{collection}/{{revision}}", get_revision, methods=["GET"]),
        ]
    )


def _matches(filter_: Filter, revision: Revision) -> bool:
    return matches(filter_, partial(_filter_value, revision))


def _filter_value(revision: Revision, path: Path) -> Any:
    match path:
        case ("labels",):
            return revision.labels
        case ("labels", key):
            return revision.labels.get(key)
        case ("fact",):
            return revision.fact
        case ("create_time",):
            return revision.created_at
        case _:
            return revision.expires_at
