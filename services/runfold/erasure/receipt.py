"""The receipt of an erasure: what was deleted, when the last copies are gone, and what remains.

A receipt names the user by a hash. It is signed with the key of evidence, if one is configured.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field

from runfold.erasure.dead_letters import COMPACTION_HOURS
from runfold.evidence.keys import read_keys
from runfold_schemas.erasures import SubjectErased

CACHES: Final = timedelta(seconds=60)
"""How long a process may hold what it has read."""

_FILES: Final = timedelta(minutes=5)
"""Kafka removes the files of a deleted topic after one minute, by its default."""

_KEPT_MINUTES: Final = 10
"""How long a service repeats an answer (`http/idempotency`)."""

_PLACES: Final = timedelta(hours=2)
"""MongoDB removes the ids of deleted documents an hour after their deletion, and looks each
minute.
"""

CATALOG_HOURS: Final = 48
"""After this time Kafka has compacted the catalog, if the partition has got a further record."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Removed(_Model):
    """The numbers of things that were deleted."""

    sessions: int = 0
    runs: int = Field(0, description="Runs without the own runs of sessions and logs of generations.")
    generation_logs: int = 0
    states: int = Field(0, description="Apps with `user:` state of the user.")
    memories: int = Field(0, description="With all their revisions and vectors.")
    dead_letters: int = 0
    keys: int = Field(0, description="Keys that the last call destroyed. 0 without encryption.")


class Through(_Model):
    """The times from which on nothing is left in these places."""

    caches: datetime = Field(description="Caches of services.")
    kafka_files: datetime = Field(description="Files of the deleted topics, by Kafka's default.")
    documents: datetime = Field(description="Ids of deleted documents in MongoDB.")
    compaction: datetime = Field(
        description="The catalog, dead letters and destroyed keys: the time of compaction, if their"
        " partitions get a further record."
    )
    archive: datetime | None = Field(
        None, description="Files of the archive. Null in receipts of installations without one."
    )


class Remaining(_Model):
    """Something of the user that is still there afterwards."""

    where: str
    what: str
    until: str


class Receipt(_Model):
    """What is signed."""

    format: Literal["runfold-erasure-1"] = "runfold-erasure-1"
    erasure_id: str
    tenant: str
    subject: str = Field(description="The hash that stands for the user.")
    began_at: datetime
    finished_at: datetime
    encrypted: bool = Field(description="Whether all that remains of the contents is encrypted.")
    removed: Removed
    through: Through
    remains: list[Remaining]


class SignedReceipt(NamedTuple):
    """A receipt with the text that was signed."""

    receipt: Receipt
    text: str
    signature: str | None
    public_key: str | None

    @classmethod
    def of(cls, event: SubjectErased) -> "SignedReceipt":
        """The receipt in an event. Raises `ValueError`."""
        receipt = Receipt.model_validate_json(event.receipt)
        return cls(receipt, event.receipt, event.signature, event.public_key)


def sign(receipt: Receipt, keys: Path | None) -> SignedReceipt:
    """The receipt, signed with the first private key of the file, if there is one. Raises
    `ConfigurationError`.
    """
    text = receipt.model_dump_json()
    found = read_keys(keys) if keys is not None else None
    if found is None or found.signing is None:
        return SignedReceipt(receipt, text, None, None)
    return SignedReceipt(receipt, text, found.signing.sign(text.encode()).hex(), found.trusted[0])


def has_valid_signature(text: str, signature: str, public_key: str) -> bool:
    """Whether the key has signed the text of a receipt."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(
            bytes.fromhex(signature), text.encode()
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def through(finished_at: datetime, *, archive: timedelta | None) -> Through:
    """The times after an erasure. `archive` is how long files of the archive keep deleted runs."""
    return Through(
        caches=finished_at + CACHES,
        kafka_files=finished_at + _FILES,
        documents=finished_at + _PLACES,
        compaction=finished_at + timedelta(hours=max(CATALOG_HOURS, COMPACTION_HOURS)),
        archive=finished_at + archive if archive is not None else None,
    )


def remains(prefix: str, removed: Removed, *, is_encrypted: bool) -> list[Remaining]:
    """What no call deletes, where it is, and until when."""
    return [*_in_shared_topics(prefix, removed, is_encrypted=is_encrypted), *_everywhere(prefix)]


def _in_shared_topics(prefix: str, removed: Removed, *, is_encrypted: bool) -> Sequence[Remaining]:
    for_ever = "for ever: the topic keeps the order of all changes, and is deleted with the tenant"
    clear = "" if is_encrypted else ", and in clear "
    rest = "; the rest is encrypted by keys that were destroyed" if is_encrypted else ""
    listed = []
    if removed.sessions or removed.states:
        what = "labels, display names and `user:` values"
        listed.append(
            Remaining(
                where=f"Kafka, {prefix}.sessions",
                what=f"the user's id and the ids of their sessions{clear and clear + what}{rest}",
                until=for_ever,
            )
        )
    if removed.memories:
        listed.append(
            Remaining(
                where=f"Kafka, {prefix}.memories",
                what=f"the scopes of the user's memories{clear and clear + 'their facts'}{rest}",
                until=for_ever,
            )
        )
    if removed.dead_letters:
        listed.append(
            Remaining(
                where=f"Kafka, {prefix}.dead-letters",
                what="records of the user that could not be decoded",
                until="compaction",
            )
        )
    return listed


def _everywhere(prefix: str) -> Sequence[Remaining]:
    ids = "the ids of deleted runs, so that they are not used again"
    return [
        Remaining(
            where=f"Kafka, {prefix}.runs; MongoDB, runs; {prefix}.evidence; archive, deleted_runs",
            what=ids,
            until="for ever",
        ),
        Remaining(
            where=f"Kafka, {prefix}.runs",
            what="user and session of deleted runs, in earlier records",
            until="compaction",
        ),
        Remaining(
            where="MongoDB, sessions and values",
            what="ids of deleted sessions, and keys of deleted `user:` values",
            until="an hour",
        ),
        Remaining(
            where="memory of services",
            what="answers to requests with an Idempotency-Key, which only their sender gets",
            until=f"{_KEPT_MINUTES} minutes after the request",
        ),
        Remaining(
            where="MongoDB, oplog and journal",
            what="earlier forms of deleted documents",
            until="MongoDB overwrites them",
        ),
        Remaining(
            where="backups, snapshots and replicas elsewhere; versions of objects in the blob store",
            what="whatever they copied",
            until="their own retention ends",
        ),
        Remaining(
            where="audit log, logs of services and of gateways",
            what="ids in requests, among them the user's",
            until="their own retention ends",
        ),
        Remaining(
            where="`app:` state, banks, memories and sessions of others",
            what="what somebody wrote about the user there",
            until="it is deleted there: it belongs to the tenant or to others",
        ),
    ]
