"""Suspected runs are examined, a few at the same time, and each is watched."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from runfold.projector.stuck import Watch
from runfold.projector.suspects import Suspect, Suspects


class Examiner:
    """Examines each run until it is let go."""

    def __init__(self, suspects: Suspects) -> None:
        self.begun: list[str] = []
        self._suspects = suspects
        self._let_go: dict[str, asyncio.Event] = {}

    async def examine(self, suspect: Suspect) -> None:
        self.begun.append(suspect.run_id)
        self._let_go[suspect.run_id] = asyncio.Event()
        await self._let_go[suspect.run_id].wait()
        self._suspects.remove(suspect.run_id)

    async def let_go(self, run_id: str) -> None:
        self._let_go[run_id].set()
        await turns()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def examining(*run_ids: str) -> AsyncIterator[tuple[Suspects, Examiner]]:
    suspects = Suspects()
    examiner = Examiner(suspects)
    for run_id in run_ids:
        suspects.add(Suspect(run_id, f"log-{run_id}"))
    task = asyncio.create_task(suspects.examine(examiner.examine))
    await turns()
    try:
        yield suspects, examiner
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_run_whose_examination_hangs_does_not_stop_the_others():
    async with examining("hangs", *map(str, range(10))) as (suspects, examiner):
        for run_id in map(str, range(10)):
            await examiner.let_go(run_id)

        assert examiner.begun == ["hangs", *map(str, range(10))]
        assert "hangs" in suspects
        assert "9" not in suspects


async def test_a_run_is_examined_once_at_a_time_and_again_if_it_is_suspected_again():
    async with examining("run") as (suspects, examiner):
        suspects.add(Suspect("run", "log-run"))
        await turns()
        assert examiner.begun == ["run"]
        await examiner.let_go("run")
        suspects.add(Suspect("run", "log-run"))
        await turns()

        assert examiner.begun == ["run", "run"]


async def test_only_runs_that_go_on_are_no_longer_stuck(caplog: pytest.LogCaptureFixture):
    async with examining("moving", "aside") as (suspects, _):
        watch = Watch("examination", suspects.waiting, "not examined", given_up=suspects.given_up)
        watch.look(0)
        watch.look(7)
        suspects.remove("aside", goes_on=False)
        suspects.remove("moving")
        watch.look(8)

    lines = [line for line in caplog.messages if "stuck: " in line]
    assert lines == ["stuck: not examined: aside, moving", "no longer stuck: not examined: moving"]


async def test_runs_without_progress_are_named_and_others_are_not():
    async with examining(*"abcde") as (suspects, examiner):
        watch = Watch("examination", suspects.waiting, "not examined")
        watch.look(0)
        suspects.note_progress("a")
        watch.look(7)
        assert watch.reason == "not examined: b, c, d, e"

        await examiner.let_go("b")  # now `e` has its turn
        watch.look(8)
        assert watch.reason == "not examined: c, d"
