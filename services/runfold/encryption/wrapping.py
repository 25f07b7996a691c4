"""The operator's key, which wraps the keys of the tenant: in a file, in Vault, or in AWS KMS."""

import re
from typing import Final, Protocol
from urllib.parse import urlsplit

from runfold_schemas.errors import ConfigurationError

KINDS: Final = ("file", "vault", "vault+http", "aws-kms")

KEY_URL: Final = re.compile(r"file:/.+|vault(\+http)?://[^/]+/.+|aws-kms:.+")


class Wrapping(Protocol):
    """Wraps and unwraps keys. Both raise `UnavailableError` if the server with the key does not
    answer, and `ConfigurationError` if it refuses.
    """

    name: str
    """The name of the key, for people."""

    async def wrap(self, key: bytes) -> bytes: ...

    async def unwrap(self, wrapped: bytes) -> bytes: ...


def wrapping_of(url: str) -> Wrapping:
    """The key that a URL names. Raises `ConfigurationError`."""
    # Each kind is imported when it is used, because the AWS package is a large one.
    match urlsplit(url).scheme:
        case "file":
            from runfold.encryption.key_file import KeyFile  # noqa: PLC0415

            return KeyFile(url.removeprefix("file:"))
        case "vault" | "vault+http":
            from runfold.encryption.vault import VaultKey  # noqa: PLC0415

            return VaultKey(url)
        case "aws-kms":
            from runfold.encryption.aws_kms import KmsKey  # noqa: PLC0415

            return KmsKey(url.removeprefix("aws-kms:"))
        case scheme:
            raise ConfigurationError(f"{scheme!r} is no kind of encryption key; there are {', '.join(KINDS)}")
