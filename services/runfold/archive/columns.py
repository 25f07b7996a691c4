"""The columns of the archive's tables, and rows as Arrow data.

A table of an earlier version lacks later columns. The first commit of a later version adds them.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runfold.archive.segments import ArchivedSegment, record_bytes
from runfold.archive.typed_columns import TypedColumns
from runfold_schemas.codec import Record

if TYPE_CHECKING:
    from arro3.core import Array, DataType, Table

_INT64_MAX: Final = 2**63 - 1

RECORD_COLUMNS: Final = ("run_offset", "log_time", "key", "headers", "value")
"""The fields of a `Record`, in their order."""

SEGMENT_COLUMNS: Final = (
    "run_id",
    "log_id",
    "segment_base",
    "segment_end",
    "segment_count",
    "segment_bytes",
    "segment_sha256",
    "archived_at",
)
"""The fields of an `ArchivedSegment`, in their order. All but the ids are null in each row but the
first one of a segment.
"""

EVENT_COLUMNS: Final = {
    "run_id": "utf8",
    "log_id": "utf8",
    "run_offset": "int64",
    "log_time": "int64",
    "key": "binary",
    "headers": "headers",
    "value": "binary",
    "record_bytes": "int64",
    "segment_base": "int64",
    "segment_end": "int64",
    "segment_count": "int64",
    "segment_bytes": "int64",
    "segment_sha256": "utf8",
    "archived_at": "int64",
    "outcome": "utf8",
    "event_id": "utf8",
    "kind": "utf8",
    "time": "time",
    "agent_id": "utf8",
    "session_id": "utf8",
    "user_id": "utf8",
    "turn_id": "utf8",
    "provider": "utf8",
    "model": "utf8",
    "tool_name": "utf8",
    "tool_call_id": "utf8",
    "is_error": "bool",
    "duration_ms": "float64",
    "input_tokens": "int64",
    "output_tokens": "int64",
    "cache_read_tokens": "int64",
    "cache_write_tokens": "int64",
    "reasoning_tokens": "int64",
    "status": "utf8",
    "labels": "labels",
    "text": "utf8",
}
"""The columns of `events` and their types."""

DELETED_COLUMNS: Final = {"run_id": "utf8", "deleted_at": "int64"}
"""The columns of `deleted_runs`."""


class Row(NamedTuple):
    """A row of `events`. `segment` stands in the first row of a segment."""

    run_id: str
    log_id: str
    record: Record
    segment: ArchivedSegment | None
    typed: TypedColumns


def events_table(rows: Sequence[Row]) -> "Table":
    """The rows as Arrow data."""
    columns: dict[str, list[Any]] = {
        "run_id": [row.run_id for row in rows],
        "log_id": [row.log_id for row in rows],
    }
    records = zip(*(row.record for row in rows), strict=True)
    columns |= {name: list(values) for name, values in zip(RECORD_COLUMNS, records, strict=True)}
    columns["record_bytes"] = [record_bytes(row.record) for row in rows]
    for index, name in enumerate(SEGMENT_COLUMNS):
        if index > 1:
            columns[name] = [row.segment[index] if row.segment else None for row in rows]
    typed = zip(*(row.typed for row in rows), strict=True)
    columns |= {name: list(values) for name, values in zip(TypedColumns._fields, typed, strict=True)}
    return table_of(EVENT_COLUMNS, columns)


def table_of(types: dict[str, str], columns: dict[str, list[Any]]) -> "Table":
    """Columns of these types as Arrow data."""
    from arro3.core import Table  # noqa: PLC0415

    return Table({name: _array(kind, columns[name]) for name, kind in types.items()})


def empty_table(types: dict[str, str]) -> "Table":
    return table_of(types, {name: [] for name in types})


def _array(kind: str, values: list[Any]) -> "Array":
    from arro3.core import Array, DataType  # noqa: PLC0415

    match kind:
        case "utf8":
            return _texts(values)
        case "binary":
            return Array(values, DataType.binary())
        case "int64":
            limited = [min(value, _INT64_MAX) if value is not None else None for value in values]
            return Array(limited, DataType.int64())
        case "float64":
            return Array(values, DataType.float64())
        case "bool":
            return Array(values, DataType.bool())
        case "time":
            return Array(values, DataType.int64()).cast(DataType.timestamp("us", tz="UTC"))
        case "headers":
            return _pairs(values, DataType.binary())
        case _:
            return _pairs(values, DataType.utf8())


def _texts(values: Sequence[str | None]) -> "Array":
    from arro3.core import Array, DataType  # noqa: PLC0415

    try:
        return Array(values, DataType.utf8())
    except UnicodeEncodeError:
        # JSON can have halves of characters, which no other format has. The record keeps them.
        clean = [each and each.encode(errors="replace").decode() for each in values]
        return Array(clean, DataType.utf8())


def _pairs(values: Iterable[Sequence[tuple[str, Any]]], content: "DataType") -> "Array":
    """Lists of keys and values, as an array."""
    from arro3.core import Array, DataType, Field, list_array, struct_array  # noqa: PLC0415

    ends, keys, contents = [0], [], []
    for pairs in values:
        for key, value in pairs:
            keys.append(key)
            contents.append(value)
        ends.append(len(keys))
    fields = [Field("key", DataType.utf8()), Field("value", content)]
    texts = content == DataType.utf8()
    items = struct_array(
        [_texts(keys), _texts(contents) if texts else Array(contents, content)], fields=fields
    )
    return list_array(Array(ends, DataType.int32()), items, type=DataType.list(Field("element", items.type)))
