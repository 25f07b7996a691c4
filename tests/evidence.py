"""Runs with signed heads, and attackers who change what is stored of them."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from zlib import crc32

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tests.processes import Projections, until
from tests.tails import delete_topics
from zstandard import frame_content_size

from runfold.evidence.bucket import bucket_of
from runfold.evidence.keys import add_key, read_keys
from runfold.log.admin import LogAdmin
from runfold.log.ends import LogEnds
from runfold.log.partition_counts import partition_counts
from runfold.log.publisher import Publisher
from runfold.log.reader import read
from runfold.projector.signing import HeadSigner
from runfold.settings import Settings
from runfold.store.page import document_of, pack
from runfold.store.signing import SigningStore
from runfold.verify.chains import UNSIGNED_SECONDS, ChainReport, verify_chains
from runfold_schemas.codec import Record
from runfold_schemas.topics import PARTITIONS_DEFAULT, RECORD_BYTES_MAX, Partition

Mutation = Callable[[list[Record]], list[Record]]


@asynccontextmanager
async def signer(settings: Settings, stored: Projections) -> AsyncIterator[HeadSigner]:
    """Signs for all partitions, when it is told to."""
    assert settings.signing_keys is not None
    key = read_keys(settings.signing_keys).signing
    assert key is not None
    async with LogAdmin.connect(settings.log()) as admin:
        await admin.create_evidence_topic()
    async with Publisher.connect(settings.log()) as publisher:
        yield HeadSigner(
            settings.log(),
            key,
            publisher,
            pages=stored.pages,
            store=SigningStore(stored.database, stored.edition),
            partitions=lambda: range(settings.partitions or PARTITIONS_DEFAULT),
            bucket=bucket_of(settings),
        )


def new_keys(folder: Path) -> Path:
    path = folder / "signing-keys.pem"
    add_key(path)
    return path


async def report_of(
    settings: Settings,
    stored: Projections,
    run_id: str | None = None,
    *,
    unsigned_seconds: float = UNSIGNED_SECONDS,
) -> ChainReport:
    assert settings.signing_keys is not None
    trusted = read_keys(settings.signing_keys).trusted
    compared = verify_chains(
        settings.log(),
        stored.stores,
        trusted,
        run_id=run_id,
        bucket=bucket_of(settings),
        unsigned_seconds=unsigned_seconds,
    )
    return [report async for report in compared][-1]


async def faults_of(
    settings: Settings, stored: Projections, run_id: str | None = None
) -> list[tuple[str, str]]:
    """The kind and the detail of each fault."""
    report = await report_of(settings, stored, run_id)
    return [(fault.kind, fault.detail) for fault in report.faults]


async def records_of(settings: Settings, at: Partition) -> list[Record]:
    reading = read(settings.log(), at.topic, partition=at.partition)
    return [record async for records in reading for record in records]


async def rewrite_log(settings: Settings, at: Partition, mutate: Mutation) -> None:
    """Deletes a topic, and makes it again with other records. Their times are as they were."""
    async with LogEnds.connect(settings.log()) as ends:
        count = (await partition_counts(ends.leaders.client, [at.topic]))[at.topic]
        places = [Partition(at.topic, number) for number in range(count)]
        records = {place: await records_of(settings, place) for place in places}
        records[at] = mutate(records[at])
        await delete_topics(settings.kafka, at.topic)

        async def is_gone() -> bool:
            return not await ends.ends_of([at])

        await until(is_gone, what="the deletion")
    config = {"message.timestamp.type": "CreateTime", "max.message.bytes": str(RECORD_BYTES_MAX)}
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    try:
        created = await admin.create_topics([NewTopic(at.topic, count, 1, topic_configs=config)])
        assert {answer[1] for answer in created.topic_errors} == {0}, created
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka, max_request_size=RECORD_BYTES_MAX)
    await producer.start()
    try:
        for place, some in records.items():
            for record in some:
                await producer.send_and_wait(
                    place.topic,
                    record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=place.partition,
                    timestamp_ms=record.log_time,
                )
    finally:
        await producer.stop()


async def rewrite_pages(stored: Projections, log_id: str, mutate: Mutation) -> None:
    """Changes the records of a log's pages, with the checksums that belong to them."""
    pages = await stored.pages.all(log_id)
    mutated = mutate([record for page in pages for record in page.records()])
    collection = stored.database[f"pages.{stored.edition}"]
    for page in pages:
        records = [each for each in mutated if page.first_offset <= each.offset < page.next_offset]
        body = pack(records)
        changed = replace(
            page, body=body, checksum=crc32(body), count=len(records), size=frame_content_size(body)
        )
        await collection.replace_one({"_id": document_of(page)["_id"]}, document_of(changed))


def changed_at(offset: int) -> Mutation:
    return lambda log: [
        each._replace(value=(each.value or b"") + b" ") if each.offset == offset else each for each in log
    ]


def removed_at(offset: int) -> Mutation:
    return lambda log: _renumbered([each for each in log if each.offset != offset])


def inserted_at(offset: int) -> Mutation:
    def mutate(log: list[Record]) -> list[Record]:
        new = log[offset]._replace(value=b'{"forged": true}')
        return _renumbered([*log[:offset], new, *log[offset:]])

    return mutate


def swapped_at(offset: int, other: int) -> Mutation:
    def mutate(log: list[Record]) -> list[Record]:
        swapped = [*log]
        swapped[offset], swapped[other] = (
            log[other]._replace(offset=offset, log_time=log[offset].log_time),
            log[offset]._replace(offset=other, log_time=log[other].log_time),
        )
        return swapped

    return mutate


def _renumbered(log: Sequence[Record]) -> list[Record]:
    return [record._replace(offset=offset) for offset, record in enumerate(log)]
