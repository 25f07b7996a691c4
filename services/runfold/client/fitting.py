"""Fits a conversation to a budget, with the best counter of tokens that this process has. Checks
what the caller of `Run.ledger` gives.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from runfold.client.token_counters import counter_for
from runfold_projections.budget import Budget, Fitted
from runfold_projections.fitting import Conversation, fit, last_maker
from runfold_projections.message_tokens import ESTIMATE
from runfold_projections.providers import EncodeOptions, check_options, check_provider
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.messages import Provider


async def fit_messages(
    conversation: Conversation, budget: Budget, provider: Provider, options: EncodeOptions
) -> Fitted:
    """The messages that fit the budget. Raises `BudgetExceededError`."""
    maker = options.get("maker") or last_maker(conversation)
    counter = await asyncio.to_thread(counter_for, provider, options, maker)
    if counter is ESTIMATE:
        return fit(conversation, budget, provider, counter, maker=maker)
    # A vocabulary takes about 100 ms for a long conversation.
    return await asyncio.to_thread(fit, conversation, budget, provider, counter, maker=maker)


def check_request(format_: Provider | None, budget: Budget | None, options: Mapping[str, Any]) -> None:
    """Raises `InvalidEventError` for an unknown format, a wrong budget and a wrong value of an
    option. Raises `TypeError` for an unknown option.
    """
    check_options(options)
    if format_ is not None:
        check_provider(format_, field="format")
    elif budget is not None:
        raise InvalidEventError("fit needs the format of a provider", field="fit")
    if budget is not None and not isinstance(budget, Budget):
        raise InvalidEventError(
            f"fit is a Budget, for example Budget(tokens=100_000), not {budget!r:.100}", field="fit"
        )
