"""The topic of erasures: a `subject_erased` event with the receipt of each, for auditors."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from runfold.client.connection import LogConnection
from runfold.client.records import outgoing
from runfold.erasure.receipt import SignedReceipt
from runfold.ids import new_event_id
from runfold.log.reader import LogGoneError, read
from runfold.log.settings import LogSettings
from runfold_schemas.codec import decode, new_event
from runfold_schemas.erasures import SubjectErased
from runfold_schemas.errors import UndecodableError
from runfold_schemas.memories import NO_RUN
from runfold_schemas.topics import Topics


async def publish(connection: LogConnection, signed: SignedReceipt) -> None:
    """Returns when the receipt is durable. Creates the topic if it does not exist."""
    await connection.admin.create_erasure_topic()
    erased = SubjectErased(
        subject=signed.receipt.subject,
        receipt=signed.text,
        signature=signed.signature,
        public_key=signed.public_key,
    )
    event = new_event(erased, event_id=new_event_id(), run_id=NO_RUN, timestamp=datetime.now(UTC))
    record = outgoing(event, source=connection.settings.source)._replace(key=erased.subject.encode())
    topic = connection.topics.erasures
    await connection.publisher.wait(await connection.publisher.send(topic, record, partition=0))


async def read_receipts(settings: LogSettings) -> AsyncGenerator[SignedReceipt, None]:
    """All receipts, the oldest first. Raises `UnavailableError`."""
    reading = read(settings, Topics(settings.prefix).erasures)
    with suppress(LogGoneError):
        async with aclosing(reading):
            async for records in reading:
                for record in records:
                    with suppress(UndecodableError, ValueError):
                        event = decode(record.value)
                        if isinstance(event.data, SubjectErased):
                            yield SignedReceipt.of(event.data)


async def last_receipt(settings: LogSettings, subject: str) -> SignedReceipt | None:
    """The receipt of the last erasure of a user."""
    last = None
    async with aclosing(read_receipts(settings)) as receipts:
        async for signed in receipts:
            if signed.receipt.subject == subject:
                last = signed
    return last
