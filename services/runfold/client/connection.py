"""The connection to the log that runs, sessions and memories share: topics, publisher and
catalog.
"""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar

from runfold.blobs.log_blobs import LogBlobs
from runfold.blobs.store import BlobStore
from runfold.client.appender import Appender
from runfold.client.records import check_size, outgoing
from runfold.client.run import Fork, Run
from runfold.client.run_log import Reveal, RunLog
from runfold.encryption.seal import Seal
from runfold.log.admin import TOPICS_MAX, LogAdmin
from runfold.log.catalog import bell_record, life_record, partition_of, skip_partition, skip_record
from runfold.log.catalog_view import CatalogView
from runfold.log.clients import LogClients
from runfold.log.effect_keys import effect_signer_of
from runfold.log.encoding import encoded_exactly
from runfold.log.fetch_answer import SkippedAt
from runfold.log.leaders import Leaders
from runfold.log.opening_groups import OpeningGroups
from runfold.log.publisher import NOT_CONNECTED, Publisher
from runfold.log.reopening import CatalogReopener
from runfold.log.settings import LogSettings
from runfold_schemas.catalog import Life, Skip
from runfold_schemas.errors import ConfigurationError, UnavailableError
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import Partition, Topics

if TYPE_CHECKING:
    from runfold.encryption.sealing import Sealing

PartT = TypeVar("PartT")

_GROUP_SECONDS: Final = 5.0
"""How long the creation of a topic waits at most for topics before it."""


_FORKS_MAX: Final = 4


class LogConnection:
    """A connection to Kafka, over `clients` and with the connected `sealing` if given. Use it as an
    async context manager.

    Before it is entered, and after it is left, its parts raise `RuntimeError`.
    """

    def __init__(
        self,
        settings: LogSettings,
        *,
        clients: LogClients | None = None,
        sealing: "Sealing | None" = None,
    ) -> None:
        self.settings = settings
        self._clients = clients
        self._shared_sealing = sealing
        self._stack = AsyncExitStack()
        self._admin: LogAdmin | None = None
        self._publisher: Publisher | None = None
        self._catalog: CatalogView | None = None
        self._openings = OpeningGroups(group_max=TOPICS_MAX, wait_seconds=_GROUP_SECONDS)
        self.blobs: BlobStore | None = None
        """The store of large bytes, if one is configured."""
        self.sealing: Sealing | None = None
        """Seals and reveals events, if encryption is configured."""
        self._lacks_key = False
        self.fork: Fork | None = None
        """Forks a run for the verb of that name."""
        self.forking = asyncio.Semaphore(_FORKS_MAX)
        """Held by each fork, because a fork holds a part of its source in memory."""

    async def __aenter__(self) -> Self:
        try:
            self.settings = _with_archive(self.settings)
            self.blobs = blob_store_of(self.settings)
            leaders = None
            if self._clients is not None:
                self._admin, leaders = self._clients.admin(self.settings), self._clients.leaders
            else:
                self._admin = await self._stack.enter_async_context(LogAdmin.connect(self.settings))
                await self._admin.check_broker()
            # Before the others, whose clients would ask for topics that do not exist.
            self.settings = await self._admin.create_shared_topics()
            self._lacks_key = self._admin.has_keys and self.settings.encryption_key is None
            if self._clients is not None:
                self._publisher = self._clients.publisher
            else:
                self._publisher = await self._stack.enter_async_context(Publisher.connect(self.settings))
            self.sealing = await self._open_sealing(self._publisher, leaders)
            self._catalog = await self._stack.enter_async_context(
                CatalogView.connect(self.settings, leaders=leaders)
            )
            reopener = CatalogReopener(
                self.settings, catalog=self._catalog, admin=self._admin, publisher=self._publisher
            )
            self._stack.enter_context(self._publisher.reopening(self.topics.prefix, reopener))
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    async def _close(self) -> None:
        self._admin = self._publisher = self._catalog = self.sealing = None
        await self._stack.aclose()

    def entered(self) -> Self:
        """This connection. Raises `RuntimeError` if it is not entered."""
        _entered(self._catalog)
        return self

    @property
    def topics(self) -> Topics:
        return self.settings.topics

    @property
    def admin(self) -> LogAdmin:
        return _entered(self._admin)

    @property
    def publisher(self) -> Publisher:
        return _entered(self._publisher)

    @property
    def catalog(self) -> CatalogView:
        return _entered(self._catalog)

    def run_of(self, life: Life, *, turn_id: str | None = None, is_new: bool = False) -> Run:
        """The run of a life that is known already. Takes what `Run` takes."""
        return Run(
            self.settings,
            self.catalog,
            self.publisher,
            life,
            turn_id=turn_id,
            is_new=is_new,
            blobs=self.blobs,
            seal=self._seal_of(life),
            reveal=self._reveal,
            fork=self.fork,
        )

    def appender_of(self, life: Life, *, is_new: bool = False) -> Appender:
        """Appends to the log of a life without forwarding."""
        return Appender(
            self.settings,
            self.catalog,
            self.publisher,
            life,
            is_new=is_new,
            blobs=self._blobs_of(life),
            seal=self._seal_of(life),
            reveal=self._reveal,
        )

    async def sealed(self, event: AnyEvent, subject: str, *, is_whole: bool = True) -> AnyEvent:
        """The event as it is stored: sealed by the subject's key if encryption is configured.
        Without `is_whole`, only what folds copy out of the event. Raises `InvalidEventError`, and
        `ConfigurationError` if others seal what this process would store in clear.
        """
        if self.sealing is None:
            self._check_clear()
            return event
        event, _ = encoded_exactly(event)
        return await self.sealing.seal(event, subject, is_whole=is_whole)

    def _seal_of(self, life: Life) -> Seal | None:
        if self.sealing is not None:
            return self.sealing.of_life(life)
        return self._refuse if self._lacks_key else None

    async def _refuse(self, event: AnyEvent, value: bytes, *, subject: str = "") -> tuple[AnyEvent, bytes]:  # noqa: ARG002  # as `Seal`
        self._check_clear()
        return event, value

    def _check_clear(self) -> None:
        """Raises `ConfigurationError` if events are sealed, and this process has no key."""
        if self._lacks_key:
            raise ConfigurationError(
                f"the topic {self.topics.keys} shows that what {self.topics.prefix} stores is encrypted:"
                " set RUNFOLD_ENCRYPTION_KEY (encryption_key) to publish"
            )

    @property
    def _reveal(self) -> Reveal | None:
        return self.sealing.reveal_admitted if self.sealing is not None else None

    async def _open_sealing(self, publisher: Publisher, leaders: Leaders | None) -> "Sealing | None":
        if (shared := self._shared_sealing) is not None:
            await shared.keys.ready()
            return shared
        if self.settings.encryption_key is None:
            return None
        try:
            from runfold.encryption.sealing import open_sealing  # noqa: PLC0415  # needs a package of its own
        except ImportError as error:
            raise ConfigurationError(
                "encryption_key needs the package cryptography: install it, or the extra `server`"
            ) from error
        sealing = await self._stack.enter_async_context(
            open_sealing(self.settings, publisher, leaders=leaders)
        )
        await sealing.keys.ready()
        return sealing

    def _blobs_of(self, life: Life) -> LogBlobs | None:
        return LogBlobs(self.blobs, life.log_id) if self.blobs is not None else None

    def log_of(self, life: Life) -> RunLog:
        """Reads the log of a life."""
        topic = self.topics.run(life.run_id, life.log_id)
        return RunLog(
            self.settings,
            topic,
            life.run_id,
            segments=self.catalog.segments,
            skips=partial(self.catalog.skips_of, life.run_id, topic),
            reveal=self._reveal,
        )

    async def skipped_in(self, partitions: Iterable[Partition]) -> SkippedAt:
        """The offsets of partitions of shared topics that an operator skipped. Raises
        `UnavailableError`.
        """
        await self.catalog.read_skips({at.partition for at in partitions})
        return self.catalog.skipped

    async def open_topic(self, topic: str, opening: AnyEvent) -> None:
        """Creates the topic of a life of a run, with `opening` as its first event. The catalog does
        not list the run yet. Raises `UnavailableError`, also if the topic has an earlier record.
        """
        signer = effect_signer_of(self.settings.effect_keys, topic)
        record = outgoing(opening, source=self.settings.source, signer=signer)
        check_size([record])
        async with self._openings.join():
            await self.admin.create_run_topic(topic)
            await self.publisher.prime(topic)
            written = await self.publisher.wait(await self.publisher.send(topic, record))
        if written.offset > 0:
            # A producer may write to topics that it did not create, and could open this run for a
            # session of others.
            await self.delete_topic(topic)
            raise UnavailableError("Kafka", reason=f"another program wrote to {topic} before its opening")

    async def announce(self, life: Life) -> None:
        """Lists the run in the catalog."""
        partition = partition_of(self.topics, life.run_id)
        announced = await self.publisher.send(self.topics.catalog, life_record(life), partition=partition)
        self.catalog.note_announced(partition, (await self.publisher.wait(announced)).offset)

    async def last_topic(self, life: Life) -> str:
        """The topic that takes the next events of a run, for a program that may not read the
        catalog. If the log was sealed, this is another one than the first, and exists afterwards.
        """
        entry = await self.catalog.look_up_segments(life.run_id)
        if entry is None or entry.log_id != life.log_id:
            return self.topics.run(life.run_id, life.log_id)
        topic = self.topics.segment(life.run_id, life.log_id, entry.base)
        await self.admin.create_run_topic(topic)
        return topic

    async def ring(self, run_id: str) -> None:
        """Wakes the projector for a run, because a program has appended events that rings itself no
        bell.
        """
        partition = partition_of(self.topics, run_id)
        await self.publisher.wait(
            await self.publisher.send(self.topics.catalog, bell_record(run_id), partition=partition)
        )

    async def skip(self, skip: Skip) -> None:
        """Lets records count for nothing, for every reader and for ever. Returns when the decision
        is durable. Repeating it changes nothing.
        """
        partition = skip_partition(self.topics, skip)
        await self.publisher.wait(
            await self.publisher.send(self.topics.catalog, skip_record(skip), partition=partition)
        )

    async def delete_topic(self, topic: str) -> None:
        """Deletes a topic that the catalog does not list."""
        await self.publisher.forget(topic)
        await self.admin.delete_topics([topic])


def blob_store_of(settings: LogSettings) -> BlobStore | None:
    """The configured blob store. Raises `ConfigurationError`."""
    if settings.blobs is None:
        return None
    return BlobStore.connect(
        settings.blobs,
        prefix=settings.prefix,
        bytes_min=settings.blob_bytes_min,
        bytes_max=settings.blob_bytes_max,
    )


def _with_archive(settings: LogSettings) -> LogSettings:
    """The settings with the archive that they name. Raises `ConfigurationError`."""
    if settings.archive_url is None or settings.archived is not None:
        return settings
    from runfold.archive.opening import opened  # noqa: PLC0415  # few clients need it

    return settings.with_archived(opened(settings.archive_url, settings.prefix))


def _entered(part: PartT | None) -> PartT:
    if part is None:
        raise RuntimeError(NOT_CONNECTED)
    return part
