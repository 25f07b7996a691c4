"""A key of a shared topic that its owner folds anew."""

import asyncio
from unittest.mock import AsyncMock, MagicMock

from tests.partitions import topics_of

from runfold.log.settings import LogSettings
from runfold.log.shared import deciding
from runfold.projector.shared import SharedTopics
from runfold_schemas.sessions import session_key

KEY = session_key("s")


async def test_a_key_is_folded_anew_only_after_the_fetch_under_way():
    settings = LogSettings(prefix="p", partitions=topics_of().partitions)
    at = deciding(topics_of(), KEY)
    safeguards = MagicMock()
    safeguards.quarantine = AsyncMock()
    safeguards.quarantine.get = MagicMock(return_value=None)
    shared = SharedTopics(settings, *[MagicMock() for _ in range(4)], safeguards=safeguards)
    shared._reached[at] = 1
    retried = AsyncMock()
    shared.retry = retried
    safeguards.quarantine.set_aside_key.side_effect = lambda *_: setattr(
        safeguards.quarantine, "get", MagicMock(return_value="an entry")
    )

    async with shared._locks[at]:
        refolding = asyncio.create_task(shared.refold(KEY))
        await asyncio.sleep(0.01)
        assert not safeguards.quarantine.set_aside_key.called
        assert not retried.called
    await refolding

    safeguards.quarantine.set_aside_key.assert_awaited_once()
    retried.assert_awaited_once_with("an entry")
