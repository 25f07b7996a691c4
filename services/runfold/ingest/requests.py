"""The bodies of requests, as models and as OpenAPI."""

from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field, TypeAdapter, model_validator

from runfold.http.bodies import JSON, NDJSON
from runfold.http.event_stream import EVENT_STREAM
from runfold.http.requests import RequestBody, describe_body, describe_content
from runfold_schemas.codec import TYPES
from runfold_schemas.data import Data, Labels, Maker, MessageId, TurnId
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.messages import PROVIDERS, Provider
from runfold_schemas.runs import RunCanceled, RunCompleted, RunFailed, RunPaused, RunResumed, RunStarted
from runfold_schemas.topics import OFFSET_MAX

OffsetOfSource = Annotated[int, Field(ge=0, le=OFFSET_MAX)]
Action = Literal["start", "pause", "resume", "complete", "fail", "cancel"]


class OpenRun(RequestBody):
    """A run to open. Without `run_id`, the run gets a new id. `started_at` is now by default."""

    agent_id: str
    run_id: str | None = None
    session_id: str | None = None
    turn_id: TurnId | None = None
    labels: Labels = Field({})
    pending: bool = False
    started_at: AwareDatetime | None = None


class ForkRun(RequestBody):
    """A fork: up to the offset `at`, which it includes, or before the first event of `before_turn`,
    or the whole run. Without `run_id`, the fork gets a new id.
    """

    at: OffsetOfSource | None = None
    before_turn: TurnId | None = None
    run_id: str | None = None
    session_id: str | None = None
    labels: Labels = Field({})
    repair: bool = True
    """Whether calls without a result get one, so that every provider accepts the ledger."""


class StatusChange(RequestBody):
    """A change of the run's status, as an action instead of a status: `start` and `resume` both
    lead to `running`, and the log has an event for each. `error` belongs to `fail`, `reason` to
    `pause` and `cancel`.
    """

    action: Action
    reason: str | None = None
    error: str | None = None
    turn_id: TurnId | None = None

    @model_validator(mode="after")
    def _fits(self) -> "StatusChange":
        if (self.action == "fail") != (self.error is not None):
            raise InvalidEventError("error: `fail` needs it, and no other action takes it", field="error")
        if self.reason is not None and self.action not in ("pause", "cancel"):
            raise InvalidEventError("reason: only `pause` and `cancel` take it", field="reason")
        return self

    def envelope(self) -> dict[str, str]:
        """The fields of the event's envelope that the request sets."""
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


def _schema(type_: Any) -> dict[str, Any]:
    return TypeAdapter(type_).json_schema()


_EVENT: Final = {
    "type": "object",
    "description": "An event as in event.schema.json. run_id, event_id and timestamp may be left out.",
    "required": ["type", "data"],
    "properties": {
        "type": {"enum": sorted(TYPES - {"run_opened"})},
        "data": {"type": "object"},
        "event_id": {"type": "string", "format": "uuid"},
        "timestamp": {"type": "string", "format": "date-time"},
        "turn_id": _schema(TurnId),
        "labels": _schema(Labels),
        "message_id": _schema(MessageId),
        "provider": _schema(Provider),
        "maker": _schema(Maker),
        "expected_offset": {
            "type": "integer",
            "minimum": -1,
            "description": "Accept this event only if no event was accepted after this offset. Send -1 for an"
            " empty log, or a session's `last_offset`. Send such an event alone.",
        },
        "state_delta": {
            "type": "object",
            "description": "Keys of state with their new values. Null is a value. `app:` keys are shared"
            " by all users of the app, `user:` keys by all sessions of the user, `temp:` keys are not"
            " stored, all others belong to the run.",
        },
    },
}

FORK_BODY: Final = describe_body(ForkRun)
OPEN_BODY: Final = describe_body(OpenRun)
STATUS_BODY: Final = describe_body(StatusChange)
RESPONSE_BODY: Final = describe_content(
    {
        JSON: {
            "schema": {
                "type": "object",
                "description": f"A response of {', '.join(PROVIDERS)}, as its provider sent it.",
            }
        },
        EVENT_STREAM: {
            "schema": {
                "type": "string",
                "description": "The chunks of a response that streams, each as the data of an event.",
            }
        },
    }
)
EVENTS_BODY: Final = describe_content(
    {
        JSON: {"schema": {"oneOf": [_EVENT, {"type": "array", "minItems": 1, "items": _EVENT}]}},
        NDJSON: {"schema": {"type": "string", "description": "One event on each line."}},
    }
)
