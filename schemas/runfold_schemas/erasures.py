"""The kind of the event that says that a user's data was erased, and the hash that stands for the
user.
"""

import hashlib
from typing import Final

from runfold_schemas.data import Data, Subject

_NAME: Final = "runfold-subject-1"


class SubjectErased(Data):
    """The data of a user was erased. The topic `{prefix}.erasures` lists these events."""

    subject: Subject
    receipt: str
    """The receipt: a JSON text, byte for byte as it was signed."""
    signature: str | None = None
    """An Ed25519 signature of the receipt in hexadecimal digits. None if no key was configured."""
    public_key: str | None = None


def subject_of(prefix: str, user: str) -> str:
    """The hash that stands for a user: their id cannot be read from it, but can be compared with
    it.
    """
    return hashlib.sha256(f"{_NAME}\0{prefix}\0{user}".encode(errors="surrogatepass")).hexdigest()
