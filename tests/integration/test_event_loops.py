"""Sessions and memories in any number of event loops and threads, one after the other and at once.

The scenarios are a program of their own (tests/event_loops.py), because warnings may appear as late
as a program's end.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.ingesting import is_ready
from tests.processes import environment, until
from tests.querying import Projected, served

from runfold.api.app import build_app
from runfold.settings import Settings

ROOT = Path(__file__).parents[2]
SECONDS = 240
"""The scenarios take a twentieth of this on a quiet machine. A lock that is never released takes
for ever.
"""


@pytest.fixture(scope="module")
async def url(settings: Settings, stored: Projected) -> AsyncIterator[str]:
    async with served(build_app(settings)) as client:
        await until(lambda: is_ready(client), what="the API's connection to Kafka")
        yield str(client.base_url)


@pytest.fixture(params=["direct", "over_http"])
def where(request: pytest.FixtureRequest, settings: Settings, stored: Projected) -> dict[str, Any]:
    """What a session of this mode is opened with."""
    if request.param == "over_http":
        return {"url": request.getfixturevalue("url")}
    return {name: str(getattr(settings, name)) for name in ("kafka", "mongo", "prefix", "database")}


async def test_sessions_and_memories_work_in_any_loop_and_leave_no_warning(
    where: dict[str, Any], settings: Settings
):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "default", "-W", "ignore::DeprecationWarning"),
        *("-m", "tests.event_loops", json.dumps(where)),
        cwd=ROOT,
        env=os.environ | environment(settings),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS):
        _, errors = await process.communicate()

    assert errors.decode() == ""
    assert process.returncode == 0
