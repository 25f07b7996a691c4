"""Writes everything of a tenant into a folder, as files that can be read without Runfold.

    manifest.json                     the tenant, its topics, and the digest of each file
    topics/{topic}/{partition}.jsonl  the records, one a line; the topic without the tenant's name
    blobs/{log_id}/{sha256}           the blobs as they are

A record has its offset, the broker's time in milliseconds, key, headers and value. Bytes that are
no UTF-8 are `{"base64": "..."}`. MongoDB has nothing that the logs do not have, so it is left out.
The archive is not in it: its files are copied as they are.
The manifest is written last: a folder without one is an export that broke off.
"""

import base64
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from runfold.blobs.store import BlobStore
from runfold.log.reader import LogGoneError
from runfold.log.topic_copies import CopiedPartition, TopicReader
from runfold.printable import json_line
from runfold.settings import Settings
from runfold.tenants.archived import has_archived
from runfold.tenants.registry import Tenant, settings_of
from runfold_schemas.codec import Record
from runfold_schemas.errors import BlobNotFoundError, ConfigurationError

FORMAT: Final = "runfold-tenant-1"
MANIFEST: Final = "manifest.json"


class Progress(NamedTuple):
    """How much is written. `total` is the number of records; None while it is not known."""

    done: int = 0
    total: int | None = None
    blobs: int = 0


Report = Callable[[Progress], None]


async def export_tenant(
    settings: Settings,
    tenant: Tenant,
    folder: Path,
    *,
    blobs: BlobStore | None,
    report: Report,
    without_archive: bool = False,
) -> Progress:
    """Exports a tenant, which may be used meanwhile: what comes after the export began may be
    missing. Raises `ConfigurationError` if the folder has files, and if the tenant has archived
    runs, unless the export is to be `without_archive`.
    """
    own = settings_of(settings, tenant)
    if not without_archive and await has_archived(own):
        raise ConfigurationError(
            f"the tenant {tenant.name!r} has archived runs, which an export does not have: stop its archiver,"
            f" export it with --without-archive, and copy the folder {tenant.name} of the archive too"
        )
    _prepare(folder)
    export = _Export(own, folder, report)
    began = datetime.now(UTC)
    async with TopicReader.connect(export.settings.log()) as reader:
        await export.write_topics(reader)
    if blobs is not None:
        await export.write_blobs(blobs)
    manifest = {
        "format": FORMAT,
        "tenant": tenant.model_dump(mode="json", exclude={"dropping"}) | {"partitions": export.partitions},
        "began_at": began.isoformat(),
        "topics": export.configs,
        "files": export.files,
    }
    _write(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    return export.progress


class _Export:
    def __init__(self, settings: Settings, folder: Path, report: Report) -> None:
        self.settings = settings
        self.files: dict[str, dict[str, Any]] = {}
        self.progress = Progress()
        self.partitions: int | None = None
        self.configs: dict[str, dict[str, str]] = {}
        """The settings of the topics that are not of runs, without the tenant's name."""
        self._topics = settings.log().topics
        self._folder = folder
        self._report = report

    async def write_topics(self, reader: TopicReader) -> None:
        counts = await reader.partitions(await reader.topics())
        self.partitions = counts.get(self._topics.catalog)
        self.configs = {
            topic.removeprefix(f"{self._topics.prefix}."): config
            for topic, config in (await reader.configs(counts)).items()
        }
        total = sum(each.end for each in await reader.ends(counts))
        self._advance(total=total)
        for topic in counts:
            # The ends of each topic are read when it is its turn, so that a run's log has all that
            # its effects elsewhere come from.
            for copied in await reader.ends({topic: counts[topic]}):
                await self._write_partition(reader, copied)

    async def _write_partition(self, reader: TopicReader, copied: CopiedPartition) -> None:
        name = copied.at.topic.removeprefix(f"{self._topics.prefix}.")
        path = f"topics/{name}/{copied.at.partition}.jsonl"
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        digest, records, unreadable = hashlib.sha256(), 0, 0
        try:
            with file.open("xb") as lines:
                async for fetched in reader.records(copied):
                    text = b"".join(map(_line, fetched.records))
                    lines.write(text)
                    digest.update(text)
                    records += len(fetched.records)
                    unreadable += len(fetched.unreadable)
                    self._advance(done=self.progress.done + len(fetched.records))
                lines.flush()
                os.fsync(lines.fileno())
        except LogGoneError:  # somebody has deleted the run meanwhile
            file.unlink()
            return
        self.files[path] = {"sha256": digest.hexdigest(), "records": records, "end": copied.end}
        if unreadable:
            self.files[path]["unreadable_batches"] = unreadable

    async def write_blobs(self, blobs: BlobStore) -> None:
        async for log_id, sha256 in blobs.names():
            path = f"blobs/{log_id}/{sha256}"
            file = self._folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with suppress(BlobNotFoundError):
                blob = await blobs.open(log_id, sha256)
                with file.open("xb") as content:
                    async for chunk in blob.chunks:
                        content.write(chunk)
                self.files[path] = {"sha256": sha256}
                self._advance(blobs=self.progress.blobs + 1)

    def _advance(self, **changes: int) -> None:
        self.progress = self.progress._replace(**changes)
        self._report(self.progress)


def _prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigurationError(f"{folder} has files already: name another folder")


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _line(record: Record) -> bytes:
    fields = {
        "offset": record.offset,
        "time": record.log_time,
        "key": _text(record.key),
        "headers": [[name, _text(value)] for name, value in record.headers],
        "value": _text(record.value),
    }
    return json_line(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()) + b"\n"


def _text(value: bytes | None) -> str | dict[str, str] | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
