"""What the bodies of requests say, as models and as OpenAPI."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from runfold.http.bodies import JSON, NDJSON
from runfold_schemas.codec import TYPES, first_fault
from runfold_schemas.data import Data, Labels, MessageId, TurnId
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.events import (
    RunCanceled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunStarted,
)
from runfold_schemas.messages import PROVIDERS

Action = Literal["start", "pause", "resume", "complete", "fail", "cancel"]

RequestT = TypeVar("RequestT", bound=BaseModel)


class _Request(BaseModel):
    # A misspelled field of a command would be lost silently; events, which outlive their readers,
    # keep theirs.
    model_config = ConfigDict(extra="forbid", frozen=True)


class OpenRun(_Request):
    """A run to open. Without `run_id` it gets a new one; `started_at` is now by default."""

    agent_id: str
    run_id: str | None = None
    session_id: str | None = None
    turn_id: TurnId | None = None
    labels: Labels = {}
    pending: bool = False
    started_at: AwareDatetime | None = None


class StatusChange(_Request):
    """What happens to the run, in the client's verbs. `start` is for a pending run, `resume` for a
    paused one: a status to reach would not say which, and the log has an event for each. `error`
    belongs to `fail`, `reason` to `pause` and `cancel`.
    """

    action: Action
    reason: str | None = None
    error: str | None = None
    turn_id: TurnId | None = None

    @model_validator(mode="after")
    def _fits(self) -> "StatusChange":
        if (self.action == "fail") != (self.error is not None):
            raise InvalidEventError("error: `fail` takes one, and nothing else does", field="error")
        if self.reason is not None and self.action not in ("pause", "cancel"):
            raise InvalidEventError("reason: only `pause` and `cancel` take one", field="reason")
        return self

    def envelope(self) -> dict[str, str]:
        """What the request says of the event's envelope."""
        return {"turn_id": self.turn_id} if self.turn_id is not None else {}

    def data(self) -> Data:
        match self.action:
            case "start":
                return RunStarted()
            case "pause":
                return RunPaused(reason=self.reason)
            case "resume":
                return RunResumed()
            case "complete":
                return RunCompleted()
            case "fail":
                return RunFailed(error=self.error or "")
            case "cancel":
                return RunCanceled(reason=self.reason)


def parsed(model: type[RequestT], fields: Any) -> RequestT:
    """The request in decoded JSON. Raises `InvalidEventError` naming the field."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidEventError(message, field=field) from error


def _body(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


def _schema(type_: Any) -> dict[str, Any]:
    return TypeAdapter(type_).json_schema()


_EVENT: Final = {
    "type": "object",
    "description": "An event as in event.schema.json, but that run_id, event_id and timestamp may be left out",
    "required": ["type", "data"],
    "properties": {
        "type": {"enum": sorted(TYPES - {"run_opened"})},
        "data": {"type": "object"},
        "event_id": {"type": "string", "format": "uuid"},
        "timestamp": {"type": "string", "format": "date-time"},
        "turn_id": _schema(TurnId),
        "labels": _schema(Labels),
        "message_id": _schema(MessageId),
        "expected_offset": {
            "type": "integer",
            "minimum": -1,
            "description": "accept this event, which is then sent alone, only if nothing came behind this offset: a"
            " session's `last_offset`, say; -1 for an empty log",
        },
        "state_delta": {
            "type": "object",
            "description": "keys of state with their new values, null being one: `app:` keys are shared by all users of"
            " the app, `user:` keys by all sessions of the user, `temp:` keys are not stored, all others are the run's own",
        },
    },
}

OPEN_BODY: Final = _body({JSON: {"schema": OpenRun.model_json_schema()}})
STATUS_BODY: Final = _body({JSON: {"schema": StatusChange.model_json_schema()}})
RESPONSE_BODY: Final = _body(
    {JSON: {"schema": {"type": "object", "description": f"the response of {', '.join(PROVIDERS)}"}}}
)
EVENTS_BODY: Final = _body(
    {
        JSON: {"schema": {"oneOf": [_EVENT, {"type": "array", "minItems": 1, "items": _EVENT}]}},
        NDJSON: {"schema": {"type": "string", "description": "an event a line"}},
    }
)
