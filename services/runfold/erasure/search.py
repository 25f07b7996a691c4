"""Searches Kafka, MongoDB, the archive and the blob store for what is left of a user.

The names are the user's id, and the ids of the sessions and runs that the log has of them. A find
is readable if it has more than ids: contents that are neither deleted nor encrypted by a key that
was destroyed.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable
from contextlib import aclosing, suppress
from typing import NamedTuple

from runfold.archive.archive import Archive
from runfold.archive.searching import search_files
from runfold.blobs.store import BlobStore
from runfold.client.connection import LogConnection
from runfold.encryption.subjects import run_subject, session_subject, user_subject
from runfold.erasure.contents import Readable, of_event, of_record, of_value
from runfold.erasure.keys import keys_in_use
from runfold.erasure.names import Names
from runfold.erasure.traces import Traces, find_traces
from runfold.log.reader import LogGoneError, read
from runfold.log.shared import partitions_of
from runfold.store.database import Database
from runfold.store.searching import DocumentText, collections, texts
from runfold_schemas.codec import Record
from runfold_schemas.erasures import subject_of
from runfold_schemas.topics import Partition


class FoundName(NamedTuple):
    """A name that was found."""

    place: str
    where: str
    name: str
    readable: Readable

    @property
    def is_readable(self) -> bool:
        return self.readable is not Readable.NO


class Looked(NamedTuple):
    """One place that was looked through."""

    done: int
    total: int
    place: str
    found: list[FoundName]


async def search(
    connection: LogConnection,
    database: Database,
    *,
    user: str,
    more: Iterable[str] = (),
    archive: Archive | None = None,
) -> AsyncGenerator[Looked, None]:
    """Looks through all places. `more` has further names, for example of a receipt. Raises
    `UnavailableError`.
    """
    traces = await find_traces(
        connection.settings,
        connection.catalog,
        user=user,
        subject=subject_of(connection.settings.prefix, user),
    )
    keys = await keys_in_use(connection)
    names = Names([user, *more, *_ids_of(traces)])
    topics = await _topics(connection)
    stored = await collections(database)
    total, done = len(topics) + len(stored) + 1, 0
    for topic, partitions in topics.items():
        done += 1
        found = [each async for each in _in_topic(connection, topic, partitions, names, keys)]
        yield Looked(done, total, f"Kafka, {topic}", found)
    for collection in stored:
        done += 1
        place = f"MongoDB, {collection}"
        found = [
            FoundName(place, document.id, name, _of_document(document, keys))
            async for document in texts(database, collection)
            if (name := names.find(document.text)) is not None
        ]
        yield Looked(done, total, place, found)
    if archive is not None:
        async for searched in search_files(archive, names.find):
            done, place = done + 1, f"archive, {searched.path}"
            found = [
                FoundName(place, each.where, each.name, of_event(each.value, keys)) for each in searched.found
            ]
            total = done + searched.left + 1
            yield Looked(done, total, place, found)
    if connection.sealing is not None and await connection.sealing.keys.remains(*_subjects_of(traces, user)):
        where = "a key of the user, which is in use or not compacted yet"
        topic = f"Kafka, {connection.topics.prefix}.keys"
        yield Looked(done, total, topic, [FoundName(topic, where, user, Readable.BY_KEY)])
    yield Looked(total, total, "the blob store", await _in_blobs(connection.blobs, traces))


def _subjects_of(traces: Traces, user: str) -> Collection[str]:
    """The subjects whose keys an erasure destroys, as far as the log names them."""
    runs = [*(session.run_id for session in traces.all_sessions), *(run.run_id for run in traces.erased_runs)]
    sessions = traces.own_session_ids(user)
    return {user_subject(user), *map(session_subject, sessions), *map(run_subject, runs)}


def _ids_of(traces: Traces) -> Iterable[str]:
    for session in traces.all_sessions:
        yield from (session.session_id, session.run_id, session.log_id)
    for run in traces.erased_runs:
        yield from run


async def _topics(connection: LogConnection) -> dict[str, list[Partition]]:
    """All topics of the tenant, with their partitions."""
    names = connection.settings.topics
    topics = {topic: partitions_of(names, topic) for topic in (names.catalog, *names.shared)}
    for topic in await connection.admin.list_topics():
        if topic.startswith(f"{names.prefix}."):
            topics.setdefault(topic, [Partition(topic, 0)])
    return topics


async def _in_topic(
    connection: LogConnection,
    topic: str,
    partitions: Iterable[Partition],
    names: Names,
    keys: Collection[str],
) -> AsyncIterator[FoundName]:
    has_contents = topic not in (
        connection.topics.catalog,
        connection.topics.api_keys,
        connection.topics.evidence,
        connection.topics.erasures,
        connection.topics.verdicts,
    )
    place = f"Kafka, {topic}"
    if (name := names.find(topic.encode())) is not None:
        yield FoundName(place, "its name", name, Readable.CLEAR if has_contents else Readable.NO)
    for at in partitions:
        reading = read(connection.settings, at.topic, partition=at.partition)
        with suppress(LogGoneError):
            async with aclosing(reading):
                async for records in reading:
                    for record in records:
                        if (name := names.find(_text_of(record))) is not None:
                            where = f"partition {at.partition}, offset {record.offset}"
                            readable = of_event(record.value, keys) if has_contents else Readable.NO
                            yield FoundName(place, where, name, readable)


def _text_of(record: Record) -> bytes:
    headers = [part for name, value in record.headers for part in (name.encode(), value or b"")]
    return b"\n".join([record.key or b"", record.value or b"", *headers])


def _of_document(document: DocumentText, keys: Collection[str]) -> Readable:
    parts = [of_event(event, keys) for event in document.events]
    if document.record is not None:
        parts.append(of_record(document.record, keys))
    if document.value is not None:
        parts.append(of_value(document.value, keys))
    return next((way for way in (Readable.CLEAR, Readable.BY_KEY) if way in parts), Readable.NO)


async def _in_blobs(blobs: BlobStore | None, traces: Traces) -> list[FoundName]:
    if blobs is None:
        return []
    logs = [*(session.log_id for session in traces.all_sessions), *(run.log_id for run in traces.erased_runs)]
    return [
        FoundName("the blob store", path, log_id, Readable.CLEAR)
        for log_id in logs
        for path in await blobs.paths(log_id)
    ]
