"""Kafka clients that several prefixes share, so that a process of many tenants has one set of
connections.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from runfold.log.admin import LogAdmin
from runfold.log.ends import LogEnds
from runfold.log.leaders import Leaders
from runfold.log.publisher import Publisher
from runfold.log.settings import LogSettings
from runfold.log.topic_listing import TopicListing


@dataclass(frozen=True)
class LogClients:
    """The clients of one process. What they return for a prefix needs no closing."""

    publisher: Publisher
    leaders: Leaders
    listing: TopicListing
    _admin: LogAdmin

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: LogSettings) -> AsyncIterator["LogClients"]:
        """Clients, open for the length of the block. Raises `UnavailableError`, and
        `ConfigurationError` if a broker has a setting that Runfold cannot work with.
        """
        async with LogAdmin.connect(settings) as admin:
            await admin.check_broker()
            async with Publisher.connect(settings) as publisher, Leaders.connect(settings) as leaders:
                yield cls(publisher, leaders, TopicListing(leaders), admin)

    def admin(self, settings: LogSettings) -> LogAdmin:
        """Creates and deletes the topics of the prefix in `settings`."""
        return self._admin.with_settings(settings)

    def ends(self, settings: LogSettings, *, timeout_seconds: float | None = None) -> LogEnds:
        """Reads the ends of the topics of the prefix in `settings`."""
        seconds = timeout_seconds or settings.publish_timeout_seconds
        return LogEnds(settings, self.leaders, timeout_seconds=seconds, listing=self.listing)
