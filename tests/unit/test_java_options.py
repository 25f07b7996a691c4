"""The heap of Kafka's Java machine follows the history, and how long a program is waited for
follows its progress.
"""

import os
import sys
import time
from pathlib import Path
from subprocess import Popen

import pytest
from tests.processes import DEADLINE_SECONDS

from runfold.local import patience as patience_module
from runfold.local.java_options import count_logs, heap_for, java_options
from runfold.local.patience import Patience, wanted_cpu_seconds


def test_the_heap_grows_with_the_logs_and_leaves_half_of_the_machine() -> None:
    assert heap_for(0, machine_mb=16_000) == 1024
    assert heap_for(10_000, machine_mb=16_000) == 2274
    assert heap_for(100_000, machine_mb=16_000) == 8000
    assert heap_for(0, machine_mb=512) == 512


def test_a_long_history_is_compiled_by_c2_and_a_chosen_heap_is_kept() -> None:
    first, long = java_options(0), java_options(10_000, heap_mb=700)

    assert "-XX:TieredStopAtLevel=1" in first
    assert "-XX:TieredStopAtLevel=1" not in long
    assert "-Xmx700m" in long


def test_logs_are_the_folders_of_partitions(tmp_path: Path) -> None:
    for name in ("runfold.run.a.1-0", "runfold.runs-11", "meta.properties", "__cluster_metadata-0"):
        (tmp_path / name).mkdir()

    assert count_logs(tmp_path) == 3


def test_patience_begins_again_with_each_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    used = [0.0]
    monkeypatch.setattr(patience_module, "wanted_cpu_seconds", lambda _: used[0])
    log = tmp_path / "log"
    patience = Patience(1, log, seconds=60, clock=lambda: now[0])

    def over(*, at: float) -> bool:
        now[0] = at
        return patience.is_over()

    assert not any(over(at=at) for at in (30, 59))
    log.write_text("a line")
    assert not any(over(at=at) for at in (59.5, 89, 119))
    used[0] = 3.0
    assert not over(at=119.2)
    used[0] = 2.0  # threads have ended
    assert not over(at=119.3)
    used[0] = 4.9  # less than a twentieth of a core
    assert not any(over(at=at) for at in (149, 179))
    assert over(at=180)


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count how long threads wait"
)
def test_a_program_that_gets_no_processor_makes_progress_all_the_same() -> None:
    busy = [sys.executable, "-c", "while True: pass"]
    processor = min(os.sched_getaffinity(0))
    with Popen(busy) as other, Popen(busy) as starved:
        try:
            for each in (other, starved):
                os.sched_setaffinity(each.pid, {processor})
            os.setpriority(os.PRIO_PROCESS, starved.pid, 19)
            began = time.monotonic()
            while (wanted := wanted_cpu_seconds(starved.pid)) < 1:
                assert time.monotonic() - began < DEADLINE_SECONDS
                time.sleep(0.01)
            used = time.clock_gettime(_clock_of(starved.pid))
        finally:
            other.kill()
            starved.kill()

    assert used < 0.75 * wanted
    assert wanted_cpu_seconds(starved.pid) == 0


def _clock_of(pid: int) -> int:
    """The clock of a process's processor time, as Linux numbers them."""
    return (~pid << 3) | 2


def test_time_in_which_the_machine_stood_still_ends_no_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(patience_module, "wanted_cpu_seconds", lambda _: 0.0)
    patience = Patience(1, tmp_path / "log", seconds=60, clock=lambda: now[0])

    def over(*, at: float) -> bool:
        now[0] = at
        return patience.is_over()

    assert not any(over(at=at) for at in (20, 3600, 3609))
    assert over(at=3610)


def test_work_without_a_line_is_given_up_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(patience_module, "wanted_cpu_seconds", lambda _: now[0])
    patience = Patience(1, tmp_path / "log", seconds=60, clock=lambda: now[0])

    over_at = []
    for second in range(0, 700, 10):
        now[0] = float(second)
        if patience.is_over():
            over_at.append(second)

    assert over_at[0] == 600
