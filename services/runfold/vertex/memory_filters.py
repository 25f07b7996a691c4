"""Which memories are wanted: by a filter in words, and by groups of filters of their metadata."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from runfold.client.memory import MemoriesWanted
from runfold.vertex.filters import equalities, matches, parse_filter
from runfold.vertex.memory_documents import FILTERED, MetadataValue, field_of
from runfold.vertex.messages import Message
from runfold_projections.memory import MemoryRecord
from runfold_schemas.memories import Moment

Matches = Callable[[MemoryRecord], bool]


class MemoryFilter(Message):
    """A value of metadata against another one. What is of another type, or not there, it does not
    hold of.
    """

    key: str
    value: MetadataValue
    op: Literal["OPERATOR_UNSPECIFIED", "EQUAL", "GREATER_THAN", "LESS_THAN"] = "EQUAL"
    negate: bool = False

    def holds(self, record: MemoryRecord) -> bool:
        return self._compares(record) is not self.negate

    def _compares(self, record: MemoryRecord) -> bool:
        found, value = _plain(record.memory.metadata.get(self.key)), _plain(self.value.ours())
        if type(found) is not type(value):
            return False
        match self.op:
            case "GREATER_THAN":
                return bool(found > value)
            case "LESS_THAN":
                return bool(found < value)
            case _:
                return bool(found == value)


class Conjunction(Message):
    """All of these hold."""

    filters: Annotated[list[MemoryFilter], Field(min_length=1)]

    def holds(self, record: MemoryRecord) -> bool:
        return all(each.holds(record) for each in self.filters)


class Filtered(Message):
    """What a request filters by: the text, and one of the groups at least."""

    filter: str | None = None
    filter_groups: list[Conjunction] | None = None

    def matches(self) -> Matches | None:
        """None: all are wanted. Raises `InvalidEventError`."""
        return _both(matching(self.filter), self.filter_groups or [])


def matching(text: str | None) -> Matches | None:
    """Whether the filter holds of a memory; None where it holds of all. Raises
    `InvalidEventError`.
    """
    if not text:
        return None
    wanted = parse_filter(text, FILTERED)
    return lambda record: matches(wanted, partial(field_of, record))


def wanted_by(text: str | None, groups: Sequence[Conjunction] = ()) -> MemoriesWanted:
    """The memories of a list; where the whole scope is named, only those are read. Raises
    `InvalidEventError`.
    """
    scope = equalities(parse_filter(text, FILTERED)).get(("scope",))
    same = {str(key): str(value) for key, value in scope.items()} if isinstance(scope, dict) else None
    return MemoriesWanted(scope=same, matches=_both(matching(text), groups))


def _both(holds: Matches | None, groups: Sequence[Conjunction]) -> Matches | None:
    if not groups:
        return holds
    return lambda record: (holds is None or holds(record)) and any(group.holds(record) for group in groups)


def _plain(value: Any) -> Any:
    """What can be compared of a value of metadata."""
    match value:
        case Moment():
            return value.timestamp
        case bool():
            return value
        case int():
            return float(value)
        case _:
            return value
