"""Filters of memories: a filter as a text, and groups of filters on their metadata."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from runfold.client.memory import MemorySelection
from runfold.vertex.filters import equalities, matches, parse_filter
from runfold.vertex.memory_documents import FILTER_FIELDS, MetadataValue, filter_value
from runfold.vertex.messages import Message
from runfold_projections.memory import MemoryRecord
from runfold_schemas.data import ItemList
from runfold_schemas.memories import Moment

Predicate = Callable[[MemoryRecord], bool]

_FILTERS_MAX: Final = 100
"""The most groups of a request, and the most filters of a group."""


class MemoryFilter(Message):
    """A value of metadata compared with another one. A missing value, or one of another type, does
    not match.
    """

    key: str
    value: MetadataValue
    op: Literal["OPERATOR_UNSPECIFIED", "EQUAL", "GREATER_THAN", "LESS_THAN"] = "EQUAL"
    negate: bool = False

    def matches(self, record: MemoryRecord) -> bool:
        return self._compare(record) is not self.negate

    def _compare(self, record: MemoryRecord) -> bool:
        actual, value = _plain(record.memory.metadata.get(self.key)), _plain(self.value.to_runfold())
        if type(actual) is not type(value):
            return False
        match self.op:
            case "GREATER_THAN":
                return bool(actual > value)
            case "LESS_THAN":
                return bool(actual < value)
            case _:
                return bool(actual == value)


class Conjunction(Message):
    """All of these filters match."""

    filters: Annotated[ItemList[MemoryFilter], Field(min_length=1, max_length=_FILTERS_MAX)]

    def matches(self, record: MemoryRecord) -> bool:
        return all(each.matches(record) for each in self.filters)


class FilterParameters(Message):
    """The filters of a request. The text matches, and at least one of the groups."""

    filter: str | None = None
    filter_groups: Annotated[ItemList[Conjunction], Field(max_length=_FILTERS_MAX)] | None = None

    def predicate(self) -> Predicate | None:
        """The filters as a predicate; None: all memories match. Raises `InvalidEventError`."""
        return _combine(_parse_predicate(self.filter), self.filter_groups or [])


def memory_query(text: str | None, groups: Sequence[Conjunction] = ()) -> MemorySelection:
    """The query of a list. If the filter names a whole scope, only memories of that scope are read.
    Raises `InvalidEventError`.
    """
    scope = equalities(parse_filter(text, FILTER_FIELDS)).get(("scope",))
    texts = {str(key): str(value) for key, value in scope.items()} if isinstance(scope, dict) else None
    return MemorySelection(scope=texts, matches=_combine(_parse_predicate(text), groups))


def _parse_predicate(text: str | None) -> Predicate | None:
    if not text:
        return None
    filter_ = parse_filter(text, FILTER_FIELDS)
    return lambda record: matches(filter_, partial(filter_value, record))


def _combine(predicate: Predicate | None, groups: Sequence[Conjunction]) -> Predicate | None:
    if not groups:
        return predicate
    return lambda record: (
        (predicate is None or predicate(record)) and any(group.matches(record) for group in groups)
    )


def _plain(value: Any) -> Any:
    """A value of metadata in a form that can be compared."""
    match value:
        case Moment():
            return value.timestamp
        case bool():
            return value
        case int():
            return float(value)
        case _:
            return value
