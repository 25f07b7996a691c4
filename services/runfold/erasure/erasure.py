"""One erasure, from the call to its receipt."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from runfold.client.connection import LogConnection
from runfold.erasure.eraser import Eraser, Report
from runfold.erasure.keys import keys_in_use
from runfold.erasure.log import last_receipt, publish
from runfold.erasure.receipt import Receipt, Removed, SignedReceipt, remains, sign, through
from runfold.ids import uuid7
from runfold.settings import Settings
from runfold.store.database import connect
from runfold_schemas.erasures import subject_of
from runfold_schemas.errors import InvalidIdError


class Erased(NamedTuple):
    """A finished erasure. The ids are not in the receipt, because they may name the user."""

    signed: SignedReceipt
    sessions: list[str]
    runs: list[str]


async def erase_user(
    settings: Settings, connection: LogConnection, user: str, *, report: Report = lambda _: None
) -> Erased:
    """Erases all data of a user, and returns when nothing is left that can be deleted. It goes on
    where an earlier call was killed. A call that finds nothing returns the last receipt.

    Raises `InvalidIdError`, `UnavailableError` and `ConfigurationError`.
    """
    if not user:
        raise InvalidIdError("sessions without a user belong to nobody: name a user", name="user", value="")
    subject, began_at = subject_of(settings.prefix, user), datetime.now(UTC)
    await keys_in_use(connection)
    last = await last_receipt(connection.settings, subject)
    async with connect(settings.mongo, settings.database) as database:
        eraser = Eraser(connection, database, user=user, subject=subject, report=report)
        await eraser.erase()
    removed = eraser.removed_since(last.receipt.finished_at if last else None)
    signed = last
    if signed is None or removed != Removed():
        is_encrypted = connection.sealing is not None and not eraser.traces.has_clear
        has_archive = settings.archive_url is not None or eraser.is_archived
        receipt = _receipt(
            settings, subject, began_at, removed, is_encrypted=is_encrypted, has_archive=has_archive
        )
        signed = sign(receipt, settings.signing_keys)
        await publish(connection, signed)
    traces = eraser.traces
    runs = {*(session.run_id for session in traces.all_sessions), *(run.run_id for run in traces.erased_runs)}
    return Erased(signed, sorted(traces.session_ids), sorted(runs))


def _receipt(
    settings: Settings,
    subject: str,
    began_at: datetime,
    removed: Removed,
    *,
    is_encrypted: bool,
    has_archive: bool,
) -> Receipt:
    finished_at = datetime.now(UTC)
    kept = timedelta(seconds=settings.archive_erase_seconds) if has_archive else None
    return Receipt(
        erasure_id=str(uuid7()),
        tenant=settings.prefix,
        subject=subject,
        began_at=began_at,
        finished_at=finished_at,
        encrypted=is_encrypted,
        removed=removed,
        through=through(finished_at, archive=kept),
        remains=remains(settings.prefix, removed, is_encrypted=is_encrypted),
    )
