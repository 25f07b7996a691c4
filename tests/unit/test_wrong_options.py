"""A wrong name of an option, of a format or of a provider is refused with an error that has the
right names. It is refused before the log is read.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from runfold import Budget, Run, encode, sync, validate
from runfold.log.settings import LogSettings
from runfold_projections.providers import provider_of, recorder
from runfold_schemas.catalog import Life
from runfold_schemas.errors import InvalidEventError
from runfold_schemas.messages import PROVIDERS

RESPONSE = {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "Hi"}}]}
UNKNOWN: list[Callable[[], Any]] = [
    lambda: encode([], "openai"),
    lambda: validate([], "openai"),
    lambda: recorder("openai"),
    lambda: recorder(["openai-chat"]),
]


def a_run() -> Run:
    """A run whose log nothing can read."""
    life = Life(run_id="r-1", agent_id="a", log_id="0" * 32)
    return Run(LogSettings(), Mock(), Mock(), life)


@pytest.mark.parametrize("call", UNKNOWN)
def test_an_unknown_provider_is_refused_with_the_known_ones(call: Callable[[], Any]):
    with pytest.raises(InvalidEventError) as refused:
        call()

    assert refused.value.field == "provider"
    assert all(name in str(refused.value) for name in PROVIDERS)


@pytest.mark.parametrize("response", [{"no": "response"}, {"error": {"message": "overloaded"}}])
def test_a_response_of_no_provider_is_refused_with_the_known_ones(response: dict[str, Any]):
    with pytest.raises(InvalidEventError) as refused:
        provider_of(response)

    assert all(name in str(refused.value) for name in PROVIDERS)
    assert ("the provider sent it instead" in str(refused.value)) == ("error" in response)


def test_an_option_of_another_name_is_refused():
    with pytest.raises(TypeError, match=r"option 'with_thinkin': .*lossy, maker, model, with_thinking"):
        encode([], "openai-chat", with_thinkin=False)
    with pytest.raises(TypeError, match=r"unknown option 'modell': .*broken_off, maker, model, thinking"):
        validate([], "openai-chat", modell="gpt-5")


def test_a_wrong_value_of_lossy_is_refused():
    with pytest.raises(InvalidEventError, match="lossy is 'refuse' or 'drop', not 'dorp'") as refused:
        encode([], "openai-chat", lossy="dorp")

    assert refused.value.field == "lossy"


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"format": "openai"}, InvalidEventError, "'openai' is no provider.*openai-chat"),
        ({"format": "anthropic", "modell": "x"}, TypeError, "unknown option 'modell'.*model"),
        ({"modell": "x"}, TypeError, "unknown option 'modell'.*model"),
        ({"format": "anthropic", "lossy": "dorp"}, InvalidEventError, "'refuse' or 'drop'"),
        ({"format": "anthropic", "fit": 1500}, InvalidEventError, r"fit is a Budget.*not 1500"),
        ({"format": "anthropic", "fit": 0}, InvalidEventError, r"fit is a Budget.*not 0"),
        ({"fit": Budget(tokens=1500)}, InvalidEventError, "fit needs the format of a provider"),
    ],
)
async def test_a_ledger_refuses_wrong_options(options: dict[str, Any], error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        await a_run().ledger(**options)


def test_the_synchronous_ledger_refuses_a_budget_without_a_format():
    with pytest.raises(InvalidEventError, match="fit needs the format of a provider"):
        sync.Run(Mock(), a_run()).ledger(fit=Budget(tokens=1500))


async def test_faults_and_recordings_refuse_wrong_options():
    run = a_run()

    with pytest.raises(InvalidEventError, match="'openai' is no provider"):
        await run.faults("openai")
    with pytest.raises(TypeError, match=r"unknown option 'makr': .*labels, late, maker, model"):
        await run.record(RESPONSE, makr="deepseek")
    with pytest.raises(TypeError, match="unknown option 'makr'"):
        run.record_stream([RESPONSE], makr="deepseek")
    with pytest.raises(InvalidEventError, match="'openai' is no provider"):
        run.record_stream([RESPONSE], provider="openai")
