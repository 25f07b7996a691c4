"""The address of the blob store and the limits of blobs. This module needs pydantic only."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from runfold.secret_urls import SecretUrl
from runfold_schemas.topics import RECORD_BYTES_MAX

BYTES_MIN: Final = 1024 * 1024
"""The default size from which on bytes leave the event."""

BYTES_MAX: Final = 64 * 1024 * 1024
"""The default size of the largest blob."""

_URL: Final = re.compile(r"file:///.|(s3|gs|az)://[^/?#]")


def checked_url(value: SecretUrl) -> SecretUrl:
    """`value`, if it names an object store or a directory. Otherwise raises `ValueError`."""
    if not _URL.match(value.get_secret_value()):
        raise ValueError(
            "a blob store is file:///directory, s3://bucket/path, gs://bucket/path or az://container/path"
        )
    return value


BlobUrl = Annotated[SecretUrl, AfterValidator(checked_url)]
BlobBytesMin = Annotated[int, Field(ge=1024, le=RECORD_BYTES_MAX // 2)]
BlobBytesMax = Annotated[int, Field(ge=RECORD_BYTES_MAX, le=1024**3)]
