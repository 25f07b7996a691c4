"""The answers of the query routes as the OpenAPI document describes them. The routes render them by
themselves.
"""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.config import JsonDict

from runfold_projections.admission import Outcome
from runfold_projections.run import RunRecord
from runfold_projections.validation import Fault
from runfold_schemas.messages import Message, Provider


class RunList(BaseModel):
    """A page of runs. Records are those that were saved last; under load they may be a moment
    behind.
    """

    runs: list[RunRecord]
    next_cursor: str | None = Field(description="Null on the last page.")


class LoggedEvent(BaseModel):
    """A record of the log with its outcome."""

    offset: int
    log_time: int = Field(description="When the log took it, milliseconds since 1970.")
    outcome: Outcome
    reason: str | None = Field(None, description="Why it was not simply accepted.")
    event: dict[str, Any] | None = Field(description="The event, byte for byte as it is in the log.")
    value_base64: str | None = Field(None, description="The bytes of a record that is no event.")


class EventList(BaseModel):
    """Part of a run's log."""

    run_id: str
    next_offset: int = Field(description="`first_offset` of the next page.")
    end_offset: int = Field(description="The run's end as it is now; the last page's `next_offset`.")
    events: list[LoggedEvent]


_QUESTION: JsonDict = {"role": "user", "parts": [{"type": "text", "text": "Where is my parcel?"}]}


class LedgerAnswer(BaseModel):
    """The transcript to hand to a model provider."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"run_id": "run-1", "next_offset": 2, "messages": [_QUESTION]}}
    )

    run_id: str
    next_offset: int = Field(description="The first offset that is not in it.")
    messages: list[Message]
    faults: list[Fault] | None = Field(None, description="There if validation was asked for.")


class NewMessages(BaseModel):
    """Messages to put behind those of the ledger."""

    model_config = ConfigDict(json_schema_extra={"example": {"messages": [_QUESTION]}})

    messages: list[Message]

    @field_validator("messages")
    @classmethod
    def _survive_json(cls, messages: list[Message]) -> list[Message]:
        """NaN is read by many and written by us to nobody. Raises `ValueError`."""
        json.dumps([message.model_dump() for message in messages], allow_nan=False)
        return messages


class SessionRun(BaseModel):
    run_id: str
    next_offset: int
    messages: int = Field(description="How many of the session's messages are of this run.")


class SessionLedger(BaseModel):
    """The ledgers of a session's runs, one after the other."""

    session_id: str
    messages: list[Message]
    runs: list[SessionRun] = Field(description="In the order of their messages.")
    faults: list[Fault] | None = Field(None, description="There if validation was asked for.")


class _ProviderRequest(BaseModel):
    """A ledger as a model provider's request."""

    format: Provider
    request: dict[str, Any] = Field(description="To send as it is, with model, tools and limits added.")
    dropped: list[Fault] = Field(description="What was left out.")
    tool_names: dict[str, str] = Field(
        description="Names that had to be changed, with the ledger's own. Translate a call's name back, or say `tool_names` when you record the response."
    )
    tool_ids: dict[str, str] = Field(description="Ids of calls that had to be changed, likewise.")
    faults: list[Fault] | None = Field(None, description="There if validation was asked for.")


class RunRequest(_ProviderRequest):
    """The request of a run's ledger."""

    run_id: str
    next_offset: int = Field(description="The first offset that is not in it.")


class SessionRequest(_ProviderRequest):
    """The request of a session's ledger."""

    session_id: str
    runs: list[SessionRun] = Field(description="In the order of their messages.")
