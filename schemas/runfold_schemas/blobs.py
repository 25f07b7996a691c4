"""References to blobs: bytes of a run that are stored beside its log.

A reference stands in an event in the place of the bytes. As the `url` of an image or a document it
has the form `blob:sha256:<digest>;size=<bytes>`. Within other JSON, for example a block of a
provider, the reference takes the place of a string and also says how the string was written, so
that the string can be restored exactly: `blob:sha256:<digest>;size=<bytes>;as=base64`. Tools and
pages can write such a string too, so it is a reference only if the event lists the digest in the
field `blobs` beside the JSON.

Readers of versions that know no blobs see a URL that no provider fetches, so their folds give the
same outcomes.
"""

import base64
import binascii
import hashlib
import re
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import StringConstraints

Form = Literal["base64", "base64url"]
"""How the string of a blob was written: with which of the two alphabets of base64."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 digest in lower case."""

_REFERENCE: Final = re.compile(
    r"(data:[^,]{0,200};base64,)?blob:sha256:([0-9a-f]{64});size=(0|[1-9][0-9]{0,14})(?:;as=(base64|base64url))?"
)

BLOB_STRING_LENGTH_MAX: Final = 400

_DATA_URL: Final = re.compile(r"data:[^,]{0,200};base64,")


class BlobReference(NamedTuple):
    """The name of a blob: the digest and the number of its bytes."""

    sha256: str
    size: int

    @property
    def url(self) -> str:
        """The reference as the `url` of a part."""
        return f"blob:sha256:{self.sha256};size={self.size}"


class BlobString(NamedTuple):
    """A reference in the place of a string of JSON."""

    reference: BlobReference
    form: Form = "base64"
    prefix: str = ""
    """The beginning of the string, if the string is a data URL."""

    @property
    def text(self) -> str:
        """The string that takes the place."""
        return f"{self.prefix}{self.reference.url};as={self.form}"

    def restored(self, content: bytes) -> str:
        """The string whose place the reference takes."""
        encode = base64.b64encode if self.form == "base64" else base64.urlsafe_b64encode
        return self.prefix + encode(content).decode()


def reference_to(content: bytes) -> BlobReference:
    """The reference to these bytes."""
    return BlobReference(hashlib.sha256(content).hexdigest(), len(content))


def reference_in(url: str | None) -> BlobReference | None:
    """The reference in the `url` of a part. None for any other URL."""
    if url is None or not url.startswith("blob:") or (match := _match(url)) is None or match[4]:
        return None
    return BlobReference(match[2], int(match[3]))


def blob_string(text: str) -> BlobString | None:
    """The reference in a string of JSON. None for any other string."""
    if len(text) > BLOB_STRING_LENGTH_MAX or not text.startswith(("blob:", "data:")):
        return None
    match = _match(text)
    if match is None or not match[4]:
        return None
    form: Form = "base64" if match[4] == "base64" else "base64url"
    return BlobString(BlobReference(match[2], int(match[3])), form, match[1] or "")


def bytes_of(text: str) -> tuple[bytes, Form, str] | None:
    """The bytes in a string of base64 or in a data URL, with the form and the prefix that restore
    the string. None for any other string.
    """
    found = _DATA_URL.match(text)
    prefix = found[0] if found else ""
    body = text[len(prefix) :]
    form: Form = "base64url" if "-" in body or "_" in body else "base64"
    if form == "base64url" and ("+" in body or "/" in body):
        return None
    try:
        content = base64.b64decode(body, altchars=b"-_" if form == "base64url" else None, validate=True)
    except (ValueError, binascii.Error):
        return None
    # The base64 of others may have more padding, and any bits behind the last byte.
    tail = len(content) % 3
    is_exact = len(body) == (len(content) + 2) // 3 * 4 and (
        not tail or body.endswith(BlobString(BlobReference("", 0), form).restored(content[-tail:]))
    )
    return (content, form, prefix) if is_exact else None


def _match(text: str) -> re.Match[str] | None:
    return _REFERENCE.fullmatch(text) if len(text) <= BLOB_STRING_LENGTH_MAX else None
