"""Brings an export of a tenant back: the topics with all offsets and times, and the blobs. The
projectors fold MongoDB from them.

The tenant is marked as being dropped until everything is there. So no process serves a part of it,
and `runfold tenants drop` removes what an import that broke off has left.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from runfold.blobs.store import BlobStore
from runfold.log.admin import RUN_CONFIG
from runfold.log.compacted import create
from runfold.log.publisher import Publisher
from runfold.log.restored_topics import TopicWriter
from runfold.log.verdicts import CATALOG, Begin
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.store.tenants import has_data
from runfold.tenants.administration import new_tenant
from runfold.tenants.export import FORMAT, MANIFEST, Progress, Report
from runfold.tenants.registry import (
    Tenant,
    Tenants,
    blobs_of,
    mark_dropping,
    put_tenant,
    read_tenants,
    settings_of,
    tenant_topic,
    unmark_dropping,
)
from runfold_schemas.blobs import BlobReference
from runfold_schemas.codec import Record
from runfold_schemas.errors import ConfigurationError
from runfold_schemas.topics import Partition, Topics

_RECORDS_MAX: Final = 5_000
"""Records that are read at once."""

_COMPACTED: Final = "compact"


class _File(NamedTuple):
    at: Partition
    path: Path
    keeps_offsets: bool
    """Compaction leaves gaps, which an import closes."""


async def import_tenant(
    settings: Settings, publisher: Publisher, folder: Path, *, database: str | None = None, report: Report
) -> Tenant:
    """Brings an export back under its name, with its database or with another one. Raises
    `ConfigurationError` if the export is not complete, if the tenant or one of its topics exists,
    or if the database is another's or has data.
    """
    manifest = _manifest(folder)
    tenant = _tenant(settings, await read_tenants(settings), manifest["tenant"], database)
    files = list(_files(folder, manifest, tenant.name))
    total = _check(folder, manifest, files)
    own = settings_of(settings, tenant)
    await _check_database(own)
    async with TopicWriter.connect(own.log()) as writer:
        if existing := await writer.existing():
            raise ConfigurationError(f"the topic {existing[0]} exists: an import never adds to topics")
        registry = tenant_topic(settings)
        await create(settings.log(), registry)
        await mark_dropping(publisher, registry, tenant.name)
        await put_tenant(publisher, registry, tenant)
        await writer.create(_topics(manifest, files))
        progress = Progress(total=total)
        verdicts = Topics(tenant.name).verdicts
        for file in files:
            for read in _portions(file.path):
                records = _with_begins(own, read, files) if file.at.topic == verdicts else read
                await writer.append(file.at, records, keeps_offsets=file.keeps_offsets)
                progress = progress._replace(done=progress.done + len(records))
                report(progress)
        await writer.finish()
    await _put_blobs(blobs_of(own), folder, manifest)
    await unmark_dropping(publisher, registry, tenant.name)
    return tenant


def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        manifest: Mapping[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            raise ConfigurationError(f"{folder} has another format: {manifest['format']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{folder} has no {MANIFEST} of an export: {error}") from error
    return manifest


def _tenant(
    settings: Settings, tenants: Tenants, exported: Mapping[str, Any], database: str | None
) -> Tenant:
    try:
        tenant = Tenant.model_validate(exported)
    except ValidationError as error:
        raise ConfigurationError(f"the export has no tenant: {error}") from error
    if tenants.get(tenant.name) is not None:
        raise ConfigurationError(f"the tenant {tenant.name!r} exists: drop it first")
    new = new_tenant(settings, tenants, tenant.name, database or tenant.database)
    return new.model_copy(update={"partitions": tenant.partitions, "quotas": tenant.quotas})


async def _check_database(own: Settings) -> None:
    async with connect(own.mongo, own.database) as database:
        if await has_data(database):
            raise ConfigurationError(f"the database {own.database!r} has data: name another by --database")


def _files(folder: Path, manifest: Mapping[str, Any], tenant: str) -> Iterator[_File]:
    for path in manifest["files"]:
        kind, name, last = path.split("/")
        if kind == "topics":
            at = Partition(f"{tenant}.{name}", int(last.removesuffix(".jsonl")))
            policy = manifest["topics"].get(name, {}).get("cleanup.policy", "")
            yield _File(at, folder / path, keeps_offsets=_COMPACTED not in policy)


def _check(folder: Path, manifest: Mapping[str, Any], files: list[_File]) -> int:
    """The number of records. Raises `ConfigurationError` for a file that is not as it was written,
    and for a topic whose offsets have gaps: they would change.
    """
    for path, facts in manifest["files"].items():
        try:
            with (folder / path).open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise ConfigurationError(f"the export is not complete: {error}") from error
        if digest != facts["sha256"]:
            raise ConfigurationError(f"{folder / path} is not as it was exported")
    total = 0
    for file in files:
        offset = 0
        for records in _portions(file.path):
            for record in records:
                if file.keeps_offsets and record.offset != offset:
                    raise ConfigurationError(f"{file.path} has no record of offset {offset}")
                offset += 1
        total += offset
    return total


def _topics(manifest: Mapping[str, Any], files: list[_File]) -> Mapping[str, tuple[int, Mapping[str, str]]]:
    counts: dict[str, int] = {}
    for file in files:
        counts[file.at.topic] = counts.get(file.at.topic, 0) + 1
    return {
        topic: (count, manifest["topics"].get(topic.partition(".")[2], RUN_CONFIG))
        for topic, count in counts.items()
    }


def _portions(path: Path) -> Iterator[list[Record]]:
    records: list[Record] = []
    with path.open("rb") as lines:
        for line in lines:
            records.append(_record(json.loads(line)))
            if len(records) == _RECORDS_MAX:
                yield records
                records = []
    if records:
        yield records


def _record(fields: Mapping[str, Any]) -> Record:
    return Record(
        offset=fields["offset"],
        log_time=fields["time"],
        key=_bytes(fields["key"]),
        headers=tuple((name, _bytes(value)) for name, value in fields["headers"]),
        value=_bytes(fields["value"]),
    )


def _bytes(value: str | Mapping[str, str] | None) -> bytes | None:
    if isinstance(value, Mapping):
        return base64.b64decode(value["base64"])
    return None if value is None else value.encode()


def _with_begins(own: Settings, records: list[Record], files: list[_File]) -> list[Record]:
    """Records of the verdicts. Those that name an offset of the catalog name the new one: without
    the gaps it is smaller, and claims between the two would count without a verdict.
    """
    return [
        record._replace(value=_new_begin(own, record.value, files))
        if record.value and (record.key or b"").startswith(CATALOG)
        else record
        for record in records
    ]


def _new_begin(own: Settings, value: bytes, files: list[_File]) -> bytes:
    begin = Begin.model_validate_json(value)
    at = Partition(Topics(own.prefix).catalog, begin.partition)
    before = sum(
        record.offset < begin.offset
        for file in files
        if file.at == at
        for records in _portions(file.path)
        for record in records
    )
    return begin.model_copy(update={"offset": before}).model_dump_json().encode()


async def _put_blobs(store: BlobStore | None, folder: Path, manifest: Mapping[str, Any]) -> None:
    for path in manifest["files"]:
        kind, log_id, sha256 = path.split("/")
        if kind == "blobs":
            if store is None:
                raise ConfigurationError("the export has blobs, and no blob store is configured")
            content = (folder / path).read_bytes()
            await store.put(log_id, BlobReference(sha256, len(content)), content)
