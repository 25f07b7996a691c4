"""Files that only their owner may read."""

import os
from pathlib import Path

from runfold_schemas.errors import ConfigurationError


def write_private(path: Path, content: bytes, *, what: str) -> None:
    """Replaces the file at once, so that no reader meets half of it. Raises `ConfigurationError`,
    which names `what` the file has.
    """
    beside = path.with_name(f"{path.name}.new")
    try:
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{what} cannot be written to {path}: {error}") from error
