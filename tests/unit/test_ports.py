"""The ports of servers that nobody gave a port to."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from runfold.local import free_port, ports

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_process_is_never_given_a_port_or_its_neighbour_twice() -> None:
    given = [free_port() for _ in range(100)]

    assert len({one for port in given for one in (port, port + 1)}) == 200


@pytest.mark.skipif(not OUTGOING.exists(), reason="only Linux says which ports connections take")
def test_no_outgoing_connection_takes_a_port_that_was_given() -> None:
    first_outgoing = int(OUTGOING.read_text().split()[0])

    assert all(free_port() + 1 < first_outgoing for _ in range(100))


def test_a_port_is_free_and_its_neighbour_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as servers:
        first, second, free = _scattered_ports()
        servers.enter_context(socket.create_server(("127.0.0.1", first)))
        servers.enter_context(socket.create_server(("127.0.0.1", second + 1)))
        tries = iter([first, second, free])
        monkeypatch.setattr(ports.SystemRandom, "randrange", lambda *_: next(tries))

        assert free_port() == free


def _scattered_ports() -> list[int]:
    """Three that are free and that `free_port` has not given, as it gives none twice."""
    given = [free_port() for _ in range(3)]
    ports._chosen.difference_update(one for port in given for one in (port, port + 1))
    return given
