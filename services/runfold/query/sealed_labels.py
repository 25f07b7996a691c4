"""Filters by labels in an encrypted tenant, where lists know clear labels alone."""

from collections.abc import Iterable

from runfold.log.settings import LogSettings
from runfold_schemas.errors import InvalidEventError


def check_filter(settings: LogSettings, labels: Iterable[str]) -> None:
    """Raises `InvalidEventError` if one of these labels is sealed: no list would find it."""
    if settings.encryption_key is None:
        return
    for key in labels:
        if key not in (settings.encryption_clear_labels or ()):
            raise InvalidEventError(
                f"labels.{key} is encrypted, so lists cannot be filtered by it: name it in"
                " RUNFOLD_ENCRYPTION_CLEAR_LABELS",
                field=f"labels.{key}",
            )
