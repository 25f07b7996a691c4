"""Writers at work while the topic of their run is sealed again and again: every acknowledged event
is in the log once, and those of each writer in their order.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.killing import ROUNDS
from tests.segmenting import HandArchive, seal
from tests.servers import OwnSettings

from runfold import Runfold, UserMessage
from runfold.settings import Settings

WRITERS, SEALS, IN_FLIGHT = 4, 4 * ROUNDS, 20


@pytest.fixture
def settings(own_settings: OwnSettings) -> Settings:
    return own_settings(publish_timeout_seconds=120)


@pytest.fixture
def archive() -> HandArchive:
    return HandArchive()


@pytest.fixture
async def processes(settings: Settings, archive: HandArchive) -> AsyncIterator[list[Runfold]]:
    """The clients of the archiver and of the writers, of which two share one."""
    log = settings.log().with_archived(archive)
    async with AsyncExitStack() as stack:
        clients = [Runfold.of(log) for _ in range(WRITERS)]
        yield [await stack.enter_async_context(client) for client in clients]


async def test_no_event_is_lost_doubled_or_overtaken_while_topics_are_sealed(
    processes: list[Runfold], archive: HandArchive
):
    sealer, *others = processes
    run = await others[0].open_run(agent_id="a")
    acknowledged: dict[int, list[tuple[int, int]]] = {}
    is_over = asyncio.Event()

    async def write(writer: int, runfold: Runfold) -> None:
        own = await runfold.get_run(run.run_id)
        sent = []
        number = 0
        while not is_over.is_set():
            for _ in range(IN_FLIGHT):
                if number % 7 == 3:
                    batch = [UserMessage(message=f"{writer} {number + each}") for each in range(3)]
                    positions = await own.publish_batch(batch)
                    sent += [(number + each, at.offset) for each, at in enumerate(positions)]
                    number += 3
                else:
                    sent.append((number, await own.send(UserMessage(message=f"{writer} {number}"))))
                    number += 1
            await own.flush()
        acknowledged[writer] = [(each, at if isinstance(at, int) else (await at).offset) for each, at in sent]

    writing = [asyncio.create_task(write(number, others[number % len(others)])) for number in range(WRITERS)]
    base = 0
    for _ in range(SEALS):
        entry = await seal(sealer, run.life, base)
        await archive.archive(sealer, run.life, entry)
        base = entry.base
        # The next topic gets some records before it is sealed.
        await run.publish(UserMessage(message="between"))
    is_over.set()
    await asyncio.gather(*writing)

    history = [one async for one in (await sealer.get_run(run.run_id)).history()]
    assert {one.outcome for one in history} == {"accepted"}
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in history:
        assert one.event is not None
        if isinstance(one.event.data, UserMessage) and one.event.data.message != "between":
            writer, number = map(int, one.event.data.message.split())
            found[writer].append((number, one.record.offset))
    assert found == acknowledged
    assert all(len(numbers) > SEALS for numbers in found.values())
