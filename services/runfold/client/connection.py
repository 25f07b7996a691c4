"""The connection to the log that runs, sessions and memories share: topics, publisher and
catalog.
"""

from contextlib import AsyncExitStack
from typing import Self, TypeVar

from runfold.client.appender import Appender
from runfold.client.records import check_size, outgoing
from runfold.client.run import Run
from runfold.client.run_log import RunLog
from runfold.log.admin import LogAdmin
from runfold.log.catalog import CatalogView, life_record, partition_of
from runfold.log.publisher import NOT_CONNECTED, Publisher
from runfold.log.settings import LogSettings
from runfold_schemas.catalog import Life
from runfold_schemas.events import AnyEvent
from runfold_schemas.topics import Topics

PartT = TypeVar("PartT")


class LogConnection:
    """A connection to Kafka. Use it as an async context manager.

    Before it is entered, and after it is left, its parts raise `RuntimeError`.
    """

    def __init__(self, settings: LogSettings) -> None:
        self.settings = settings
        self.topics = Topics(settings.prefix)
        self._stack = AsyncExitStack()
        self._admin: LogAdmin | None = None
        self._publisher: Publisher | None = None
        self._catalog: CatalogView | None = None

    async def __aenter__(self) -> Self:
        try:
            self._admin = await self._stack.enter_async_context(LogAdmin.connect(self.settings))
            self._publisher = await self._stack.enter_async_context(Publisher.connect(self.settings))
            self._catalog = await self._stack.enter_async_context(CatalogView.connect(self.settings))
            await self._admin.check_broker()
            await self._admin.create_shared_topics()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    async def _close(self) -> None:
        self._admin = self._publisher = self._catalog = None
        await self._stack.aclose()

    def entered(self) -> Self:
        """This connection. Raises `RuntimeError` if it is not entered."""
        _entered(self._catalog)
        return self

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
        return Run(self.settings, self.catalog, self.publisher, life, turn_id=turn_id, is_new=is_new)

    def appender_of(self, life: Life, *, is_new: bool = False) -> Appender:
        """Appends to the log of a life without forwarding."""
        return Appender(self.settings, self.catalog, self.publisher, life, is_new=is_new)

    def log_of(self, life: Life) -> RunLog:
        """Reads the log of a life."""
        return RunLog(self.settings, self.topics.run(life.run_id, life.log_id), life.run_id)

    async def open_topic(self, topic: str, opening: AnyEvent) -> None:
        """Creates the topic of a life of a run, with `opening` as its first event. The catalog does
        not list the run yet.
        """
        record = outgoing(opening, source=self.settings.source)
        check_size([record])
        await self.admin.create_run_topic(topic)
        await self.publisher.prime([topic])
        await self.publisher.wait(await self.publisher.send(topic, record))

    async def announce(self, life: Life) -> None:
        """Lists the run in the catalog."""
        announced = await self.publisher.send(
            self.topics.catalog, life_record(life), partition=partition_of(life.run_id)
        )
        await self.publisher.wait(announced)

    async def delete_topic(self, topic: str) -> None:
        """Deletes a topic that the catalog does not list."""
        await self.publisher.forget(topic)
        await self.admin.delete_topics([topic])


def _entered(part: PartT | None) -> PartT:
    if part is None:
        raise RuntimeError(NOT_CONNECTED)
    return part
