"""A plugin of pytest that writes the outcome of every test of a session to a file, as JSON.

`--outcomes FILE` names the file. It is written when the session ends, so it is missing if pytest
was killed.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import pytest
from xdist.workermanage import WorkerController


@dataclass(kw_only=True)
class Outcomes:
    """What a session collected, and what became of it.

    `collected` has the ids of all tests, and `root` the folder that they are relative to. `final`
    has a word of pytest for each test that ended: passed, failed, skipped, xfailed, xpassed, or
    error if its setup failed. `failures` has the failures of calls and setups in full. `faults` are
    sentences about everything else that went wrong: a worker that died, an error of collection or
    of teardown. `seconds` is how long each test took with its setup and teardown.
    """

    root: str = ""
    collected: list[str] = field(default_factory=list)
    final: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="write the outcome of every test to this file")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if config.option.outcomes and not is_worker:
        config.pluginmanager.register(_Recorder(config))


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._outcomes = Outcomes(root=str(config.rootpath))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._outcomes.collected = [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """With workers, these collect, and the session above has no items."""
        if self._outcomes.collected not in ([], ids):
            self._outcomes.faults.append("the workers collected different tests")
        self._outcomes.collected = ids

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._outcomes.faults.append(f"collection failed: {report.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = self._outcomes.seconds
        seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
        category, *_ = self._config.hook.pytest_report_teststatus(report=report, config=self._config)
        if report.when == "teardown" and report.failed:
            self._outcomes.faults.append(f"teardown failed: {report.nodeid}")
        elif category:
            self._outcomes.final[report.nodeid] = category
            if report.failed:
                self._outcomes.failures[report.nodeid] = _in_full(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object | None) -> None:
        if error is not None:
            self._outcomes.faults.append(f"worker {node.gateway.id} died: {error}")

    def pytest_internalerror(self) -> None:
        self._outcomes.faults.append("pytest had an internal error")

    def pytest_sessionfinish(self) -> None:
        self._outcomes.write(self._config.option.outcomes)


def _in_full(report: pytest.TestReport) -> str:
    """A failure as pytest prints it, with the captured output."""
    parts = [("", report.longreprtext), *report.sections]
    return "\n".join(f"{f' {title} '.center(80, '-')}\n{text}" if title else text for title, text in parts)
