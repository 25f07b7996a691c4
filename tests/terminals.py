"""Commands in a terminal."""

import asyncio
import os
import pty
from collections.abc import Mapping

from tests.forking import runfold_process


async def shown_in_a_terminal(*arguments: str, env: Mapping[str, str], seconds: float) -> str:
    """What `runfold` shows in a terminal. The command has to succeed within `seconds`."""
    here, there = pty.openpty()
    process = await runfold_process(*arguments, stdout=there, env=env)
    os.close(there)
    try:
        async with asyncio.timeout(seconds):
            shown, code = await asyncio.gather(asyncio.to_thread(_read, here), process.wait())
    finally:
        os.close(here)
    assert code == 0
    return shown.decode()


def _read(terminal: int) -> bytes:
    """All that is shown. A single read may return a part of it, and the last one fails."""
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 10_000)
        except OSError:
            return shown
