"""Events with the fields that a ledger needs, and without the rest of their envelope.

Most of the time of a ledger goes into decoding, and most of the time of decoding into ids, times
and labels, which no message contains. The data of an event are decoded as always.
"""

from collections.abc import Sequence
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, get_args

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator, core_schema

from runfold_schemas.codec import Record, decode
from runfold_schemas.data import ItemList, LaterMaker, MessageId
from runfold_schemas.envelope import DataT
from runfold_schemas.events import (
    AnyEvent,
    AssistantMessage,
    ProviderPart,
    ResponseRecorded,
    SystemMessage,
    Thinking,
    ToolCall,
    ToolResult,
    UserMessage,
)
from runfold_schemas.messages import Provider
from runfold_schemas.usage import TokenUsage


class _Excerpt(BaseModel, Generic[DataT]):
    """The fields of `Event` that a ledger needs."""

    data: DataT
    message_id: MessageId | None = None
    provider: Provider | None = None
    maker: LaterMaker = None


class _SystemMessage(_Excerpt[SystemMessage]):
    type: Literal["system_message"]


class _UserMessage(_Excerpt[UserMessage]):
    type: Literal["user_message"]


class _AssistantMessage(_Excerpt[AssistantMessage]):
    type: Literal["assistant_message"]


class _Thinking(_Excerpt[Thinking]):
    type: Literal["thinking"]


class _ToolCall(_Excerpt[ToolCall]):
    type: Literal["tool_call"]


class _ToolResult(_Excerpt[ToolResult]):
    type: Literal["tool_result"]


class _ProviderPart(_Excerpt[ProviderPart]):
    type: Literal["provider_part"]


class _ResponseRecorded(_Excerpt[ResponseRecorded]):
    type: Literal["response_recorded"]


class _TokenUsage(_Excerpt[TokenUsage]):
    type: Literal["token_usage"]


_AnyExcerpt = (
    _SystemMessage
    | _UserMessage
    | _AssistantMessage
    | _Thinking
    | _ToolCall
    | _ToolResult
    | _ProviderPart
    | _ResponseRecorded
    | _TokenUsage
)

LedgerEvent = _AnyExcerpt | AnyEvent
"""An event of any kind, whole or without the fields that no ledger needs."""


class ToolEvent(NamedTuple):
    """A call of a tool or its result."""

    offset: int
    is_call: bool
    tool_call_id: str


_TOOL_TYPES: Final = frozenset({"tool_call", "tool_result"})


@cache
def _adapter() -> TypeAdapter[list[LedgerEvent]]:
    """Reads excerpts where there are any, and whole events of all other kinds. Made at the first
    use, because most programs only publish.
    """
    by_data = {kind.model_fields["data"].annotation: kind for kind in get_args(AnyEvent)}
    by_data |= {kind.model_fields["data"].annotation: kind for kind in get_args(_AnyExcerpt)}
    any_kind: Any = reduce(or_, by_data.values())
    return TypeAdapter(ItemList[Annotated[any_kind, Field(discriminator="type")]])


@cache
def _tool_validator() -> SchemaValidator:
    """Reads of each event its type, and the id if it is of a tool."""
    data = {"tool_call_id": core_schema.typed_dict_field(core_schema.str_schema(), required=False)}
    fields = {
        "type": core_schema.typed_dict_field(core_schema.str_schema()),
        "data": core_schema.typed_dict_field(core_schema.typed_dict_schema(data)),
    }
    return SchemaValidator(core_schema.list_schema(core_schema.typed_dict_schema(fields)))


def prepare() -> None:
    """Makes what the functions of this module otherwise make at their first use, in 15 ms. A
    service calls it when it starts, so that no request takes that time.
    """
    _adapter()
    _tool_validator()


def is_excerpt(event: LedgerEvent) -> bool:
    """Whether the event lacks fields."""
    return isinstance(event, _Excerpt)


def whole_event(event: LedgerEvent) -> AnyEvent:
    """The event, which must be whole."""
    assert not isinstance(event, _Excerpt)
    return event


def decode_for_ledger(values: Sequence[bytes]) -> list[LedgerEvent]:
    """The events in values that `decode` accepted before, in two fifths of the time of
    `decode_again`. Events that a ledger expands are whole, others lack fields.

    Raises `UndecodableError` if a value has changed since.
    """
    try:
        return _adapter().validate_json(b"[%b]" % b",".join(values))
    except ValidationError:
        # As in `decode_again`.
        return [decode(value) for value in values]


def tool_events(records: Sequence[Record]) -> list[ToolEvent]:
    """The calls and results in records that `decode` accepted before. Their other data are not
    decoded.

    Raises `UndecodableError` if a value has changed since.
    """
    # JSON can hide a letter only behind `\u`.
    values = [
        (record.offset, value)
        for record in records
        if (value := record.value) and (b"tool_" in value or b"\\u" in value)
    ]
    try:
        read = _tool_validator().validate_json(b"[%b]" % b",".join([value for _, value in values]))
    except ValidationError:
        # As in `decode_again`.
        whole = [(offset, decode(value)) for offset, value in values]
        return [tool for offset, event in whole if (tool := tool_event(offset, event)) is not None]
    return [
        ToolEvent(offset, event["type"] == "tool_call", event["data"].get("tool_call_id", ""))
        for (offset, _), event in zip(values, read, strict=True)
        if event["type"] in _TOOL_TYPES
    ]


def tool_event(offset: int, event: LedgerEvent) -> ToolEvent | None:
    """The event if it is a call of a tool or a result."""
    data = event.data
    if isinstance(data, ToolCall | ToolResult):
        return ToolEvent(offset, isinstance(data, ToolCall), data.tool_call_id)
    return None
