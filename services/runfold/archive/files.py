"""The files below a table's folder: listed, read and removed without the library of the table."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from runfold.archive.folders import work_folder
from runfold.blobs.store import store_at
from runfold.secret_urls import SecretUrl
from runfold_schemas.errors import UnavailableError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SCHEME: Final = "file://"


class StoredFile(NamedTuple):
    """A file with its time of change, in seconds since 1970 by the clock of the store."""

    path: str
    changed_at: float


class TableFiles:
    """The files of one table. Paths are below its folder. Methods wait for the store, and may raise
    `UnavailableError`.
    """

    def __init__(self, url: SecretUrl, folder: str) -> None:
        self._url = url
        self._folder = folder
        address = url.get_secret_value()
        self._local = (
            Path(unquote(address.removeprefix(_SCHEME))) / folder if address.startswith(_SCHEME) else None
        )
        self._opened: ObjectStore | None = None

    def listed(self) -> list[StoredFile]:
        """All files. A directory also has those that a process was writing when it died."""
        with file_errors():
            if self._local is None:
                return [
                    StoredFile(
                        each["path"].removeprefix(f"{self._folder}/"), each["last_modified"].timestamp()
                    )
                    for portion in self._store.list(f"{self._folder}/")
                    for each in portion
                ]
            listed = []
            for path in self._local.rglob("*"):
                with suppress(FileNotFoundError):  # others write files under other names first
                    if path.is_file():
                        listed.append(StoredFile(str(path.relative_to(self._local)), path.stat().st_mtime))
            return listed

    def remove(self, path: str) -> None:
        """Removes a file, which another process may have removed before."""
        with file_errors():
            if self._local is not None:
                (self._local / path).unlink(missing_ok=True)
                return
            try:
                self._store.delete(f"{self._folder}/{path}")
            except FileNotFoundError:
                return

    def remove_all(self) -> int:
        """Removes all files, and returns their number."""
        listed = self.listed()
        for each in listed:
            self.remove(each.path)
        if self._local is not None:
            shutil.rmtree(self._local, ignore_errors=True)  # the empty folders
        return len(listed)

    def put(self, path: str, source: Path) -> None:
        """Stores a file of this machine under a new path, when all of it is there."""
        with file_errors():
            if self._local is None:
                with source.open("rb") as content:
                    self._store.put(f"{self._folder}/{path}", content)
                return
            partial = self._local / f".{path}.partial"
            shutil.copyfile(source, partial)
            with partial.open("rb") as content:
                os.fsync(content.fileno())
            partial.rename(self._local / path)

    def added_by(self, version: int) -> list[str]:
        """The files that a commit has added."""
        with file_errors():
            name = f"_delta_log/{version:020}.json"
            if self._local is not None:
                lines = (self._local / name).read_bytes().splitlines()
            else:
                lines = bytes(self._store.get(f"{self._folder}/{name}").bytes()).splitlines()
            actions = [json.loads(line) for line in lines]
        return [unquote(action["add"]["path"]) for action in actions if "add" in action]

    @contextmanager
    def on_this_machine(self, paths: Sequence[str]) -> Iterator[list[Path]]:
        """The files as files of this machine, copied if they are elsewhere."""
        if self._local is not None:
            yield [self._local / path for path in paths]
            return
        with work_folder() as folder:
            copies = [folder / Path(path).name for path in paths]
            for path, copy in zip(paths, copies, strict=True):
                with file_errors(), copy.open("wb") as content:
                    for chunk in self._store.get(f"{self._folder}/{path}").stream():
                        content.write(chunk)
            yield copies

    @property
    def _store(self) -> "ObjectStore":
        if self._opened is None:
            self._opened = store_at(self._url)
        return self._opened


@contextmanager
def file_errors() -> Iterator[None]:
    """Errors of files and of the object store inside become errors of ours."""
    from obstore.exceptions import BaseError  # noqa: PLC0415

    try:
        yield
    except (BaseError, OSError) as error:
        reason = str(error).partition("\n")[0][:300] or type(error).__name__
        raise UnavailableError("the archive", reason=reason) from error
