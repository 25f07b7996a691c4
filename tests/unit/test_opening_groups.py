"""Callers come in by groups: the next group begins when half of the group before has finished."""

import asyncio

import pytest
from tests.processes import DEADLINE_SECONDS

from runfold.log.opening_groups import OpeningGroups


class Callers:
    """Callers that stay in until they are released, and the largest number that was in at once."""

    def __init__(self, groups: OpeningGroups) -> None:
        self.groups = groups
        self.inside: list[int] = []
        self.release = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def call(self, count: int) -> None:
        first = len(self.tasks)
        self.tasks += [asyncio.create_task(self._stay(first + number)) for number in range(count)]
        await self.settle()

    async def finish(self, count: int) -> None:
        for number in self.inside[:count]:
            self.tasks[number].cancel()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _stay(self, number: int) -> None:
        async with self.groups.join():
            self.inside.append(number)
            try:
                await self.release.wait()
            finally:
                self.inside.remove(number)


async def test_a_few_callers_never_wait():
    callers = Callers(OpeningGroups(group_max=100, wait_seconds=600))

    await callers.call(4)

    assert len(callers.inside) == 4


async def test_later_callers_come_in_together_when_half_of_the_group_has_finished():
    callers = Callers(OpeningGroups(group_max=100, wait_seconds=600))
    await callers.call(20)
    before = len(callers.inside)
    await callers.finish(before)
    group = len(callers.inside)
    await callers.call(50)

    await callers.finish(group // 4)
    assert len(callers.inside) == group - group // 4

    await callers.finish(group // 4 + 2)
    assert len(callers.inside) == group - 2 * (group // 4) - 2 + 50


async def test_a_group_has_a_limit():
    callers = Callers(OpeningGroups(group_max=10, wait_seconds=600))
    await callers.call(60)
    before = len(callers.inside)

    await callers.finish(before)

    assert len(callers.inside) == 10


async def test_a_group_that_hangs_stops_no_other_for_long():
    callers = Callers(OpeningGroups(group_max=100, wait_seconds=0.02))
    await callers.call(30)

    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(callers.inside) < 30:
            await asyncio.sleep(0.005)


async def test_a_caller_that_is_canceled_while_it_waits_takes_no_place():
    groups = OpeningGroups(group_max=100, wait_seconds=600)
    callers = Callers(groups)
    await callers.call(20)
    for task in callers.tasks[10:]:
        task.cancel()
    await callers.settle()
    callers.release.set()
    await callers.settle()

    with pytest.raises(asyncio.CancelledError):
        await callers.tasks[-1]
    async with asyncio.timeout(DEADLINE_SECONDS), groups.join():
        assert callers.inside == []
