"""The answers of the query routes, for the OpenAPI document. The routes render the JSON
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
    """A page of runs. The records are those that were saved last, which may lag a moment behind the
    log.
    """

    runs: list[RunRecord]
    next_cursor: str | None = Field(description="Null on the last page.")


class LoggedEvent(BaseModel):
    """A record of the log with its outcome."""

    offset: int
    log_time: int = Field(description="When the record was appended to the log, in milliseconds since 1970.")
    outcome: Outcome
    reason: str | None = Field(None, description="The reason, if the record was not simply accepted.")
    event: dict[str, Any] | None = Field(
        description="The event, with the same bytes as in the log; null for a record that cannot be decoded."
    )
    value_base64: str | None = Field(None, description="The bytes of a record that cannot be decoded.")


class EventList(BaseModel):
    """Part of a run's log."""

    run_id: str
    next_offset: int = Field(description="`first_offset` of the next page.")
    end_offset: int = Field(
        description="The current end of the run, which is the `next_offset` of the last page."
    )
    events: list[LoggedEvent]


_QUESTION: JsonDict = {"role": "user", "parts": [{"type": "text", "text": "Where is my parcel?"}]}


class LedgerAnswer(BaseModel):
    """The transcript to hand to a model provider."""

    model_config = ConfigDict(
        json_schema_extra={"example": {"run_id": "run-1", "next_offset": 2, "messages": [_QUESTION]}}
    )

    run_id: str
    next_offset: int = Field(description="The first offset that is not in the ledger.")
    messages: list[Message]
    faults: list[Fault] | None = Field(None, description="Present if `validate` was given.")


class NewMessages(BaseModel):
    """Messages to add at the end of the ledger."""

    model_config = ConfigDict(json_schema_extra={"example": {"messages": [_QUESTION]}})

    messages: list[Message]

    @field_validator("messages")
    @classmethod
    def _survive_json(cls, messages: list[Message]) -> list[Message]:
        """Raises `ValueError` for NaN and Infinity, which are not JSON."""
        json.dumps([message.model_dump() for message in messages], allow_nan=False)
        return messages


class SessionRun(BaseModel):
    run_id: str
    next_offset: int
    messages: int = Field(description="The number of messages of this run.")


class SessionLedger(BaseModel):
    """The ledgers of a session's runs, one after the other."""

    session_id: str
    messages: list[Message]
    runs: list[SessionRun] = Field(description="The session's runs, in the order of their messages.")
    faults: list[Fault] | None = Field(None, description="Present if `validate` was given.")


class _ProviderRequest(BaseModel):
    """A ledger as a model provider's request."""

    format: Provider
    request: dict[str, Any] = Field(description="The body of the request. Add model, tools and limits.")
    dropped: list[Fault] = Field(description="The parts that were left out.")
    tool_names: dict[str, str] = Field(
        description="Changed names of tools, with the ledger's own names. Translate the name of a call"
        " back, or give `tool_names` when you record the response."
    )
    tool_ids: dict[str, str] = Field(description="Changed ids of calls, with the ledger's own ids.")
    faults: list[Fault] | None = Field(None, description="Present if `validate` was given.")


class RunRequest(_ProviderRequest):
    """The request of a run's ledger."""

    run_id: str
    next_offset: int = Field(description="The first offset that is not in the ledger.")


class SessionRequest(_ProviderRequest):
    """The request of a session's ledger."""

    session_id: str
    runs: list[SessionRun] = Field(description="The session's runs, in the order of their messages.")
