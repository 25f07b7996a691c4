"""Chooses ports for servers that nobody gave a port to."""

import socket
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_OUTGOING_DEFAULT = 32_768
_FIRST = 10_000

_chosen: set[int] = set()


def free_port() -> int:
    """A free port of the loopback interface. The port after it is free too, for a server with two
    of them. A process is never given a port twice.

    Another program may still take the port before it is used. That is rare, because the port lies
    below those that the system gives to outgoing connections and to programs that name none.
    """
    while True:
        port = SystemRandom().randrange(_FIRST, _end())
        pair = {port, port + 1}
        if not pair & _chosen and all(map(_is_free, pair)):
            _chosen.update(pair)
            return port


def _end() -> int:
    """The first port that an outgoing connection may have, or the last of all where these leave no
    room.
    """
    first_outgoing = _FIRST_OUTGOING_DEFAULT
    with suppress(OSError):
        first_outgoing = int(_OUTGOING.read_text().split()[0])
    return first_outgoing - 1 if first_outgoing >= 2 * _FIRST else 65_535


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return True
    return False
