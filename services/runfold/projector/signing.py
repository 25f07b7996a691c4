"""Signs the heads of the logs whose catalog partitions a projector owns.

    run states, shared topics --> leaves --> tree --> topic of evidence --> bucket

A head is signed again when its log has moved. MongoDB says which have, so a signer that dies leaves
nothing behind: the next one signs what is unsigned. A head may be signed twice, which does no harm.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import aclosing
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import Counter, Gauge

from runfold.evidence.bucket import Copied, EvidenceBucket, bucket_of
from runfold.evidence.followed import FollowedChain
from runfold.evidence.keys import read_keys
from runfold.evidence.log import evidence_of
from runfold.evidence.trees import LEAVES_MAX, Before, Leaf, sign
from runfold.log.admin import LogAdmin
from runfold.log.publisher import Outgoing, Publisher
from runfold.log.reader import end_offset, read
from runfold.log.settings import LogSettings
from runfold.projector.active import chain_of_pages
from runfold.projector.quarantine import defect
from runfold.settings import Settings
from runfold.store.database import Database
from runfold.store.pages import PageStore
from runfold.store.signing import SigningStore, UnsignedRun
from runfold_projections.chain import head_of
from runfold_schemas.errors import DamagedError, UnavailableError
from runfold_schemas.topics import Partition

_OLD_SHARE: Final = 0.1
"""The share of the time in which chains are made of runs that an earlier version has stored."""

_OLD_MAX: Final = 100

_COPIER: Final = 0
"""The owner of this catalog partition copies the trees of all projectors into the bucket."""

_SIGNED = Counter("runfold_signed_heads", "Heads of logs that this projector has signed")
_SIGNED_AT = Gauge("runfold_signed_timestamp_seconds", "When this projector last had everything signed")

_log = logging.getLogger(__name__)


async def sign_repeatedly(
    settings: Settings, database: Database, edition: str, *, partitions: Callable[[], Collection[int]]
) -> None:
    """Endless, if there is a key to sign with: signs the heads of the logs of these catalog
    partitions. Raises `ConfigurationError`, `UnavailableError`.
    """
    log = settings.log("runfold/projector")
    if _key_of(settings) is None:
        return
    async with LogAdmin.connect(log) as admin:
        await admin.create_evidence_topic()
    async with Publisher.connect(log) as publisher:
        signer = head_signer_of(settings, log, database, edition, publisher=publisher, partitions=partitions)
        if signer is not None:
            await signer.work(seconds=settings.signing_seconds)


def head_signer_of(
    settings: Settings,
    log: LogSettings,
    database: Database,
    edition: str,
    *,
    publisher: Publisher,
    partitions: Callable[[], Collection[int]],
) -> "HeadSigner | None":
    """A signer for these catalog partitions, if there is a key to sign with. The topic of evidence
    must exist.
    """
    key = _key_of(settings)
    if key is None:
        return None
    return HeadSigner(
        log,
        key,
        publisher,
        pages=PageStore(database, edition),
        store=SigningStore(database, edition),
        partitions=partitions,
        bucket=bucket_of(settings),
    )


def _key_of(settings: Settings) -> Ed25519PrivateKey | None:
    return read_keys(settings.signing_keys).signing if settings.signing_keys is not None else None


class HeadSigner:
    """Signs for one projector."""

    def __init__(
        self,
        settings: LogSettings,
        key: Ed25519PrivateKey,
        publisher: Publisher,
        *,
        pages: PageStore,
        store: SigningStore,
        partitions: Callable[[], Collection[int]],
        bucket: EvidenceBucket | None = None,
    ) -> None:
        self._settings = settings
        self._topics = settings.topics
        self._key = key
        self._publisher = publisher
        self._pages = pages
        self._store = store
        self._partitions = partitions
        self._bucket = bucket
        self._copied: int | None = None
        self._followed: dict[Partition, FollowedChain] = {}
        self._damaged: set[str] = set()

    async def work(self, *, seconds: float) -> None:
        """Endless: signs what is new, every `seconds`."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.sign_new(old_seconds=seconds * _OLD_SHARE)
            except Exception as error:  # noqa: BLE001  # `defect` raises errors of servers again
                _log.error("signing failed, and is tried again", exc_info=defect(error))

    async def sign_new(self, *, old_seconds: float = 60.0) -> None:
        """Signs the heads of all logs that have moved."""
        if not (partitions := sorted(self._partitions())):
            return
        await self._sign_shared(partitions)
        # Runs that are written meanwhile come with the next round.
        while True:
            runs = await self._store.unsigned(partitions, has_chain=True, limit=LEAVES_MAX)
            await self._sign_runs(runs, old_seconds)
            if len(runs) < LEAVES_MAX:
                break
        old = await self._store.unsigned(partitions, has_chain=False, limit=_OLD_MAX)
        await self._sign_runs(old, old_seconds)
        if self._bucket is not None and _COPIER in partitions:
            try:
                await self._copy(self._bucket)
            except UnavailableError as error:
                _log.warning("signed trees are not copied yet: %s", error)
        _SIGNED_AT.set_to_current_time()

    async def _sign_shared(self, partitions: Collection[int]) -> None:
        await self._follow(Partition(topic, number) for topic in self._topics.shared for number in partitions)
        moved = []
        for at, followed in self._followed.items():
            if at.partition in partitions and at.topic in self._topics.shared:
                await followed.catch_up()
                if followed.next_offset > followed.signed:
                    moved.append(followed)
        await self._append([Leaf(each.at, each.next_offset, each.head) for each in moved])
        for each in moved:
            each.signed = each.next_offset
            await self._store.save_chain(each.at, each.stored)

    async def _follow(self, wanted: Iterable[Partition]) -> None:
        new = [at for at in wanted if at not in self._followed]
        for at, stored in (await self._store.chains(new)).items() if new else ():
            self._followed[at] = FollowedChain(self._settings, at, stored)

    async def _sign_runs(self, runs: Collection[UnsignedRun], old_seconds: float) -> None:
        deadline = time.monotonic() + old_seconds
        leaves, signed = [], []
        for run in runs:
            chain = run.chain
            if chain is None:
                chain = await self._chain_of(run) if time.monotonic() < deadline else None
            if chain is not None:
                at = Partition(self._topics.run(run.run_id, run.log_id), 0)
                leaves.append(Leaf(at, run.next_offset, head_of(chain)))
                signed.append(run)
        await self._append(leaves)
        await self._store.mark_signed(signed)

    async def _chain_of(self, run: UnsignedRun) -> bytes | None:
        if run.log_id in self._damaged:
            return None
        try:
            return await chain_of_pages(self._pages, run.log_id, run.next_offset)
        except DamagedError as error:
            self._damaged.add(run.log_id)
            _log.warning("run %s is not signed: %s", run.run_id, error)
            return None

    async def _append(self, leaves: Collection[Leaf]) -> None:
        """Appends a tree of these leaves to the topic of evidence."""
        if not leaves:
            return
        at = evidence_of(self._settings)
        await self._follow([at])
        evidence = self._followed[at]
        await evidence.catch_up()
        before = Before(offset=evidence.next_offset, head=evidence.head.hex())
        tree = sign(
            self._key,
            sorted(leaves, key=lambda leaf: leaf.text),
            prefix=self._settings.prefix,
            before=before,
        )
        record = Outgoing(key=None, value=tree.model_dump_json().encode(), headers=[])
        await self._publisher.wait(await self._publisher.send(at.topic, record, partition=at.partition))
        await self._store.save_chain(at, evidence.stored)
        _SIGNED.inc(len(leaves))

    async def _copy(self, bucket: EvidenceBucket) -> None:
        """Copies the trees of all projectors that the bucket does not have."""
        topic = evidence_of(self._settings).topic
        if self._copied is None:
            self._copied = await self._first_to_copy(bucket, await end_offset(self._settings, topic))
        reading = read(self._settings, topic, first_offset=self._copied)
        async with aclosing(reading):
            async for records in reading:
                for record in records:
                    await bucket.put(Copied(record.offset, record.value or b""))
                    self._copied = record.offset + 1

    async def _first_to_copy(self, bucket: EvidenceBucket, end: int) -> int:
        """An offset from which on the bucket may lack trees. Trees are copied in order."""
        step = 1
        while step <= end:
            if await bucket.has(end - step):
                return end - step
            step *= 2
        return 0
