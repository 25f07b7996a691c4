"""The envelope that all events share."""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from runfold_schemas.data import (
    Data,
    EventId,
    Id,
    Labels,
    LaterMaker,
    MessageId,
    StateDelta,
    Time,
    TurnId,
)
from runfold_schemas.messages import Provider

DataT = TypeVar("DataT", bound=Data)


class Event(BaseModel, Generic[DataT]):
    """The envelope. `timestamp` comes from the producer's clock. The order of events is the order
    of the log, never the order of timestamps.
    """

    # The schema of one kind encodes it, and is built when first used: all take 70 ms of an import.
    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    event_id: EventId
    run_id: Id
    timestamp: Time
    data: DataT
    schema_version: Literal[1] = 1
    turn_id: TurnId | None = None
    labels: Labels = Field(default_factory=dict)
    message_id: MessageId | None = None
    """The id of the assistant message that contains this event. Each recording has its own, because
    some servers repeat the ids of their responses.
    """
    provider: Provider | None = None
    """The provider of the response that this event was recorded from. Such a message keeps the
    provider's order of parts.
    """
    maker: LaterMaker = None
    """The maker of that response, if it is known. `provider` names the format only."""
    expected_offset: Annotated[int, Field(ge=-1)] | None = None
    """The last offset that the publisher has seen, -1 for none. The event is accepted only if no
    other event was accepted after this offset.
    """
    state_delta: StateDelta = None
