"""The user's cache directory, for files that are downloaded once for all data directories."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/runfold`, by default `~/.cache/runfold`. Creates a missing directory."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runfold"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
