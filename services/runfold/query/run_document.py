"""A run's record with the usage of each model and the cost, as the API and `runfold replay` show
it.
"""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, Final, Literal

from runfold.documents.runs import (
    CostDocument,
    ModelUsageDocument,
    RunArchiveDocument,
    RunDocument,
    RunSummary,
    UsageDocument,
)
from runfold.prices import NO_PRICES, Cost, PriceTable
from runfold.query.folded_run import FoldedRun
from runfold.store.run_listing import duration_us, ended_at_of
from runfold.store.run_state import RunState
from runfold_projections.activity import RunActivity
from runfold_projections.run import RunRecord
from runfold_projections.usage import ModelUsage, TokenTotals, add
from runfold_schemas.catalog import Segments
from runfold_schemas.sessions import is_session_run


def run_document(
    folded: FoldedRun, prices: PriceTable | None, segments: Segments | None = None
) -> RunDocument:
    """`segments` says where the log lies if it was sealed."""
    record, usage, activity, log_id = folded
    document = UsageDocument(
        **dict(record.usage),
        by_model=models_of(usage.models, prices),
        cost=cost_of(usage.models, prices),
    )
    return RunDocument(
        **{**dict(record), "usage": document},
        **_times(record, activity, log_id),
        archive=None if segments is None or segments.log_id != log_id else _archive(segments),
    )


def _archive(segments: Segments) -> RunArchiveDocument:
    status: Literal["sealed", "archived"] = "archived" if segments.sealed_base is None else "sealed"
    return RunArchiveDocument(status=status, end=segments.end, base=segments.base)


def run_summary(state: RunState, prices: PriceTable | None) -> RunSummary:
    """A stored run in a list."""
    cost = UNKNOWN_USAGE if state.usage is None else cost_of(state.usage.models, prices)
    times = _times(state.record, state.activity, state.log_id)
    # The record is valid already, and a list has many.
    return RunSummary.model_construct(**state.record.__dict__, **times, cost=cost)


def _times(record: RunRecord, activity: RunActivity | None, log_id: str) -> dict[str, Any]:
    ended_at = ended_at_of(record, activity)
    duration = duration_us(record, ended_at)
    return {
        "ended_at": ended_at,
        "duration_seconds": None if duration is None else duration / 1_000_000,
        "is_session": is_session_run(record.run_id, log_id),
    }


def models_of(rows: Iterable[ModelUsage], prices: PriceTable | None) -> list[ModelUsageDocument]:
    """The usage of each model, in the order of the rows."""
    groups: dict[tuple[object, ...], list[ModelUsage]] = {}
    for row in rows:
        groups.setdefault((row.model, row.maker, row.provider, row.is_others), []).append(row)
    return [_model(each, prices) for each in groups.values()]


def cost_of(rows: Sequence[ModelUsage], prices: PriceTable | None) -> CostDocument:
    if prices is None:
        return _NO_COST
    cost = prices.cost(rows)
    return CostDocument(
        amount=_number(cost.amount), reason=cost.reason, currency=prices.currency, prices_date=prices.date
    )


_NO_COST: Final = CostDocument(amount=None, reason=NO_PRICES.reason, currency=None, prices_date=None)

UNKNOWN_USAGE: Final = CostDocument(
    amount=None,
    reason="an earlier version folded the run: `GET /v1/runs/{run_id}` computes its cost",
    currency=None,
    prices_date=None,
)


def _model(rows: Sequence[ModelUsage], prices: PriceTable | None) -> ModelUsageDocument:
    first, totals = rows[0], add(TokenTotals(), *rows)
    return ModelUsageDocument(
        **dict(totals),
        model=first.model,
        maker=first.maker,
        provider=first.provider,
        is_others=first.is_others,
        calls=sum(row.calls for row in rows),
        cost=_number(_cost(rows, prices).amount),
    )


def _cost(rows: Sequence[ModelUsage], prices: PriceTable | None) -> Cost:
    return prices.cost(rows) if prices else NO_PRICES


def _number(amount: Decimal | None) -> float | None:
    """The amount to a billionth, as JSON readers have it."""
    return None if amount is None else float(round(amount, 9))
