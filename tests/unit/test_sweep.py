"""The sweep compares logs with stored states, and asks MongoDB for no more than it has to."""

from collections.abc import Iterable
from typing import Any

import pytest

from runfold.log.settings import LogSettings
from runfold.projector import stored_ends
from runfold.projector.stored_ends import Findings
from runfold.projector.sweep import Sweep
from runfold_schemas.topics import RunTopic

A, B, C = (RunTopic(name, "1" * 32) for name in "abc")


class World:
    """The logs and the stored states of three runs, and a sweep that compares them."""

    def __init__(self) -> None:
        self.logs = {"t.a": 3, "t.b": 5, "t.c": 1}
        self.stored: dict[str, tuple[str, int]] = {run.run_id: (run.log_id, 0) for run in (A, B, C)}
        self.requests: list[list[str]] = []
        world = self

        class Ends:
            async def ends(self, topics: Iterable[str]) -> dict[str, int]:
                return {topic: world.logs.get(topic, 0) for topic in topics}

        class Runs:
            async def ends_of(self, run_ids: Iterable[str]) -> dict[str, tuple[str, int]]:
                world.requests.append(sorted(run_ids))
                return {name: world.stored[name] for name in world.requests[-1] if name in world.stored}

        class Stores:
            runs = Runs()
            sessions = shared_positions = quarantine = None

        no_writer: Any = None
        ends, stores = Ends(), Stores()
        self.sweep = Sweep(LogSettings(), ends, stores, no_writer)  # type: ignore[arg-type]

    def store(self, **positions: int) -> None:
        self.stored.update({name: ("1" * 32, position) for name, position in positions.items()})

    async def look(self) -> Findings:
        return await self.sweep.look({"t.a": A, "t.b": B, "t.c": C})


@pytest.fixture
def world() -> World:
    return World()


async def test_a_sweep_finds_what_differs(world: World):
    world.store(a=3, b=4, c=-1)

    assert await world.look() == Findings(changed=["b"], deleted=[C], unknown={})

    del world.stored["b"]
    assert await world.look() == Findings(changed=[], deleted=[C], unknown={"t.b": B})


async def test_a_log_that_is_shorter_than_its_state_is_found(world: World):
    world.store(a=4, b=5, c=1)

    assert (await world.look()).changed == ["a"]


async def test_the_log_of_another_life_is_not_looked_at(world: World):
    world.store(a=3, b=5)
    world.stored["c"] = ("2" * 32, 7)

    assert await world.look() == Findings([], [], {})


async def test_mongodb_is_asked_only_for_runs_whose_log_has_changed(world: World):
    world.store(a=3, b=5, c=1)
    await world.look()
    await world.look()
    assert world.requests == [["a", "b", "c"]]

    world.logs["t.b"] = 6
    assert (await world.look()).changed == ["b"]
    assert (await world.look()).changed == ["b"]
    world.store(b=6)
    await world.look()
    await world.look()
    assert world.requests[1:] == [["b"], ["b"], ["b"]]


async def test_a_new_owner_and_a_rare_sweep_compare_all_runs(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_ends, "_WHOLE_SWEEPS", 3)
    world.store(a=3, b=5, c=1)
    await world.look()
    world.sweep.forget()
    await world.look()
    await world.look()

    assert world.requests == [["a", "b", "c"]] * 3


async def test_many_runs_are_compared_in_portions(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_ends, "_PORTION", 2)
    world.store(a=3, b=4, c=0)

    assert (await world.look()).changed == ["b", "c"]
    assert world.requests == [["a", "b"], ["c"]]
