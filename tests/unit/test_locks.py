"""Locks for tasks of any event loop and any thread."""

import asyncio
import threading

from tests.processes import DEADLINE_SECONDS

from runfold.access.locks import NamedLocks

THREADS = 8
TURNS = 200


def test_tasks_of_many_loops_exclude_each_other():
    locks, inside, worst, done = NamedLocks(), 0, 0, 0

    async def take_turns() -> None:
        nonlocal inside, worst, done
        for _ in range(TURNS):
            async with locks.of("a"):
                inside += 1
                worst = max(worst, inside)
                await asyncio.sleep(0)
                inside -= 1
                done += 1

    async def two_tasks() -> None:
        await asyncio.gather(take_turns(), take_turns())

    threads = [threading.Thread(target=lambda: asyncio.run(two_tasks())) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (worst, done) == (1, 2 * THREADS * TURNS)


async def test_different_names_do_not_wait_for_each_other():
    locks = NamedLocks()

    async with asyncio.timeout(DEADLINE_SECONDS), locks.of("a"), locks.of("b"):
        assert locks.of("a") is not locks.of("b")


async def test_a_turn_comes_in_the_order_of_asking():
    locks, order = NamedLocks(), []

    async def take(number: int) -> None:
        async with locks.of("a"):
            order.append(number)

    async with locks.of("a"):
        tasks = [asyncio.create_task(take(number)) for number in range(5)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)

    assert order == [0, 1, 2, 3, 4]


async def test_a_cancelled_task_gives_its_turn_to_the_next():
    locks = NamedLocks()

    async def take() -> None:
        async with locks.of("a"):
            pass

    for release_first in (False, True):
        lock = locks.of("a")
        await lock.__aenter__()
        cancelled, next_one = asyncio.create_task(take()), asyncio.create_task(take())
        await asyncio.sleep(0)
        if release_first:
            await lock.__aexit__()
            cancelled.cancel()
        else:
            cancelled.cancel()
            await lock.__aexit__()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.wait([cancelled])
            await next_one


async def test_a_lock_that_nobody_holds_is_forgotten():
    locks = NamedLocks()

    async with locks.of("a"):
        pass

    assert len(locks._locks) == 0
