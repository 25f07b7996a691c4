"""The keys by which a tenant's contents are encrypted, as an erasure needs them."""

from collections.abc import Collection

from runfold.client.connection import LogConnection
from runfold.encryption.key_ring import keys_topic
from runfold.log.compacted import read_all
from runfold.log.reader import LogGoneError
from runfold_schemas.errors import ConfigurationError


async def keys_in_use(connection: LogConnection) -> Collection[str]:
    """The ids of all keys of the tenant that are not destroyed. Raises `UnavailableError`, and
    `ConfigurationError` if there are keys and this process cannot say whose they are.
    """
    try:
        ring, _ = await read_all(connection.settings, keys_topic(connection.topics))
    except LogGoneError:
        return ()
    keys = frozenset(ring.key_ids)
    if keys and connection.sealing is None:
        raise ConfigurationError(
            f"{connection.topics.keys} has keys, and this process cannot tell those of the user: set"
            " RUNFOLD_ENCRYPTION_KEY"
        )
    return keys
