"""Opens the archives that settings name, each once in a process."""

from functools import lru_cache

from runfold.archive.archive import Archive
from runfold.secret_urls import SecretUrl


@lru_cache(maxsize=1_000)
def opened(url: SecretUrl, prefix: str) -> Archive:
    """The archive of a prefix. Nothing is read yet. Raises `ConfigurationError` if the libraries of
    the archive are not installed.
    """
    return Archive(url, prefix=prefix)
