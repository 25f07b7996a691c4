"""The route of blobs."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Annotated, Final

from fastapi import APIRouter, Path
from starlette.responses import Response

from runfold.blobs.log_blobs import NO_STORE
from runfold.http.answers import Stream
from runfold.http.problems import Responses
from runfold.query.parameters import RunId
from runfold.query.reading import Reading
from runfold_schemas.errors import BlobNotFoundError

_SIGNATURES: Final = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (4, b"ftyp", "video/mp4"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"),
)

_UNKNOWN: Final = "application/octet-stream"

Sha256Path = Annotated[
    str,
    Path(
        pattern="^[0-9a-f]{64}$",
        description="The SHA-256 digest in the blob's URL.",
        examples=["0" * 64],
    ),
]


def add_blobs(routes: APIRouter, reading: Callable[[], Reading], *, problems: Responses) -> None:
    """Adds the route of single blobs."""

    @routes.get(
        "/runs/{run_id}/blobs/{sha256}",
        tags=["runs"],
        summary="Read a blob",
        response_class=Response,
        responses={**problems, 200: {"description": "The bytes.", "content": {_UNKNOWN: {}}}},
    )
    async def read_blob(*, run_id: RunId, sha256: Sha256Path) -> Response:
        """Read the bytes that a `blob:` URL in an event or a message of the run refers to. If the
        stored bytes have another digest, the answer breaks off.
        """
        history, store = await reading().runs.history(run_id), reading().blobs.store
        if store is None:
            raise BlobNotFoundError(sha256, reason=NO_STORE)
        blob = await store.open(history.log_id, sha256)
        beginning = await anext(blob.chunks)
        response = Stream(_chunks(beginning, blob.chunks), media_type=media_type_of(beginning))
        # Content of users is never a page of the API's own origin.
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Content-Disposition"] = "attachment"
        response.headers["Content-Length"] = str(blob.size)
        return response


def media_type_of(beginning: bytes) -> str:
    """The media type that the first bytes show. Types that a browser would run are unknown here."""
    for offset, signature, media_type in _SIGNATURES:
        if beginning.startswith(signature, offset):
            return media_type
    return _UNKNOWN


async def _chunks(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    yield beginning
    async for chunk in rest:
        yield chunk
