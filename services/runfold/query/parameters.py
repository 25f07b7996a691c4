"""The parameters of the query routes, with their descriptions for the OpenAPI document."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Header, Path, Query
from pydantic import AwareDatetime

from runfold.query.as_of import AsOf
from runfold.query.events import EventFilter
from runfold.query.faults import Rules, Validate, rules
from runfold.query.history import Source
from runfold.query.requests import RequestFormat
from runfold.store.runs import RunFilter
from runfold_projections.providers import Lossy
from runfold_schemas.codec import event_types
from runfold_schemas.cursors import PAGE_MAX
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.messages import Provider
from runfold_schemas.runs import Status
from runfold_schemas.topics import OFFSET_MAX

RunId = Annotated[str, Path(description="The run's id, percent-encoded: `/` is `%2F`.", examples=["run-1"])]
SessionId = Annotated[
    str, Path(description="The session's id, percent-encoded: `/` is `%2F`.", examples=["s-1"])
]

MinOffset = Annotated[
    int | None,
    Query(
        ge=0,
        le=OFFSET_MAX,
        description="Wait until the run holds this offset. Publishing returns the offset, so you read"
        " what you wrote. If the projections are late, the answer is read from the log. After the"
        " deadline, the answer is 504.",
    ),
]
FirstOffset = Annotated[int, Query(ge=0, le=OFFSET_MAX, description="Begin at this offset.")]
EndOffset = Annotated[int | None, Query(ge=0, le=OFFSET_MAX, description="End before this offset.")]
From = Annotated[
    Source,
    Query(
        alias="source",
        description="`snapshot`: from MongoDB. `log`: rebuilt from Kafka alone, for example while MongoDB"
        " does not answer.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="The largest number of entries in the answer.")]
Cursor = Annotated[str | None, Query(description="The `next_cursor` of the previous page.")]
UntilEnd = Annotated[
    bool,
    Query(
        description="End the stream with an event `end` when the run ends. Otherwise the stream stays open."
    ),
]
LastEventId = Annotated[
    int | None,
    Header(
        alias="Last-Event-ID",
        ge=-1,
        le=OFFSET_MAX,
        description="The last offset that was received. Browsers send it by themselves. It replaces"
        " `first_offset`.",
    ),
]


def run_filter(
    *,
    agent_id: Annotated[str | None, Query(description="Runs of this agent.")] = None,
    session_id: Annotated[str | None, Query(description="Runs of this session.")] = None,
    status: Annotated[Status | None, Query(description="Runs in this status.")] = None,
    label: Annotated[
        list[str],
        Query(
            description="`key:value`, split at the first colon. All of several labels must match.",
            examples=[["channel:chat"]],
        ),
    ] = [],  # noqa: B006  # FastAPI copies it
    since: Annotated[
        AwareDatetime | None, Query(description="Runs that started at this time or later.")
    ] = None,
    until: Annotated[AwareDatetime | None, Query(description="Runs that started before this time.")] = None,
) -> RunFilter:
    return RunFilter(
        agent_id=agent_id,
        session_id=session_id,
        status=status,
        labels=label_filter(label) or None,
        since=since,
        until=until,
    )


def event_filter(
    *,
    type: Annotated[  # noqa: A002  # the parameter's name on the wire
        list[str],
        Query(description="Only events of this type, or of one of several types.", examples=[["tool_call"]]),
    ] = [],  # noqa: B006  # FastAPI copies it
    turn_id: Annotated[str | None, Query(description="Only events of this turn.")] = None,
    outcome: Annotated[
        str | None,
        Query(
            pattern="^all$",
            description="`all`: also records that do not count, which are duplicates, rejected events and"
            " records that cannot be decoded.",
        ),
    ] = None,
) -> EventFilter:
    return EventFilter(types=event_types(type), turn_id=turn_id, everything=outcome == "all")


def as_of(
    *,
    as_of_offset: Annotated[
        int | None,
        Query(ge=0, le=OFFSET_MAX, description="The ledger up to this offset, which it includes."),
    ] = None,
    as_of_time: Annotated[
        AwareDatetime | None,
        Query(description="The ledger before the first record that was appended after this time."),
    ] = None,
    as_of_turn: Annotated[
        str | None, Query(description="The ledger up to the last event of this turn.")
    ] = None,
    before_turn: Annotated[
        str | None,
        Query(
            description="The ledger before the first event of this turn, for example to run a failed turn"
            " again."
        ),
    ] = None,
) -> AsOf:
    return AsOf(offset=as_of_offset, time=as_of_time, turn=as_of_turn, before_turn=before_turn)


def validator(
    *,
    validate: Annotated[
        Rules | None,
        Query(
            description="Add `faults`: the reasons for which this provider would refuse the messages."
            " `strict`: the reasons for which the ledger is incomplete for every provider."
        ),
    ] = None,
    thinking: Annotated[
        bool, Query(description="For `bedrock`: the model is called with thinking on.")
    ] = False,
) -> Validate | None:
    return rules(validate, thinking=thinking) if validate else None


def request_format(
    *,
    format: Annotated[  # noqa: A002  # the parameter's name on the wire
        Literal["canonical", Provider],
        Query(
            description="`canonical`: the messages. The name of a provider: the body of a `request` to it."
        ),
    ] = "canonical",
    lossy: Annotated[
        Lossy,
        Query(
            description="`drop`: leave out parts that the provider cannot express, and list them in"
            " `dropped`."
        ),
    ] = "refuse",
) -> RequestFormat | None:
    return None if format == "canonical" else RequestFormat(format, lossy)


RunFilters = Annotated[RunFilter, Depends(run_filter)]
EventFilters = Annotated[EventFilter, Depends(event_filter)]
CutOff = Annotated[AsOf, Depends(as_of)]
Validator = Annotated[Validate | None, Depends(validator)]
FormatQuery = Annotated[RequestFormat | None, Depends(request_format)]


@dataclass(frozen=True, slots=True)
class LedgerParameters:
    """The parameters of the routes for a run's ledger."""

    cut_off: CutOff
    validate: Validator
    form: FormatQuery
    min_offset: MinOffset = None
    source: From = "snapshot"


LedgerQuery = Annotated[LedgerParameters, Depends()]


def label_filter(texts: Sequence[str], *, field: str = "label") -> dict[str, str]:
    """The labels in texts of the form `key:value`. Raises `InvalidEventError`."""
    return dict(_split_label(text, field=field) for text in texts)


def _split_label(text: str, *, field: str) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not colon:
        raise InvalidEventError(f"{field} {text!r} is not of the form key:value", field=field)
    return key, value
