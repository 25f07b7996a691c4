"""An erasure in a tenant that is dropped meanwhile."""

import asyncio
from uuid import uuid4

import pytest
from tests.processes import until
from tests.querying import projected

from runfold import Runfold
from runfold.erasure.erasure import erase_user
from runfold.log.admin import LogAdmin
from runfold.log.publisher import Publisher
from runfold.settings import Settings
from runfold.store.database import connect
from runfold.tenants import dropping
from runfold.tenants.administration import TenantAdministration
from runfold_schemas.errors import ConfigurationError


async def no_keys(tenant: str) -> int:
    return 0


async def test_a_drop_ends_an_erasure_that_waits_and_leaves_nothing(
    kafka: str, mongo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropping, "LEAVE_SECONDS", 0.1)
    name = f"t{uuid4().hex[:8]}"
    settings = Settings(kafka=kafka, mongo=mongo, prefix=name, database=name)
    doing: list[str] = []
    async with Publisher.connect(settings.log()) as publisher:
        tenant = await TenantAdministration(settings, publisher).add(f"{name}-acme")
        own = settings.of_tenant(tenant.name, database=tenant.database, partitions=tenant.partitions)
        async with projected(own) as stored:
            session = await stored.runfold.sessions.create(app="shop", user="ann", state={"user:k": 1})

            async def is_stored() -> bool:
                return await stored.pages.end(session.record.log_id) > 0

            await until(is_stored, what="the page")
        async with Runfold.of(own.log()) as runfold:
            erasing = asyncio.create_task(erase_user(own, runfold.connection, "ann", report=doing.append))

            async def waits() -> bool:
                return any("projector" in each for each in doing)

            await until(waits, what="the erasure's wait for a projector")
            await dropping.drop_tenant(
                settings, publisher, tenant.name, revoke_keys=no_keys, report=lambda _: None
            )

            with pytest.raises(ConfigurationError, match="was dropped"):
                await asyncio.wait_for(erasing, 60)
        async with LogAdmin.connect(own.log()) as admin, connect(own.mongo, own.database) as database:
            assert await admin.list_topics() == []
            assert await database.list_collection_names() == []
