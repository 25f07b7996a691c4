"""The parameters of the query routes, with their words in the OpenAPI document."""

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
        description="Answer no earlier state than the one that holds this offset. Publishing returned it: so you read what"
        " you wrote. Waits; if the projections are late, the answer is read from the log; 504 after the deadline.",
    ),
]
FirstOffset = Annotated[int, Query(ge=0, le=OFFSET_MAX, description="Begin at this offset.")]
EndOffset = Annotated[int | None, Query(ge=0, le=OFFSET_MAX, description="End before this offset.")]
From = Annotated[
    Source,
    Query(
        alias="source",
        description="`snapshot`: from MongoDB. `log`: rebuilt from Kafka alone, for when MongoDB is away or doubted.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many at the most.")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before.")]
UntilEnd = Annotated[
    bool,
    Query(description="Close with an event `end` when the run has ended. Otherwise the stream stays open."),
]
LastEventId = Annotated[
    int | None,
    Header(
        alias="Last-Event-ID",
        ge=-1,
        le=OFFSET_MAX,
        description="The offset that was received last; browsers send it by themselves. Overrules `first_offset`.",
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
            description="`key:value`, split at the first colon. Several must all be there.",
            examples=[["channel:chat"]],
        ),
    ] = [],  # noqa: B006  # FastAPI copies it
    since: Annotated[AwareDatetime | None, Query(description="Started at this time or later.")] = None,
    until: Annotated[AwareDatetime | None, Query(description="Started before this time.")] = None,
) -> RunFilter:
    return RunFilter(
        agent_id=agent_id,
        session_id=session_id,
        status=status,
        labels=dict(_pair(one) for one in label) or None,
        since=since,
        until=until,
    )


def event_filter(
    *,
    type: Annotated[  # noqa: A002  # the parameter's name on the wire
        list[str],
        Query(description="Only events of this type. Several: of any of them.", examples=[["tool_call"]]),
    ] = [],  # noqa: B006  # FastAPI copies it
    turn_id: Annotated[str | None, Query(description="Only events of this turn.")] = None,
    outcome: Annotated[
        str | None,
        Query(
            pattern="^all$",
            description="`all` also shows what does not count: duplicates, rejected events and records that cannot be decoded.",
        ),
    ] = None,
) -> EventFilter:
    return EventFilter(types=event_types(type), turn_id=turn_id, everything=outcome == "all")


def as_of(
    *,
    as_of_offset: Annotated[
        int | None,
        Query(ge=0, le=OFFSET_MAX, description="As of this offset: the prefix that ends with it."),
    ] = None,
    as_of_time: Annotated[
        AwareDatetime | None,
        Query(description="As of this time: the prefix before the first record that was appended later."),
    ] = None,
    as_of_turn: Annotated[
        str | None, Query(description="As of this turn: the prefix that ends with the turn's last event.")
    ] = None,
    before_turn: Annotated[
        str | None,
        Query(
            description="The prefix before this turn's first event: what to hand to the model to run a failed turn again."
        ),
    ] = None,
) -> AsOf:
    return AsOf(offset=as_of_offset, time=as_of_time, turn=as_of_turn, before_turn=before_turn)


def validator(
    *,
    validate: Annotated[
        Rules | None,
        Query(
            description="Adds `faults`: everything for which this provider would refuse the messages. `strict`: what keeps"
            " a ledger from being complete, whoever reads it."
        ),
    ] = None,
    thinking: Annotated[
        bool, Query(description="For `bedrock`: the model is called with thinking on.")
    ] = False,
) -> Validate | None:
    return rules(validate, thinking=thinking) if validate else None


def form(
    *,
    format: Annotated[  # noqa: A002  # the parameter's name on the wire
        Literal["canonical", Provider],
        Query(description="`canonical` messages, or the `request` of this provider, to send as it is."),
    ] = "canonical",
    lossy: Annotated[
        Lossy,
        Query(description="`drop`: leave out what the provider cannot express, and list it in `dropped`."),
    ] = "refuse",
) -> RequestFormat | None:
    return None if format == "canonical" else RequestFormat(format, lossy)


RunFilters = Annotated[RunFilter, Depends(run_filter)]
EventFilters = Annotated[EventFilter, Depends(event_filter)]
CutOff = Annotated[AsOf, Depends(as_of)]
Validator = Annotated[Validate | None, Depends(validator)]
FormatQuery = Annotated[RequestFormat | None, Depends(form)]


@dataclass(frozen=True, slots=True)
class LedgerParameters:
    """What can be said of a run's ledger."""

    cut_off: CutOff
    validate: Validator
    form: FormatQuery
    min_offset: MinOffset = None
    source: From = "snapshot"


LedgerQuery = Annotated[LedgerParameters, Depends()]


def _pair(text: str) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not colon:
        raise InvalidEventError(f"label {text!r} is not of the form key:value", field="label")
    return key, value
