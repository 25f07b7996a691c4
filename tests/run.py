"""Runs all tests, and those that failed once more. `make test` and continuous integration call it:

    python -m tests.run [PATH ...]

Three workers run the tests. If at most twelve tests failed, the files that these stand in run once
more, in a fresh process. A test that passes then is listed as FLAKY, with its first failure in
full. The session is green only if every test that was collected has passed, or was skipped, in its
last run. Everything else that goes wrong is red at once: a worker that dies, an error of collection
or of teardown, an interruption.

A file whose tests take more than a minute is listed as SLOW. The line before the last is the number
of flaky tests, and the last one is the total of both runs in pytest's form. The exit code is
pytest's, or 1.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from operator import itemgetter
from pathlib import Path

from tests.outcomes import Outcomes

FAILED_MAX = 12
"""More failures than this are not chance."""

FILE_SECONDS_MAX = 60
"""The tests of a file run one after the other, so the longest file bounds the whole run."""

IN_WORKERS = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0"]
IN_ONE_PROCESS = ["-n", "0"]

WIDTH = 80


@dataclass(kw_only=True)
class Session:
    """One run of pytest: its exit code, how long it took, and its outcomes, which are empty if
    pytest was killed.
    """

    code: int
    seconds: float
    outcomes: Outcomes = field(default_factory=Outcomes)

    @property
    def failed(self) -> list[str]:
        return [test for test, category in self.outcomes.final.items() if category in ("failed", "error")]

    @property
    def files(self) -> list[str]:
        """The files of the tests that failed."""
        root = Path(self.outcomes.root)
        return list(dict.fromkeys(str(root / test.partition("::")[0]) for test in self.failed))

    def faults(self) -> list[str]:
        """What went wrong beside tests that failed."""
        faults = list(self.outcomes.faults)
        if missing := [test for test in self.outcomes.collected if test not in self.outcomes.final]:
            faults.append(f"{len(missing)} tests did not run, the first is {missing[0]}")
        if not self.outcomes.collected or self.code not in (0, 1) or (self.code == 1 and not self.failed):
            faults.append(f"pytest ended with exit code {self.code}")
        return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run", description="Runs the tests.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders, by default all tests")
    first = run_pytest([*IN_WORKERS, *parser.parse_args().paths])
    faults = first.faults()
    if len(first.failed) > FAILED_MAX:
        faults.append(f"{len(first.failed)} tests failed, and more than {FAILED_MAX} are not chance")
    if faults or not first.failed:
        return report([first], faults)
    print(f"\n{len(first.failed)} failed: their files run once more, in a fresh process", flush=True)
    second = run_pytest([*IN_ONE_PROCESS, *first.files])
    return report([first, second], second.faults())


def run_pytest(arguments: Sequence[str]) -> Session:
    """Runs pytest as a child process, with its output on ours."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="runfold-outcomes-") as folder:
        path = Path(folder) / "outcomes.json"
        plugin = ["-p", "tests.outcomes", "--outcomes", str(path)]
        process = subprocess.Popen([sys.executable, "-m", "pytest", *plugin, *arguments])
        # Ctrl-C reaches pytest too, which ends in order: we wait for it.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        code = process.wait()
        outcomes = Outcomes.read(path) if path.exists() else Outcomes()
    return Session(code=code, seconds=time.monotonic() - began, outcomes=outcomes)


def report(sessions: Sequence[Session], faults: Sequence[str]) -> int:
    """Prints what both runs together come to, and gives the exit code."""
    first, last = sessions[0], sessions[-1]
    final = first.outcomes.final | last.outcomes.final
    flaky = [test for test in first.failed if final[test] == "passed"]
    failed = [test for test in final if final[test] in ("failed", "error")]
    unproven = [test for test in first.failed if test not in {*flaky, *failed}]
    print()
    for file, seconds in slow_files(first.outcomes):
        print(f"SLOW {file} took {seconds:.0f} s")
    for test in flaky:
        print(f"FLAKY {test}\n{first.outcomes.failures[test]}\n")
    for test in unproven:
        print(f"FAILED {test} - it failed first, and was {final[test]} then")
    for fault in faults:
        print(f"ERROR {fault}")
    print(f"FLAKY: {len(flaky)}")
    print(total(final, seconds=sum(session.seconds for session in sessions)), flush=True)
    if faults or failed or unproven:
        return max(last.code, 1)
    return 0


def slow_files(outcomes: Outcomes) -> list[tuple[str, float]]:
    """The files that take longer than they may, the slowest first."""
    files: defaultdict[str, float] = defaultdict(float)
    for test, seconds in outcomes.seconds.items():
        files[test.partition("::")[0]] += seconds
    slow = [(file, seconds) for file, seconds in files.items() if seconds > FILE_SECONDS_MAX]
    return sorted(slow, key=itemgetter(1), reverse=True)


def total(final: dict[str, str], *, seconds: float) -> str:
    """The closing line of pytest for these outcomes."""
    counts = Counter(final.values())
    nouns = {"error": "error" if counts["error"] == 1 else "errors"}
    categories = ("failed", "passed", "skipped", "xfailed", "xpassed", "error")
    parts = [f"{counts[one]} {nouns.get(one, one)}" for one in categories if counts[one]]
    clock = f" ({timedelta(seconds=int(seconds))})" if seconds >= 60 else ""
    return f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s{clock} ".center(WIDTH, "=")


if __name__ == "__main__":
    sys.exit(main())
