"""The revisions of memories over HTTP: what each was after every change.

    GET {memory}/revisions       list them, the newest first, by their labels
    GET {revision}               read one

Those of a deleted memory are there for 48 hours.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runfold.client.memories import Memories
from runfold.vertex.app import RouteGroup
from runfold.vertex.engines import bank_id
from runfold.vertex.filters import Filter, Kind, Path, equalities, matches, parse_filter
from runfold.vertex.memories import memory_id
from runfold.vertex.memory_documents import REVISIONS, RevisionMessage
from runfold.vertex.paging import page, paging
from runfold.vertex.requests import answer, name_of, parameter
from runfold_projections.memory import Revision

_FILTERED: Final[Mapping[str, Kind]] = {
    "labels": "map",
    "fact": "text",
    "create_time": "time",
    "expire_time": "time",
}


def revision_routes(memories: Callable[[], Memories]) -> RouteGroup:
    """`memories` gives what the routes speak to, or raises while there is no connection."""

    async def list_revisions(request: Request) -> Response:
        memory, asked = name_of(request), paging(request)
        wanted = parse_filter(parameter(request, "filter"), _FILTERED)
        bank, labels = bank_id(memory.engine_id), _labels(wanted)

        async def fetch(limit: int, cursor: str | None) -> tuple[Sequence[Revision], str | None]:
            id_ = memory_id(memory)
            return await memories().revisions(bank, id_, labels=labels, limit=limit, cursor=cursor)

        found, token = await page(fetch, partial(_is_wanted, wanted), asked)
        shown = [RevisionMessage.of(revision, memory).json_form() for revision in found]
        return answer({"memoryRevisions": shown, **({"nextPageToken": token} if token else {})})

    async def get_revision(request: Request) -> Response:
        name = name_of(request)
        bank, memory = bank_id(name.engine_id), memory_id(name)
        revision = await memories().revision(bank, memory, name.id_in(REVISIONS) or "")
        return answer(RevisionMessage.of(revision, name.parent))

    many = "/reasoningEngines/{engine}/memories/{memory}/revisions"
    return RouteGroup(
        [
            Route(many, list_revisions, methods=["GET"]),
            Route(f"{many}/{{revision}}", get_revision, methods=["GET"]),
        ]
    )


def _labels(wanted: Filter) -> dict[str, str]:
    """What of the filter the verb can look for."""
    same = equalities(wanted)
    return {path[1]: str(value) for path, value in same.items() if path[0] == "labels" and len(path) > 1}


def _is_wanted(wanted: Filter, revision: Revision) -> bool:
    return matches(wanted, partial(_field_of, revision))


def _field_of(revision: Revision, path: Path) -> Any:
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
