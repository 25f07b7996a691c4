"""Answers whose length nobody knows beforehand: sent whole if they turn out small, else as a
stream.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from starlette.responses import Response, StreamingResponse
from starlette.types import Send

_WHOLE_BYTES_MAX = 2 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024

JSON = "application/json"


class Stream(StreamingResponse):
    """A stream that closes its source when it ends, also when the client has gone."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], *, media_type: str) -> None:
        super().__init__(chunks, media_type=media_type, headers={"Cache-Control": "no-store"})
        self._chunks = chunks

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._chunks):
            await super().stream_response(send)


async def answer(chunks: AsyncIterator[bytes], *, media_type: str = JSON) -> Response:
    """The answer made of `chunks`. What fails in its first 4 MB fails before anything is sent, with
    its proper status; what fails later breaks the stream off, which no client takes for the end.
    """
    begun: list[bytes] = []
    size = 0
    async for chunk in chunks:
        begun.append(chunk)
        size += len(chunk)
        if size > _WHOLE_BYTES_MAX:
            return Stream(_collected(begun, chunks), media_type=media_type)
    return Response(b"".join(begun), media_type=media_type, headers={"Cache-Control": "no-store"})


async def _collected(begun: list[bytes], rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """In chunks that are worth a write."""
    waiting, size = begun, _CHUNK_BYTES
    async for chunk in rest:
        waiting.append(chunk)
        size += len(chunk)
        if size >= _CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)
