"""Runs Kafka, MongoDB and Runfold's services as child processes of one program, for development,
demos and tests.
"""

from .errors import DirectoryError, InUseError, LocalStackError, MissingProgramError, StartError
from .ports import free_port
from .readiness import ready_line, ready_url
from .service import Service
from .stack import LocalStack
from .supervisor import Supervisor

__all__ = [
    "DirectoryError",
    "InUseError",
    "LocalStack",
    "LocalStackError",
    "MissingProgramError",
    "Service",
    "StartError",
    "Supervisor",
    "free_port",
    "ready_line",
    "ready_url",
]
