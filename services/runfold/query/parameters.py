"""The parameters of the query routes, with their descriptions for the OpenAPI document."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

from fastapi import Depends, Header, Path, Query
from pydantic import WithJsonSchema

from runfold.http.authorisation import current_principal
from runfold.http.parameters import made
from runfold.permissions.limits import only_choice
from runfold.query.events import EventFilter
from runfold.query.faults import Rules, RulesName
from runfold.query.history import Source
from runfold.query.requests import RequestFormat
from runfold.query.run_selection import RunParameters, RunSelection
from runfold.query.times import Time
from runfold_projections.as_of import AsOf
from runfold_projections.budget import Budget
from runfold_projections.providers import EncodeOptions, Lossy
from runfold_schemas.codec import event_types
from runfold_schemas.cursors import PAGE_MAX
from runfold_schemas.data import Maker
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.lists import ShownStatus
from runfold_schemas.messages import Provider
from runfold_schemas.topics import OFFSET_MAX

RunId = Annotated[str, Path(description="The run's id, percent-encoded: `/` is `%2F`.", examples=["run-1"])]
SessionId = Annotated[
    str, Path(description="The session's id, percent-encoded: `/` is `%2F`.", examples=["s-1"])
]

StateKey = Annotated[str, Path(description="The key of state, percent-encoded.", examples=["order"])]

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


_STATUS: Final = WithJsonSchema({"type": "string", "enum": list(get_args(ShownStatus))})


async def run_selection(
    *,
    status: Annotated[
        list[Annotated[str, _STATUS]],
        Query(
            description="Runs in this status, or in one of several. `open`: the own runs of sessions that go"
            " on, which `running` contains too."
        ),
    ] = [],  # noqa: B006  # FastAPI copies it
    label: Annotated[
        list[str],
        Query(
            description="`key:value`, split at the first colon. All of several labels must match.",
            examples=[["channel:chat"]],
        ),
    ] = [],  # noqa: B006  # FastAPI copies it
    agent_id: Annotated[str | None, Query(description="Runs of this agent.")] = None,
    others: Annotated[RunParameters, Query()],
) -> RunSelection:
    return RunSelection(
        # `check_permission` refuses other agents.
        agent_id=only_choice(current_principal().agents, agent_id),
        status=_statuses(status),
        labels=label_filter(label),
        **dict(others),
    )


def _statuses(texts: Sequence[str]) -> tuple[ShownStatus, ...]:
    known: tuple[ShownStatus, ...] = get_args(ShownStatus)
    for text in texts:
        if text not in known:
            raise InvalidEventError(f"status {text!r} is none of {', '.join(known)}", field="status")
    return tuple(status for status in known if status in texts)


async def event_filter(
    *,
    type: Annotated[  # noqa: A002  # the parameter's name on the wire
        list[str],
        Query(description="Only events of this type, or of one of several types.", examples=[["tool_call"]]),
    ] = [],  # noqa: B006  # FastAPI copies it
    turn_id: Annotated[
        str | None,
        Query(
            description="Only events of this turn. An event without a turn belongs to the turn of the event"
            " before it."
        ),
    ] = None,
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


async def as_of(
    *,
    as_of_offset: Annotated[
        int | None,
        Query(ge=0, le=OFFSET_MAX, description="The run up to this offset, which it includes."),
    ] = None,
    as_of_time: Annotated[
        Time | None,
        Query(description="The run before the first record that was appended after this time."),
    ] = None,
    as_of_turn: Annotated[
        str | None, Query(description="The run up to the event that begins the turn after this one.")
    ] = None,
    before_turn: Annotated[
        str | None,
        Query(
            description="The run before the first event of this turn, for example to run a failed turn again."
        ),
    ] = None,
) -> AsOf:
    return AsOf(offset=as_of_offset, time=as_of_time, turn=as_of_turn, before_turn=before_turn)


MakerName = Annotated[
    Maker | None,
    Query(
        description="The maker of the model that gets the request, for example `api.groq.com`. Only the"
        " maker of a response gets back its thinking and its unknown members. By default the maker of"
        " the last response."
    ),
]
ModelName = Annotated[
    str | None,
    Query(
        max_length=200,
        description="The name of the model that gets the request, if its public rules differ from those"
        " of others. With `validate`, a request that ends with the assistant is a fault if the model"
        " refuses it.",
    ),
]


async def validator(
    *,
    validate: Annotated[
        RulesName | None,
        Query(
            description="Add `faults`: the reasons for which this provider would refuse the messages."
            " `strict`: the reasons for which the ledger is incomplete for every provider."
        ),
    ] = None,
    thinking: Annotated[
        bool,
        Query(
            description="For `validate`: the request turns thinking on, for which Anthropic and Bedrock have"
            " rules of their own."
        ),
    ] = False,
    maker: MakerName = None,
    model: ModelName = None,
) -> Rules | None:
    return Rules(validate, {"thinking": thinking, "maker": maker, "model": model}) if validate else None


async def request_format(
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
    maker: MakerName = None,
    model: ModelName = None,
    with_thinking: Annotated[
        bool, Query(description="`false`: leave out the thinking of earlier responses.")
    ] = True,
    cache_marks: Annotated[
        int,
        Query(
            ge=0,
            le=4,
            description="How many of the four marks of the prompt cache that Anthropic and Bedrock take the"
            " caller sets beside the messages, for example on tools.",
        ),
    ] = 0,
    fit_tokens: Annotated[
        int | None,
        Query(
            ge=1,
            le=2**53,
            description="Fit the request into this number of tokens: the beginning of the conversation is"
            " left out if necessary, or replaced by a `summary` in the log. Needs a provider's `format`.",
        ),
    ] = None,
) -> RequestFormat | None:
    if format == "canonical":
        if fit_tokens is not None:
            raise InvalidEventError("fit_tokens needs the format of a provider", field="fit_tokens")
        return None
    budget = None if fit_tokens is None else Budget(tokens=fit_tokens)
    options: EncodeOptions = {
        "lossy": lossy,
        "maker": maker,
        "model": model,
        "with_thinking": with_thinking,
        "cache_marks": cache_marks,
    }
    return RequestFormat(format, options, budget)


Selection = Annotated[RunSelection, Depends(run_selection)]
EventFilters = Annotated[EventFilter, Depends(event_filter)]
CutOff = Annotated[AsOf, Depends(as_of)]
Validator = Annotated[Rules | None, Depends(validator)]
FormatQuery = Annotated[RequestFormat | None, Depends(request_format)]


@dataclass(frozen=True, slots=True)
class LedgerParameters:
    """The parameters of the routes for a run's ledger."""

    cut_off: CutOff
    validate: Validator
    form: FormatQuery
    min_offset: MinOffset = None
    source: From = "snapshot"


LedgerQuery = Annotated[LedgerParameters, made(LedgerParameters)]


def label_filter(texts: Sequence[str], *, field: str = "label") -> dict[str, str]:
    """The labels in texts of the form `key:value`. Raises `InvalidEventError`."""
    return dict(_split_label(text, field=field) for text in texts)


def _split_label(text: str, *, field: str) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not colon:
        raise InvalidEventError(f"{field} {text!r} is not of the form key:value", field=field)
    return key, value
