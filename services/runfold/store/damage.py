"""Documents that cannot be used: their checksum is wrong, or they have another form than they were
stored with. Each reader answers such a document with `DamagedError`, which is made here.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from zlib import crc32

from prometheus_client import Counter
from pydantic import BaseModel

from runfold_schemas.errors import DamagedError

RESTORE: Final = "runfold verify --restore"
"""The command that mends every kind of document."""

Record = TypeVar("Record", bound=BaseModel)

_NAMED_MAX: Final = 10_000

_FOUND: Final = Counter(
    "runfold_damaged_documents",
    "Reads that found a damaged document in MongoDB, by collection",
    ["collection"],
)

_log = logging.getLogger(__name__)


class _Named:
    """The documents that the log has named. A reader may meet one of them every second."""

    def __init__(self) -> None:
        self._ids: OrderedDict[tuple[str, str], None] = OrderedDict()

    def is_new(self, collection: str, document_id: str) -> bool:
        key = (collection, document_id)
        if key in self._ids:
            return False
        self._ids[key] = None
        if len(self._ids) > _NAMED_MAX:
            self._ids.popitem(last=False)
        return True


_named = _Named()


def damaged(collection: str, document_id: object, reason: str, *, cure: str = RESTORE) -> DamagedError:
    """The error for a damaged document. Counts it, and logs it if this process meets it for the
    first time.
    """
    _FOUND.labels(collection).inc()
    error = DamagedError(f"{collection} {document_id}", reason=reason, cure=cure)
    if _named.is_new(collection, str(document_id)):
        _log.warning("%s", error)
    return error


def seal(position: int, text: str) -> list[int]:
    """The checksum of a record's JSON text, which was stored at `position`."""
    return [position, crc32(text.encode())]


def read_record(
    kind: type[Record],
    document: Mapping[str, Any],
    collection: str,
    *,
    text: str = "record",
    position: str = "offset",
) -> Record:
    """The record in a document, from the JSON in the field `text`. Raises `DamagedError`.

    A writer of an earlier version stores no checksum, and leaves that of the record before. So a
    checksum counts for the position that stands in it.
    """
    try:
        sealed_at, checksum = document.get("seal") or (None, None)
        if sealed_at is None or sealed_at != document[position]:
            return kind.model_validate_json(document[text])
        if checksum == seal(sealed_at, document[text])[1]:
            return kind.model_validate_json(document[text])
        reason = "its record does not match its checksum"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"its record cannot be read: {type(error).__name__}"
    raise damaged(collection, document.get("_id"), reason)
