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
    """A program did not come up. `tail` is the end of what it wrote."""

    def __init__(self, name: str, *, reason: str, tail: str) -> None:
        super().__init__(f"{name} {reason}" + (f"; it wrote last:\n{tail}" if tail else ""))
        self.name = name
        self.reason = reason
        self.tail = tail


class InUseError(LocalStackError):
    """The directory belongs to a process that still runs."""

    def __init__(self, path: Path, *, owner: str) -> None:
        super().__init__(
            f"{path} is in use by process {owner}: stop that one, or choose another data directory"
        )
        self.path = path
        self.owner = owner
