"""The guard of the event loop, in processes of their own."""

import asyncio
import subprocess
import sys

from runfold.projector.blocked import LoopGuard

PROGRAM = """
import asyncio, time
from runfold.projector import blocked

blocked._LOOK_SECONDS = 0.1

def fold(seconds):
    while time.monotonic() < seconds:
        try:
            while time.monotonic() < seconds:
                pass
        except blocked.BlockedError as error:
            print(error)
            if {is_interruptible}:
                return

async def main():
    guarding = asyncio.create_task(blocked.LoopGuard().work())
    for _ in range(5):
        await asyncio.sleep(0.1)
        fold(time.monotonic() + {seconds})
    guarding.cancel()
    await asyncio.wait([guarding])

asyncio.run(main())
"""


def run(seconds: float, *, is_interruptible: bool = True) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(seconds=seconds, is_interruptible=is_interruptible)
    return subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )


def test_a_blocked_loop_is_named_with_its_stack_and_interrupted():
    ended = run(seconds=10)

    assert ended.returncode == 0
    assert "stuck: the event loop is blocked" in ended.stderr
    assert "in fold" in ended.stderr
    assert ended.stdout.startswith("it blocked the event loop")


def test_a_process_ends_if_nothing_interrupts_its_loop():
    assert run(seconds=50, is_interruptible=False).returncode == 1


def test_a_loop_that_turns_again_goes_on():
    assert run(seconds=0.02).returncode == 0


async def test_the_guard_stops_with_its_task():
    guarding = asyncio.create_task(LoopGuard().work())
    await asyncio.sleep(0)
    guarding.cancel()

    await asyncio.wait([guarding])

    assert guarding.cancelled()
