"""The user's cache directory: what is fetched once and shared by all data directories."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/runfold`, by default `~/.cache/runfold`; made when it is missing."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runfold"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
