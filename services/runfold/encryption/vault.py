"""A key of HashiCorp Vault's transit engine: `vault://host:8200/v1/transit/keys/name`. The token is
that of the environment, in `VAULT_TOKEN` or the file that `VAULT_TOKEN_FILE` names.
"""

import json
import os
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from functools import partial
from pathlib import Path
from typing import Final

from runfold.encryption.key_server import ANSWER_SECONDS, answer_of
from runfold_schemas.errors import ConfigurationError, UnavailableError

_ANSWER_BYTES_MAX: Final = 1024 * 1024
_REFUSALS: Final = frozenset({400, 401, 403, 404})


class VaultKey:
    """A `Wrapping` by Vault. `vault+http://` is for a Vault on this machine, without TLS."""

    def __init__(self, url: str) -> None:
        self.name = url
        scheme, _, rest = url.partition("://")
        mount, _, name = rest.rpartition("/keys/")
        if not mount or not name:
            raise ConfigurationError("a key of Vault is vault://host/v1/MOUNT/keys/NAME")
        self._base = f"{'http' if scheme == 'vault+http' else 'https'}://{mount}"
        self._key = name

    async def wrap(self, key: bytes) -> bytes:
        return await answer_of("Vault", partial(self._wrap, key))

    async def unwrap(self, wrapped: bytes) -> bytes:
        return await answer_of("Vault", partial(self._unwrap, wrapped))

    def _wrap(self, key: bytes) -> bytes:
        return self._post("encrypt", plaintext=b64encode(key).decode())["ciphertext"].encode()

    def _unwrap(self, wrapped: bytes) -> bytes:
        answer = self._post("decrypt", ciphertext=wrapped.decode(errors="replace"))
        return b64decode(answer["plaintext"], validate=True)

    def _post(self, action: str, **body: str) -> dict[str, str]:
        request = urllib.request.Request(  # noqa: S310  # the URL is the operator's, and http or https
            f"{self._base}/{action}/{self._key}",
            data=json.dumps(body).encode(),
            headers={"X-Vault-Token": _token(), "Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                data: dict[str, str] = json.loads(answer.read(_ANSWER_BYTES_MAX))["data"]
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _REFUSALS:
                raise ConfigurationError(
                    f"Vault refuses to {action} with {self._key}: {error.code}"
                ) from error
            raise UnavailableError("Vault", reason=f"it answers {error.code}") from error
        return data


def _token() -> str:
    """Read at each use, because Vault's agent renews it."""
    if path := os.environ.get("VAULT_TOKEN_FILE"):
        return Path(path).read_text().strip()
    if token := os.environ.get("VAULT_TOKEN"):
        return token
    raise ConfigurationError("a key of Vault needs VAULT_TOKEN or VAULT_TOKEN_FILE")
