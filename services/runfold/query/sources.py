"""Says in an answer where it comes from."""

from typing import Final

from starlette.responses import Response

from runfold.query.history import Source

SOURCE_HEADER: Final = "Runfold-Source"
"""The header that names the source of an answer: `snapshot` or `log`."""


def with_source(source: Source, response: Response) -> Response:
    response.headers[SOURCE_HEADER] = source
    return response
