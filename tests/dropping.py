"""A connection between client and server that loses an answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_READ_BYTES = 65_536


class Dropping:
    """Forwards bytes between clients and a server. While `is_armed`, the next answer is lost: the
    client's connection is closed once the server has answered.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.is_armed = False
        self.port = 0

    async def handle(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        sending = asyncio.create_task(_copy(client, to_server))
        with suppress(ConnectionError):
            while answer := await server.read(_READ_BYTES):
                if self.is_armed:
                    self.is_armed = False
                    break
                to_client.write(answer)
                await to_client.drain()
        to_client.close()
        to_server.close()
        await sending


@asynccontextmanager
async def dropping(port: int) -> AsyncIterator[Dropping]:
    """The connection to the server at this port of this machine."""
    between = Dropping(port)
    server = await asyncio.start_server(between.handle, "127.0.0.1", 0)
    between.port = server.sockets[0].getsockname()[1]
    try:
        yield between
    finally:
        server.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(_READ_BYTES):
            target.write(data)
            await target.drain()
    target.close()
