"""Followers of one run do not wait for the key of another run."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from runfold.log.settings import LogSettings
from runfold.query.live import LiveRuns, Seat, _Channel
from runfold.query.runs import FollowStart
from runfold_projections.admission import Admission, Admitted
from runfold_schemas.codec import Record, encode, new_data, new_event
from runfold_schemas.errors import UnavailableError
from runfold_schemas.events import UserMessage


class Sealing:
    """Reveals the records of a run when its key is there."""

    def __init__(self) -> None:
        self.keys = {"a": asyncio.Event(), "b": asyncio.Event()}
        self.looks = Counter[str]()
        self.error: Exception | None = None

    async def reveal_admitted(self, records: list[Admitted]) -> list[Admitted]:
        run_id = (records[0].record.key or b"").decode()
        self.looks[run_id] += 1
        await self.keys[run_id].wait()
        if self.error is not None:
            raise self.error
        return records


def following(sealing: Sealing) -> tuple[LiveRuns, dict[str, _Channel], dict[str, Seat]]:
    live = LiveRuns(LogSettings(), None, None, stored_runs=SimpleNamespace(sealing=sealing))  # type: ignore[arg-type]
    seats = {}
    for run_id in sealing.keys:
        start = FollowStart(topic=f"rf.run.{run_id}", admission=Admission(run_id), next_offset=0)
        channel = live._channels[run_id] = _Channel(start)
        channel.seats.add(seat := Seat(0, ended=False))
        seats[run_id] = seat
    return live, live._channels, seats


def record(run_id: str, offset: int, text: str = "hello") -> Record:
    data: Any = new_data(UserMessage, message=text)
    event = new_event(data, event_id=str(uuid4()), run_id=run_id, timestamp=datetime.now(UTC))
    return Record(offset, 1, run_id.encode(), (), encode(event))


async def offsets(seat: Seat) -> list[int]:
    return [frame.offset for frame in await seat.take(timeout_seconds=60)]


async def test_a_run_whose_key_is_missing_delays_no_other() -> None:
    sealing = Sealing()
    live, channels, seats = following(sealing)
    sealing.keys["b"].set()

    live._take("a", channels["a"], [record("a", 0)])
    live._take("b", channels["b"], [record("b", 0)])

    assert await offsets(seats["b"]) == [0]
    live._take("a", channels["a"], [record("a", 1), record("a", 2)])
    sealing.keys["a"].set()
    await asyncio.gather(*live._handing_out)
    assert await offsets(seats["a"]) == [0, 1, 2]
    assert sealing.looks == {"a": 2, "b": 1}


@pytest.mark.parametrize(
    "error", [UnavailableError("The encryption key", reason="it is away"), ValueError("forged contents")]
)
async def test_a_run_whose_contents_cannot_be_revealed_is_read_again_from_its_history(
    error: Exception,
) -> None:
    sealing = Sealing()
    live, channels, seats = following(sealing)
    sealing.error = error
    channel = channels["a"]
    live._take("a", channel, [record("a", 0)])
    sealing.keys["a"].set()

    assert await seats["a"].take(timeout_seconds=60) == []
    assert seats["a"].overrun
    assert not seats["b"].overrun
    assert [*channels] == ["b"]


async def test_a_run_that_waits_too_long_is_read_again() -> None:
    live, channels, seats = following(Sealing())
    channel = channels["a"]
    for offset in range(3):
        live._take("a", channel, [record("a", offset, text="x" * 600_000)])
        await asyncio.sleep(0)

    assert seats["a"].overrun
    for task in live._handing_out:
        task.cancel()
