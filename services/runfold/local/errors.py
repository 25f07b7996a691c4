"""What can go wrong with servers on this machine.

RunfoldError
└── LocalStackError
    ├── MissingProgramError   java, mvn or mongod is not installed
    ├── StartError            a program ended, or was not ready in time
    └── InUseError            another process holds the data directory
"""

from pathlib import Path

from runfold_schemas.errors import RunfoldError


class LocalStackError(RunfoldError):
    """The root of the tree above."""


class MissingProgramError(LocalStackError):
    """A program is not installed; the message is one line that says what to install."""

    def __init__(self, program: str, *, remedy: str) -> None:
        super().__init__(f"no {program} found: {remedy}")
        self.program = program


class StartError(LocalStackError):
    """A program did not come up. `told` is the line of its output that says why, `log` the file
    that has all of it.
    """

    def __init__(self, name: str, *, reason: str, told: str = "", log: Path | None = None) -> None:
        super().__init__(
            f"{name} {reason}" + (f": {told}" if told else "") + (f" (its log is {log})" if log else "")
        )
        self.name = name
        self.reason = reason
        self.told = told
        self.log = log


class InUseError(LocalStackError):
    """The directory belongs to a process that still runs."""

    def __init__(self, path: Path, *, owner: str) -> None:
        super().__init__(
            f"{path} is in use by process {owner}: stop that one, or choose another data directory"
        )
        self.path = path
        self.owner = owner


class DirectoryError(LocalStackError):
    """The path is a file, or may not be written to."""

    def __init__(self, path: Path, *, reason: str) -> None:
        super().__init__(f"no data can be kept in {path} ({reason}): choose another directory")
        self.path = path
        self.reason = reason
