"""Chooses ports for servers that nobody gave a port to."""

import socket
from contextlib import suppress
from pathlib import Path
from random import SystemRandom

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_OUTGOING_DEFAULT = 32_768
_FIRST = 10_000

_chosen: set[int] = set()


def free_port(*, count: int = 2) -> int:
    """The first of so many free ports of the loopback interface in a row: the projector's health is
    one port further. A process is never given a port twice.

    Another program may still take the port before it is used. That is rare, because the ports lie
    below those that the system gives to outgoing connections and to programs that name none.
    """
    while True:
        port = SystemRandom().randrange(_FIRST, _end())
        ports = set(range(port, port + count))
        if not ports & _chosen and all(map(_is_free, ports)):
            _chosen.update(ports)
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
