"""The answers of the query routes, for the OpenAPI document. The routes render the JSON
themselves.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.config import JsonDict

from runfold_projections.admission import Outcome
from runfold_projections.validation import Fault
from runfold_schemas.data import ItemList
from runfold_schemas.messages import Message, Provider


class LoggedEvent(BaseModel):
    """A record of the log with its outcome."""

    offset: int
    log_time: int = Field(description="When the record was appended to the log, in milliseconds since 1970.")
    outcome: Outcome
    reason: str | None = Field(None, description="The reason, if the record was not simply accepted.")
    effects: Literal["unsigned"] | None = Field(
        None,
        description="Present if the event would change memories, banks or shared state, and no key of effects"
        " has signed it: no projector with keys lets it do that.",
    )
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
    messages: ItemList[Message]
    faults: list[Fault] | None = Field(None, description="Present if `validate` was given.")


class NewMessages(BaseModel):
    """Messages to add at the end of the ledger."""

    model_config = ConfigDict(json_schema_extra={"example": {"messages": [_QUESTION]}})

    messages: ItemList[Message]

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


class FittedLedger(BaseModel):
    """How a ledger was fitted to `fit_tokens`."""

    tokens: int = Field(description="The tokens of the request's messages.")
    counted_by: str = Field(description="How they were counted.")
    left_out: int = Field(
        description="The number of messages that neither the request nor a summary contains."
    )
    end_offset: int | None = Field(description="The `end_offset` of a `summary` of these messages.")
    run_index: int = Field(description="The index of that summary's run in `runs`; 0 for a single run.")


class _ProviderRequest(BaseModel):
    """A ledger as a model provider's request."""

    format: Provider
    request: dict[str, Any] = Field(description="The body of the request. Add model, tools and limits.")
    dropped: list[Fault] = Field(description="The parts that were left out.")
    restated: list[Fault] = Field(
        description="What stands in another form, because the model takes it in no other: instructions"
        " within the conversation as the user's words, and words of the user behind an answer of the"
        " assistant that the ledger does not have."
    )
    tool_names: dict[str, str] = Field(
        description="Changed names of tools, with the ledger's own names. Translate the name of a call"
        " back, or give `tool_names` when you record the response."
    )
    tool_ids: dict[str, str] = Field(description="Changed ids of calls, with the ledger's own ids.")
    fitted: FittedLedger | None = Field(None, description="Present if `fit_tokens` was given.")
    faults: list[Fault] | None = Field(None, description="Present if `validate` was given.")


class RunRequest(_ProviderRequest):
    """The request of a run's ledger."""

    run_id: str
    next_offset: int = Field(description="The first offset that is not in the ledger.")


class SessionRequest(_ProviderRequest):
    """The request of a session's ledger."""

    session_id: str
    runs: list[SessionRun] = Field(description="The session's runs, in the order of their messages.")
