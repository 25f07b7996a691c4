"""A language model of any provider, asked through pydantic-ai, with answers in our schema."""

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
from runfold.secret_urls import without_secrets
from runfold.telemetry import outages
from runfold.telemetry.request_times import LANGUAGE_MODEL, REQUEST_TIMES
from runfold.token_notes import note_tokens
from runfold_schemas.errors import (
    ConfigurationError,
    GenerationFailedError,
    RunfoldError,
    UnavailableError,
)

_SERVER: Final = "The model"

ANSWER_SECONDS: Final = 120.0
"""The longest time for one question, with all retries."""

_TOKENS_MAX: Final = 16_000
"""The longest answer, including the thinking of some models before it."""

_OPENAI_COMPATIBLE: Final = ("openai", "openai-chat")

AnswerT = TypeVar("AnswerT", bound=BaseModel)


class LanguageModel:
    """A `MemoryModel`, created by `connect_model`."""

    def __init__(self, model: Model, settings: ModelSettings) -> None:
        self._findings = _agent(model, Findings, settings)
        self._actions = _agent(model, Actions, settings)

    async def extract(self, conversation: str, *, instructions: str) -> Sequence[Found]:
        return (await _ask(self._findings, conversation, instructions)).facts

    async def consolidate(self, facts: Sequence[str], memories: Sequence[str]) -> Sequence[Action]:
        return (await _ask(self._actions, question(facts, memories), CONSOLIDATE)).actions


@asynccontextmanager
async def connect_model(
    name: str,
    *,
    url: str | None = None,
    timeout_seconds: float = ANSWER_SECONDS,
    retries: int = 2,
) -> AsyncIterator[LanguageModel]:
    """The model with this name, such as `openai:gpt-5-mini`. With `url`, the model of a server at
    this URL that supports OpenAI's chat completions.

    Keys are read from the provider's own variables, such as OPENAI_API_KEY. Raises
    `ConfigurationError` if the name is unknown or the key is missing.
    """
    model = _model(name, url)
    # Each attempt gets half of the time, so that there is time for another one if it hangs.
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
    except Exception as error:  # nothing is asked yet, so every error is one of configuration
        reason = without_secrets(str(error))
        raise ConfigurationError(
            f"RUNFOLD_GENERATION_MODEL is {name!r}, and this model cannot be used: {reason}"
        ) from error


def _model_at(url: str, name: str) -> Model:
    provider, _, model_name = name.partition(":")
    if provider not in _OPENAI_COMPATIBLE or not model_name:
        raise ConfigurationError(
            f"RUNFOLD_GENERATION_MODEL is {name!r}: with RUNFOLD_GENERATION_URL,"
            " set it to openai:<the server's name of the model>"
        )
    return OpenAIChatModel(model_name, provider=OpenAIProvider(base_url=url))


def _agent(model: Model, answer: type[AnswerT], settings: ModelSettings) -> Agent[object, AnswerT]:
    # If an answer does not match the schema, the model is asked once more.
    return Agent(model, output_type=answer, name="runfold", model_settings=settings, retries=1)


async def _ask(agent: Agent[Any, AnswerT], prompt: str, instructions: str) -> AnswerT:
    try:
        with REQUEST_TIMES.measured(LANGUAGE_MODEL, "ask"):
            answer = await agent.run(prompt, instructions=instructions)
    except ModelAuthenticationError as error:
        # A provider's message repeats the refused key, and errors are stored in logs. So the
        # provider's error is not chained.
        raise _key_refused(error) from None
    except AgentRunError as error:
        translated = _translated(error)
        if isinstance(translated, UnavailableError):
            # An answer may repeat the conversation.
            outages.failed(_SERVER, _kind(error))
        raise translated from error
    outages.answered(_SERVER)
    note_tokens(answer.usage.total_tokens)
    return answer.output


def _kind(error: AgentRunError) -> str:
    return f"HTTP {error.status_code}" if isinstance(error, ModelHTTPError) else type(error).__name__


def _key_refused(error: ModelAuthenticationError) -> ConfigurationError:
    status = f" (HTTP {error.status_code})" if isinstance(error, ModelHTTPError) else ""
    return ConfigurationError(
        f"the provider of RUNFOLD_GENERATION_MODEL refuses the key{status}: check the provider's variable,"
        " such as OPENAI_API_KEY for openai, and the permissions of the key"
    )


def _translated(error: AgentRunError) -> RunfoldError:
    match error:
        case ModelNotFoundError() | ModelQuotaExceededError():
            return ConfigurationError(
                f"the model of RUNFOLD_GENERATION_MODEL cannot be asked: {_message(error)}"
            )
        case ModelContextWindowExceededError() | ModelRequestRejectedError() | UnexpectedModelBehavior():
            return GenerationFailedError(f"the model has no answer: {_message(error)}")
        case ModelAPIError():
            return UnavailableError(_SERVER, reason=_message(error))
        case _:
            return GenerationFailedError(f"the model has no answer: {_message(error)}")


def _message(error: AgentRunError) -> str:
    """The error's message on one line, cut to a length that can be stored."""
    return " ".join(without_secrets(str(error)).split())[:500]
