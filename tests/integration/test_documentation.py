"""Each page of documentation runs: README.md and docs/, block by block, on services of its own.

Addresses in the pages are the defaults. Those of the servers here take their place, with a prefix
that no other page has. Model providers are servers on loopback, where the providers' own packages
find them by the environment.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.documentation import PAGES, Story, blocks_of, check_output, markers
from tests.querying import ready_api, served
from tests.remembering import ScriptedModel
from tests.scripted_models import ScriptedModels

from runfold.generation.model import Action, Found
from runfold.projector.service import Projector
from runfold.settings import Settings

NOT_RUN = {
    ("README.md", "start"): "they start a stack of their own; test_dev and every other test cover them",
    ("README.md", "install"): "it would install from a path that is not there",
    ("archive.md", "install"): "it would install from a path that is not there",
    ("archive.md", "archiver"): "it starts a service; test_archiver has one",
    ("sessions.md", "endless"): "it follows a session that goes on; read.md follows a run that has ended",
    ("operate.md", "quarantine"): "nothing is in quarantine there; test_quarantine_command runs each of them",
    ("operate.md", "dead-letters"): "no dead letter is there; test_dead_letters runs each of them",
    ("operate.md", "backup"): "they stop the stack; test_dev runs them between its two stacks",
    ("operate.md", "torn"): "nothing is torn there; tests/hostile/test_restore.py has each case",
    ("console.md", "keys"): "the API there has no authentication; tests/security runs each of them",
    ("access.md", "keys"): "the API there has no authentication; tests/security runs each of them",
    ("access.md", "effects"): "it would leave a file; test_effect_keys runs it",
    ("tenants.md", "tenants"): "the API there has no tenants; test_tenant_commands runs each of them",
    ("encryption.md", "encryption"): "it starts a service; tests/security/test_encryption.py has one",
    ("evidence.md", "evidence"): "no projector signs there; tests/security runs each of them",
    ("erasure.md", "erasure"): "it would erase what other pages show; tests/security runs each of them",
    ("observe.md", "tracer"): "it runs for ever; test_tracer has a collector",
    ("observe.md", "levels"): "it starts a service that runs for ever; test_log_lines has levels",
    ("moving.md", "litellm"): "LiteLLM is not installed",
    ("moving.md", "langgraph"): "LangChain is not installed",
    ("moving.md", "ai-sdk"): "the AI SDK is a package of JavaScript",
    ("memories.md", "model"): "it starts a stack; the API of the test has a model that follows a script",
}
"""The blocks that no test runs, by page and name, and the reason."""

LIVES_IN_LYON = ScriptedModel(
    found=[Found(fact="Lives in Lyon", topics=["USER_PERSONAL_INFO"])],
    actions=[Action(kind="create", facts=[0], memory=None, text="Lives in Lyon")],
)


@pytest.fixture
def settings(kafka: str, mongo: str, prefix: str) -> Settings:
    """Those of one page."""
    return Settings(
        kafka=kafka, mongo=mongo, prefix=prefix, database=prefix, retire_seconds=2, wait_timeout_seconds=20
    )


@pytest.fixture
async def url(settings: Settings) -> AsyncIterator[str]:
    """Of an API with a projector at work behind it, and with a model that generates memories."""
    projecting = asyncio.create_task(Projector(settings).project())
    async with ready_api(settings, model=LIVES_IN_LYON) as client:
        yield str(client.base_url)
    projecting.cancel()
    await asyncio.wait([projecting])


@pytest.fixture
async def providers() -> AsyncIterator[str]:
    """The URL of model providers that say what a script has."""
    async with served(ScriptedModels().app) as client:
        yield str(client.base_url)


@pytest.fixture
async def story(
    settings: Settings, url: str, providers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Story]:
    for name, value in variables(settings, providers).items():
        monkeypatch.setenv(name, value)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    # An answer that is an error ends the block. Each answer ends its line.
    (tmp_path / ".curlrc").write_text('silent\nshow-error\nfail-with-body\nwrite-out = "\\n"\n')
    address = url.removeprefix("http://")
    replacements = {
        "mongodb://127.0.0.1:27017/?replicaSet=rs0": settings.mongo.get_secret_value(),
        'Runfold("127.0.0.1:9092"': f'Runfold("{settings.kafka}", prefix="{settings.prefix}"',
        "127.0.0.1:9092": settings.kafka,
        "127.0.0.1:8080": address,
        "localhost:8080": address,
    }
    here = {**os.environ, "CURL_HOME": str(tmp_path)}
    async with Story(folder=tmp_path, variables=here, replacements=replacements) as story:
        yield story


def variables(settings: Settings, providers: str) -> dict[str, str]:
    """The environment of the pages: Runfold's settings, and where model providers are."""
    return {
        **{f"RUNFOLD_{name.upper()}": str(getattr(settings, name)) for name in settings.model_fields_set},
        "ANTHROPIC_BASE_URL": providers,
        "ANTHROPIC_API_KEY": "none",
        "OPENAI_BASE_URL": providers,
        "OPENAI_API_KEY": "none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "GOOGLE_GEMINI_BASE_URL": providers,
        "GOOGLE_API_KEY": "none",
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": providers,
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }


# The models that the pages name grow old with each release of the providers' packages.
@pytest.mark.filterwarnings("default::DeprecationWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_every_block_of_a_page_does_what_the_page_says(page: Path, story: Story) -> None:
    for block in blocks_of(page):
        if block.not_run is None:
            output = await story.run(block)
            if block.output is not None:
                check_output(block, output)


def test_a_block_that_is_not_run_has_a_reason() -> None:
    assert set(markers()) == set(NOT_RUN)
