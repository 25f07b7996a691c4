"""A language model of any provider, through pydantic-ai, with answers that have our schema."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
)
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from runfold.generation.model import Action, Actions, Findings, Found
from runfold.generation.prompts import CONSOLIDATE, question
from runfold_schemas.errors import (
    ConfigurationError,
    GenerationFailedError,
    RunfoldError,
    UnavailableError,
)

ANSWER_SECONDS: Final = 120.0
"""For one question, with all that is tried again within it."""

_TOKENS_MAX: Final = 16_000
"""Of an answer, with what some models think before it."""

_OPENAI_COMPATIBLE: Final = ("openai", "openai-chat")

AnswerT = TypeVar("AnswerT", bound=BaseModel)


class LanguageModel:
    """A `MemoryModel`. Get it from `connect_model`."""

    def __init__(self, model: Model, settings: ModelSettings) -> None:
        self._findings = _agent(model, Findings, settings)
        self._actions = _agent(model, Actions, settings)

    async def extract(self, conversation: str, *, instructions: str) -> Sequence[Found]:
        return (await _answer(self._findings, conversation, instructions)).facts

    async def consolidate(self, facts: Sequence[str], known: Sequence[str]) -> Sequence[Action]:
        return (await _answer(self._actions, question(facts, known), CONSOLIDATE)).actions


@asynccontextmanager
async def connect_model(
    name: str,
    *,
    url: str | None = None,
    timeout_seconds: float = ANSWER_SECONDS,
    retries: int = 2,
) -> AsyncIterator[LanguageModel]:
    """The model of this name, as `openai:gpt-5-mini`; with `url`, one that a server speaking
    OpenAI's chat completions has there.

    Keys come from the variables that the provider itself knows, as OPENAI_API_KEY. Raises
    `ConfigurationError` for a name that nobody knows, or without its key.
    """
    model = _model(name, url)
    # Each attempt may take half of the time, so that one that hangs does not take the next one's.
    settings = ModelSettings(
        max_tokens=_TOKENS_MAX,
        max_retries=retries,
        timeout=timeout_seconds / 2,
        request_timeout=timeout_seconds,
    )
    async with model:
        yield LanguageModel(model, settings)


def _model(name: str, url: str | None) -> Model:
    try:
        return infer_model(name) if url is None else _model_at(url, name)
    except ConfigurationError:
        raise
    except Exception as error:  # nothing is asked yet: whatever a provider objects to is how it is configured
        raise ConfigurationError(
            f"RUNFOLD_GENERATION_MODEL is {name!r}, and cannot be used: {error}"
        ) from error


def _model_at(url: str, name: str) -> Model:
    provider, _, model_name = name.partition(":")
    if provider not in _OPENAI_COMPATIBLE or not model_name:
        raise ConfigurationError(
            f"RUNFOLD_GENERATION_MODEL is {name!r}: with RUNFOLD_GENERATION_URL it is openai:<the server's name of the model>"
        )
    return OpenAIChatModel(model_name, provider=OpenAIProvider(base_url=url))


def _agent(model: Model, answer: type[AnswerT], settings: ModelSettings) -> Agent[object, AnswerT]:
    # An answer that has not the schema is asked for once more.
    return Agent(model, output_type=answer, name="runfold", model_settings=settings, retries=1)


async def _answer(agent: Agent[Any, AnswerT], asked: str, instructions: str) -> AnswerT:
    try:
        return (await agent.run(asked, instructions=instructions)).output
    except ModelAuthenticationError as error:
        # Providers repeat the key that they refuse, and errors go to logs, of which one lasts for
        # ever.
        raise _refused(error) from None
    except AgentRunError as error:
        raise _translated(error) from error


def _refused(error: ModelAuthenticationError) -> ConfigurationError:
    status = f" (HTTP {error.status_code})" if isinstance(error, ModelHTTPError) else ""
    return ConfigurationError(
        f"the provider of RUNFOLD_GENERATION_MODEL refuses the key{status}: check the variable in which it looks for one,"
        " OPENAI_API_KEY for openai, and what the key is allowed"
    )


def _translated(error: AgentRunError) -> RunfoldError:
    match error:
        case ModelNotFoundError() | ModelQuotaExceededError():
            return ConfigurationError(
                f"the model of RUNFOLD_GENERATION_MODEL cannot be asked: {_said(error)}"
            )
        case ModelContextWindowExceededError() | ModelRequestRejectedError() | UnexpectedModelBehavior():
            return GenerationFailedError(f"the model has no answer: {_said(error)}")
        case ModelAPIError():
            return UnavailableError("The model", reason=_said(error))
        case _:
            return GenerationFailedError(f"the model has no answer: {_said(error)}")


def _said(error: AgentRunError) -> str:
    """What happened, in a line that is not too long to be kept."""
    return " ".join(str(error).split())[:500]
