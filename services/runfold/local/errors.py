"""The errors of servers on this machine.

RunfoldError
└── LocalStackError
    ├── MissingProgramError   java, mvn or mongod is not installed
    ├── StartError            a program ended, or was not ready in time
    ├── InUseError            another process uses the data directory
    └── DirectoryError        the data directory cannot be written
"""

from pathlib import Path

from runfold_schemas.errors import RunfoldError


class LocalStackError(RunfoldError):
    """The root of the tree above."""


class MissingProgramError(LocalStackError):
    """A program is not installed. The message is one line that says what to install."""

    def __init__(self, program: str, *, remedy: str) -> None:
        super().__init__(f"no {program} found: {remedy}")
        self.program = program


class StartError(LocalStackError):
    """A program did not start. `output_line` is the line of its output with the reason, `log` the
    file with the whole output.
    """

    def __init__(self, name: str, *, reason: str, output_line: str = "", log: Path | None = None) -> None:
        line = f": {output_line}" if output_line else ""
        super().__init__(f"{name} {reason}{line}" + (f" (its log is {log})" if log else ""))
        self.name = name
        self.reason = reason
        self.output_line = output_line
        self.log = log

    @property
    def is_port_taken(self) -> bool:
        """Whether another program listened on the port first."""
        return "address already in use" in self.output_line.lower()


class InUseError(LocalStackError):
    """Another process that still runs uses the directory."""

    def __init__(self, path: Path, *, owner: str) -> None:
        super().__init__(
            f"{path} is in use by process {owner}: stop that process, or choose another data directory"
        )
        self.path = path
        self.owner = owner


class DirectoryError(LocalStackError):
    """The path is a file, or this user may not write to it."""

    def __init__(self, path: Path, *, reason: str) -> None:
        super().__init__(f"data cannot be stored in {path} ({reason}): choose another directory")
        self.path = path
        self.reason = reason
