"""The cost of a run's tokens by a table of prices. The table is a JSON file of the operator's. The
cost is computed when a run is read, and is never stored.

A cost follows the table or is unknown: a model without a price, or a number without a price, gives
a reason instead of an amount.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runfold_projections.usage import SIZES, ModelUsage
from runfold_schemas.codec import first_fault
from runfold_schemas.data import maker_key

_MILLION: Final = 1_000_000
_END: Final = 2**63

Price = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rates(_Strict):
    """Prices of a million tokens each. Without the price of its tokens a cost is unknown."""

    input: Price
    """Of tokens that are neither read from a cache nor written to one."""
    output: Price
    """Of all tokens of the response, with its reasoning."""
    cache_read: Price | None = None
    cache_write: Price | None = None
    cache_write_1h: Price | None = None
    """Of tokens that the cache keeps for an hour."""
    input_audio: Price | None = None
    output_audio: Price | None = None


class LargeRates(Rates):
    """The prices of requests with more input tokens than `tokens`."""

    tokens: Annotated[int, Field(gt=0)]


class ModelPrices(Rates):
    """The prices of the models that match."""

    model: Annotated[str, Field(min_length=1)]
    """The name of a model as responses have it. `*` stands for any characters."""
    maker: str | None = None
    """The maker or the format of the responses, if several charge differently for a model."""
    over: tuple[LargeRates, ...] = ()
    server_tools: dict[str, Price] = {}
    """The price of one request to a tool of the provider, by tool."""

    def matches(self, usage: ModelUsage) -> bool:
        maker = usage.maker or usage.provider
        if self.maker is not None and (maker is None or maker_key(self.maker) != maker_key(maker)):
            return False
        return usage.model is not None and fnmatchcase(usage.model, self.model)

    def rates(self, over: int) -> Rates:
        """The prices of requests with more input tokens than `over`, and at most the next size."""
        end = next((size for size in SIZES if size > over), _END)
        for large in sorted(self.over, key=lambda rates: -rates.tokens):
            if large.tokens <= over:
                return large
            if large.tokens < end:
                raise _UnknownCostError(
                    f"the prices of {self.model!r} change at {large.tokens} tokens, and totals are kept"
                    f" apart at {', '.join(map(str, SIZES))}"
                )
        return self


class Cost(NamedTuple):
    """An amount, or the reason why it is unknown."""

    amount: Decimal | None
    reason: str | None = None


class PriceTable(_Strict):
    """Prices of models. The first entry that matches counts."""

    date: date
    """The day of the prices."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    models: tuple[ModelPrices, ...]

    def cost(self, rows: Sequence[ModelUsage]) -> Cost:
        """The cost of all rows. It is unknown if that of one row is."""
        amount = Decimal(0)
        for row in rows:
            try:
                amount += self._amount(row)
            except _UnknownCostError as unknown:
                return Cost(None, str(unknown))
        return Cost(amount)

    def _amount(self, usage: ModelUsage) -> Decimal:
        prices = next((each for each in self.models if each.matches(usage)), None)
        if prices is None:
            raise _UnknownCostError(f"no price of {_name(usage)}")
        tokens = sum(
            (count * price for count, price in _charged(usage, prices.rates(usage.over))), start=Decimal(0)
        )
        return tokens / _MILLION + _tools(usage.server_tool_requests, prices)


NO_PRICES: Final = Cost(None, "no prices are set: see RUNFOLD_PRICES")


def read_prices(path: Path) -> PriceTable:
    """The table in a file. Raises `ValueError`, whose text says what is wrong."""
    try:
        return PriceTable.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        _, sentence = first_fault(error)
        raise ValueError(f"{path} is no table of prices: {sentence}") from error


class _UnknownCostError(Exception):
    """The cost cannot be known. The text is the reason."""


def _charged(usage: ModelUsage, rates: Rates) -> Iterator[tuple[int, Decimal]]:
    """The numbers of tokens with the price of each million."""
    plain = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    short = usage.cache_write_tokens - usage.cache_write_1h_tokens
    if usage.input_audio_tokens and usage.cache_read_tokens:
        raise _UnknownCostError("the provider does not say how much of the cached input is audio")
    plain -= usage.input_audio_tokens
    text = usage.output_tokens - usage.output_audio_tokens
    numbers = {
        "input": plain,
        "output": text,
        "cache_read": usage.cache_read_tokens,
        "cache_write": short,
        "cache_write_1h": usage.cache_write_1h_tokens,
        "input_audio": usage.input_audio_tokens,
        "output_audio": usage.output_audio_tokens,
    }
    for name, count in numbers.items():
        if count < 0:
            raise _UnknownCostError(f"the numbers of {_name(usage)} contradict each other")
        price: Decimal | None = getattr(rates, name)
        if price is None and count:
            raise _UnknownCostError(f"no price of {name} of {_name(usage)}")
        yield count, price or Decimal(0)


def _tools(requests: Mapping[str, int], prices: ModelPrices) -> Decimal:
    amount = Decimal(0)
    for tool, count in requests.items():
        if count and tool not in prices.server_tools:
            raise _UnknownCostError(f"no price of requests to {tool}, with {prices.model!r}")
        amount += count * prices.server_tools.get(tool, Decimal(0))
    return amount


def _name(usage: ModelUsage) -> str:
    if usage.is_others:
        return "the further models"
    if usage.model is None:
        return f"a model without a name, of {usage.maker or usage.provider or 'an unknown maker'}"
    return f"model {usage.model!r}"
