"""The demo, from its first event to the rebuilt run."""

import socket

import pytest

from runfold.cli import demo
from runfold.local import free_port


async def test_the_demo_rebuilds_its_run_though_another_program_takes_a_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as other:
        chosen = [other.getsockname()[1]]
        monkeypatch.setattr(demo, "free_port", lambda: chosen.pop() if chosen else free_port())

        await demo.demo()

    assert chosen == []
    assert "identical: record and ledger of all " in capsys.readouterr().out
