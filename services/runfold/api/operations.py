"""The route that says how the installation works: `GET /v1/operations`."""

from collections.abc import Callable
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from runfold.documents.operations import OperationsDocument
from runfold.http.bodies import JSON
from runfold.http.problems import problem_responses
from runfold.query.operations import OperationsReader

_PROBLEMS: Final = {422: "A parameter is wrong.", 503: "MongoDB does not answer. Retry."}


def build_operations_router(operations: Callable[[], OperationsReader]) -> APIRouter:
    """The route. `operations` returns the reader of the request's tenant."""
    router = APIRouter(prefix="/v1", tags=["operations"])

    @router.get(
        "/operations",
        summary="How the installation works",
        response_model=OperationsDocument,
        responses=problem_responses(_PROBLEMS, 422),
    )
    async def read_operations() -> Response:
        """Read which projectors work, how far they are behind, what is stuck or set aside, and the
        last rebuild and verify. Kafka or a projector may be away.
        """
        document = await operations().read()
        return Response(document.model_dump_json(by_alias=True), media_type=JSON)

    return router
