"""The command line. Each command is a module; this one holds what they share: the program, its
settings, its errors.
"""

from runfold.cli.program import main

__all__ = ["main"]
