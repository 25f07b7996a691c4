"""The tokens of a run: the totals, and the totals of each model.

Cached tokens are within `input_tokens` here. Anthropic and Bedrock count them beside it, and
recordings of earlier versions have the providers' numbers. The fold adds the cached tokens to
those; an event does not change.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from runfold_projections.admission import Admitted
from runfold_schemas.events import AnyEvent
from runfold_schemas.messages import Provider
from runfold_schemas.usage import TokenUsage

MODELS_MAX: Final = 50
"""The number of rows that a run's usage has, beside the row of all further models."""

TOOLS_MAX: Final = 16

SIZES: Final = (128_000, 200_000, 256_000, 272_000)
"""The sizes of requests at which providers change their prices. The totals of a model are kept
apart at these sizes.
"""

_OTHERS: Final = "others"
_MODEL_LENGTH_MAX: Final = 200
_TOOL: Final = re.compile(r"[a-z0-9_.-]{1,64}")
_CACHE_BESIDE_INPUT: Final[frozenset[Provider | None]] = frozenset({"anthropic", "bedrock"})


def _is_nothing(value: object) -> bool:
    return not value


Later = Annotated[int, Field(exclude_if=_is_nothing)]
"""A total that readers of earlier versions do not know. It is left out if it is 0."""


class TokenTotals(BaseModel):
    """Tokens of several calls of models. The fields have the meaning of `TokenUsage`."""

    model_config = ConfigDict(frozen=True)

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: Later = 0
    reasoning_tokens: Later = 0
    input_audio_tokens: Later = 0
    output_audio_tokens: Later = 0
    server_tool_requests: Annotated[dict[str, int], Field(exclude_if=_is_nothing)] = {}


class ModelUsage(TokenTotals):
    """The tokens of one model's calls. All fields of the key are None for the further models."""

    model: str | None = None
    maker: str | None = None
    provider: Provider | None = None
    over: int = 0
    """The requests of these calls have more input tokens than this, and at most the next size of
    `SIZES`.
    """
    is_others: bool = False
    calls: int = 0


class RunUsage(BaseModel):
    """The usage of a run by model, in the order of the models' first calls."""

    model_config = ConfigDict(frozen=True)

    models: tuple[ModelUsage, ...] = ()

    @property
    def totals(self) -> TokenTotals:
        return add(TokenTotals(), *self.models)


NO_USAGE: Final = RunUsage()


def fold_usage(usage: RunUsage, admitted: Iterable[Admitted]) -> RunUsage:
    """The usage after further records of the log, which may be divided in any way."""
    rows = {_key_of_row(row): row for row in usage.models}
    calls: dict[_Key, list[Tokens]] = {}
    for each in admitted:
        if each.event is not None and each.counts and isinstance(each.event.data, TokenUsage):
            tokens = tokens_of(each.event, each.event.data)
            key = _key(each.event, each.event.data, tokens)
            if key not in rows and len(rows) >= MODELS_MAX:
                key = _OTHER_MODELS
            calls.setdefault(key, []).append(tokens)
            rows.setdefault(key, ModelUsage(**key._asdict()))
    return RunUsage(models=tuple(_with_calls(row, calls.get(key, ())) for key, row in rows.items()))


def usage_after(
    usage: RunUsage | None,
    admitted: Sequence[Admitted],
    *,
    before: Mapping[str, int],
    after: Mapping[str, int],
) -> RunUsage | None:
    """As `fold_usage`, if the run's counts of events have changed for events of usage. Most parts
    of a log have none. None stays None.
    """
    if usage is None or before.get("token_usage") == after.get("token_usage"):
        return usage
    return fold_usage(usage, admitted)


class Tokens(NamedTuple):
    """The tokens of one call of a model."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cache_write_1h_tokens: int
    reasoning_tokens: int
    input_audio_tokens: int
    output_audio_tokens: int
    server_tool_requests: Mapping[str, int]


def tokens_of(event: AnyEvent, usage: TokenUsage) -> Tokens:
    """The tokens of one event, with the cached tokens in the input."""
    includes_cache = usage.input_includes_cache
    if includes_cache is None:
        includes_cache = event.provider not in _CACHE_BESIDE_INPUT
    beside = 0 if includes_cache else usage.cache_read_tokens + usage.cache_write_tokens
    return Tokens(
        usage.input_tokens + beside,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
        usage.reasoning_tokens,
        usage.input_audio_tokens,
        usage.output_audio_tokens,
        usage.server_tool_requests,
    )


def add(totals: TokenTotals, *more: TokenTotals | Tokens) -> TokenTotals:
    return TokenTotals(**_sums(totals, more))


class _Key(NamedTuple):
    model: str | None
    maker: str | None
    provider: Provider | None
    over: int
    is_others: bool = False


_OTHER_MODELS: Final = _Key(None, None, None, 0, is_others=True)


def _key(event: AnyEvent, usage: TokenUsage, tokens: Tokens) -> _Key:
    if usage.model is not None and len(usage.model) > _MODEL_LENGTH_MAX:
        return _OTHER_MODELS
    over = 0 if tokens.input_tokens <= SIZES[0] else max(size for size in SIZES if tokens.input_tokens > size)
    maker = event.maker.lower() if event.maker is not None else None
    return _Key(usage.model, maker, event.provider, over)


def _key_of_row(row: ModelUsage) -> _Key:
    return _Key(row.model, row.maker, row.provider, row.over, row.is_others)


def _with_calls(row: ModelUsage, calls: Sequence[Tokens]) -> ModelUsage:
    return row.model_copy(update={**_sums(row, calls), "calls": row.calls + len(calls)}) if calls else row


_COUNTS: Final = tuple(name for name in TokenTotals.model_fields if name != "server_tool_requests")


def _sums(totals: TokenTotals, more: Sequence[TokenTotals | Tokens]) -> dict[str, Any]:
    sums: dict[str, Any] = {
        name: sum([getattr(tokens, name) for tokens in more], start=getattr(totals, name)) for name in _COUNTS
    }
    requests: Mapping[str, int] = totals.server_tool_requests
    for tokens in more:
        if tokens.server_tool_requests:
            requests = _add_requests(requests, tokens.server_tool_requests)
    return {**sums, "server_tool_requests": requests}


def _add_requests(requests: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """The sums by tool. Tools beyond the limit, and names that no provider has, are one entry."""
    sums = dict(requests)
    for tool, count in more.items():
        if not count:
            continue
        is_known = tool in sums or (len(sums) < TOOLS_MAX and _TOOL.fullmatch(tool))
        name = tool if is_known else _OTHERS
        sums[name] = sums.get(name, 0) + count
    return sums
