"""A MongoDB that asks for passwords, and gives rights on single databases."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from pymongo import AsyncMongoClient
from tests.processes import until

from runfold.local import Service, free_port, ready_line
from runfold.local.mongo import mongo_service
from runfold.store.replica_set import REPLICA_SET

_PASSWORD: Final = "a-password-of-tests"
_ROOT: Final = "root"
_USER: Final = "runfold"


class GuardedMongo:
    """The user of `url` may use what was granted."""

    def __init__(self, address: str) -> None:
        self.url = f"mongodb://{_USER}:{_PASSWORD}@{address}/?replicaSet={REPLICA_SET}"
        self._root_url = f"mongodb://{_ROOT}:{_PASSWORD}@{address}/?directConnection=true"

    async def is_primary(self) -> bool:
        async with AsyncMongoClient[dict[str, Any]](self._root_url) as client:
            return bool((await client.admin.command("hello"))["isWritablePrimary"])

    async def grant(self, databases: Sequence[str]) -> None:
        """Lets the user write to these databases, as deploy/README.md says."""
        roles = [{"role": "readWrite", "db": name} for name in databases]
        async with AsyncMongoClient[dict[str, Any]](self._root_url) as client:
            await client.admin.command("grantRolesToUser", _USER, roles=roles)


@asynccontextmanager
async def guarded_mongo(folder: Path) -> AsyncIterator[GuardedMongo]:
    """A MongoDB with its data in the folder. Its user has no rights yet."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    guarded = GuardedMongo(address)
    service = mongo_service(data_dir=folder, port=port, cache_gb=0.25)
    await service.start()
    try:
        async with AsyncMongoClient[dict[str, Any]](f"mongodb://{address}/?directConnection=true") as client:
            await client.admin.command("createUser", _ROOT, pwd=_PASSWORD, roles=["root"])
            await client.admin.command("createUser", _USER, pwd=_PASSWORD, roles=[])
        await service.stop()
        key = folder / "members.key"
        key.write_text("a key that only members of a replica set know")
        key.chmod(0o600)
        listening = ready_line("Waiting for connections")

        async def ready(started: Service) -> None:
            await listening(started)
            await until(guarded.is_primary, what="the primary")

        assert not callable(service.argv)
        service.argv, service.ready = [*service.argv, f"--keyFile={key}"], ready
        await service.start()
        yield guarded
    finally:
        await service.stop()
