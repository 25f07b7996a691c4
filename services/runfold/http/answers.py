"""Answers of unknown length: a small answer is sent whole, a large one as a stream."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from starlette.responses import Response, StreamingResponse
from starlette.types import Send

_WHOLE_BYTES_MAX = 2 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024

JSON = "application/json"


class Stream(StreamingResponse):
    """A stream that closes its source when it ends, also if the client disconnects."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], *, media_type: str) -> None:
        super().__init__(chunks, media_type=media_type, headers={"Cache-Control": "no-store"})
        self._chunks = chunks

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._chunks):
            await super().stream_response(send)


async def answer(chunks: AsyncIterator[bytes], *, media_type: str = JSON) -> Response:
    """The answer made of `chunks`. An error in the first 2 MB becomes a problem document, because
    nothing is sent yet. A later error breaks the stream off, and every client notices a stream
    without its end.
    """
    buffered: list[bytes] = []
    size = 0
    async for chunk in chunks:
        buffered.append(chunk)
        size += len(chunk)
        if size > _WHOLE_BYTES_MAX:
            return Stream(_join_chunks(buffered, chunks), media_type=media_type)
    return Response(b"".join(buffered), media_type=media_type, headers={"Cache-Control": "no-store"})


async def _join_chunks(buffered: list[bytes], rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """All chunks, joined to pieces of 256 KB, because each piece costs a write."""
    size = _CHUNK_BYTES
    async for chunk in rest:
        buffered.append(chunk)
        size += len(chunk)
        if size >= _CHUNK_BYTES:
            yield b"".join(buffered)
            buffered, size = [], 0
    yield b"".join(buffered)
