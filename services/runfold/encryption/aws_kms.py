"""A key of AWS KMS: `aws-kms:` and its id, alias or ARN. Credentials and region are those of the
process, as for every program of AWS. The extra `aws` has the package.
"""

from contextlib import closing
from typing import Any, Final

from runfold.encryption.key_server import ANSWER_SECONDS, answer_of
from runfold_schemas.errors import ConfigurationError, UnavailableError

_CONTEXT: Final = {"runfold": "tenant key"}
_SERVER: Final = "AWS KMS"
_REFUSALS: Final = frozenset(
    {
        "AccessDeniedException",
        "DisabledException",
        "IncorrectKeyException",
        "InvalidCiphertextException",
        "InvalidSignatureException",
        "KMSInvalidStateException",
        "NotFoundException",
        "UnrecognizedClientException",
    }
)


class KmsKey:
    """A `Wrapping` by AWS KMS."""

    def __init__(self, key_id: str) -> None:
        self.name = key_id
        self._key_id = key_id

    async def wrap(self, key: bytes) -> bytes:
        return await answer_of(_SERVER, lambda: self._request("encrypt", Plaintext=key)["CiphertextBlob"])

    async def unwrap(self, wrapped: bytes) -> bytes:
        return await answer_of(_SERVER, lambda: self._request("decrypt", CiphertextBlob=wrapped)["Plaintext"])

    def _request(self, action: str, **arguments: bytes) -> dict[str, bytes]:
        try:
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  # of the extra `aws`
        except ImportError as error:
            raise ConfigurationError("a key of AWS KMS needs the extra `aws`") from error
        try:
            # Calls are rare, so no connection is kept.
            with closing(_new_client()) as client:
                call = getattr(client, action)
                answer: dict[str, bytes] = call(KeyId=self._key_id, EncryptionContext=_CONTEXT, **arguments)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in _REFUSALS:
                raise ConfigurationError(f"AWS KMS refuses to {action}: {code}") from error
            raise UnavailableError(_SERVER, reason=str(error)[:200]) from error
        except BotoCoreError as error:
            raise UnavailableError(_SERVER, reason=str(error)[:200]) from error
        return answer


def _new_client() -> Any:
    from botocore.config import Config  # noqa: PLC0415  # takes 0.3 s to import
    from botocore.session import Session  # noqa: PLC0415

    config = Config(connect_timeout=ANSWER_SECONDS, read_timeout=ANSWER_SECONDS, retries={"max_attempts": 1})
    return Session().create_client("kms", config=config)
