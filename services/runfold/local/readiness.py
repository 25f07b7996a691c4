"""Decides when a started service can be used: by a line in its log, or by an answer to a GET."""

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from .service import Ready, Service

POLL_SECONDS = 0.02
ANSWER_SECONDS = 2


def ready_line(text: str) -> Ready:
    """Ready when the service has logged `text` since its start."""

    async def wait(service: Service) -> None:
        position = 0
        # Only the new part is read each time, because a long start may log much.
        while text.encode() not in (logged := service.logged_from(position)):
            position += max(0, len(logged) - len(text))
            await asyncio.sleep(POLL_SECONDS)

    return wait


def ready_url(url: str) -> Ready:
    """Ready when the service answers a GET of `url` with a status below 300."""

    async def wait(_: Service) -> None:
        await _until(lambda: _answers(url))

    return wait


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 - another process sets it, and has no Event of ours
        await asyncio.sleep(POLL_SECONDS)


async def _answers(url: str) -> bool:
    # HTTP by hand, because the services' dependencies include no client, and urllib would block and
    # use the proxy.
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
            try:
                writer.write(f"GET {parts.path or '/'} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
                status = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return len(status) > 1 and status[1][:1] in (b"1", b"2")
