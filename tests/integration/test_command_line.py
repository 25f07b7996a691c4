"""The program as its users run it: how it ends when it is told to, and what it says when something
is wrong.
"""

import asyncio
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple
from uuid import uuid4

import pytest
from tests.forking import Forked, runfold_process
from tests.processes import until

from runfold.local import free_port, ready_url

PLAIN = {"COLUMNS": "200", "NO_COLOR": "1"}
NOBODY_LISTENS = "127.0.0.1:1"
READY_SECONDS = 60
END_SECONDS = 60
LOADING_SECONDS = 120
"""The end of a command that loads a library of models first, on a busy machine. Such a command
waits for no server.
"""


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


@pytest.fixture
def environment(kafka: str, mongo: str, prefix: str, database: str) -> dict[str, str]:
    return {
        "RUNFOLD_KAFKA": kafka,
        "RUNFOLD_MONGO": mongo,
        "RUNFOLD_PREFIX": prefix,
        "RUNFOLD_DATABASE": database,
    }


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("part", ["api", "projector"])
async def test_a_service_that_is_told_to_stop_stops_and_says_by_what(
    environment: dict[str, str], part: str, number: signal.Signals, code: int
) -> None:
    port = free_port()
    health = port + 1 if part == "projector" else port
    process = await executed("serve", part, "--port", str(port), **environment)
    async with asyncio.timeout(READY_SECONDS):
        await ready_url(f"http://127.0.0.1:{health}/health/ready")(None)

    process.send_signal(number)

    assert (await ending(process)).code == code


@pytest.mark.parametrize("part", ["ingest", "query", "api", "projector"])
async def test_a_service_stops_though_neither_kafka_nor_mongodb_has_answered(part: str) -> None:
    process = await started(
        "serve",
        part,
        f"--port={free_port()}",
        RUNFOLD_KAFKA=NOBODY_LISTENS,
        RUNFOLD_MONGO=f"mongodb://{NOBODY_LISTENS}",
    )

    await until(lambda: handles(process.pid, signal.SIGTERM), what="a handler of SIGTERM")
    process.terminate()

    assert (await ending(process)).code == 143


async def test_unknown_runs_are_named(environment: dict[str, str]) -> None:
    # Its health is one port further, and that is all it listens on.
    process = await started("serve", "projector", f"--port={free_port()}", **environment)
    try:
        for command in ("replay", "verify"):

            async def answered(command: str = command) -> bool:
                ended = await ending(await started(command, "no-such-run", **environment))
                return ended.code == 1 and ended.errors.startswith("error: run 'no-such-run' does not exist")

            await until(answered, what=f"the answer of {command}")
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.parametrize("command", [["replay", "r"], ["rebuild"]])
async def test_kafka_away_is_one_line(environment: dict[str, str], command: list[str]) -> None:
    ended = await ending(await started(*command, **{**environment, "RUNFOLD_KAFKA": NOBODY_LISTENS}))

    assert ended.code == 1
    assert ended.errors.startswith("error: Kafka is not available")
    assert ended.errors.count("\n") == 1


async def test_verify_of_an_empty_database_needs_no_kafka(environment: dict[str, str]) -> None:
    ended = await ending(await started("verify", **{**environment, "RUNFOLD_KAFKA": NOBODY_LISTENS}))

    assert ended.code == 1
    assert "this database contains no projections yet" in ended.output
    assert ended.errors == ""


@pytest.mark.parametrize("command", [["verify"], ["serve", "api"], ["serve", "projector"]])
@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"RUNFOLD_MONGO": "mongodb://h:99999"}, "error: RUNFOLD_MONGO is not a connection string"),
        ({"RUNFOLD_PARK_SECONDS": "long"}, "error: RUNFOLD_PARK_SECONDS: Input should be a valid number"),
        ({"RUNFOLD_KAFKA_OPTIONS": "{broken"}, "error: RUNFOLD_KAFKA_OPTIONS: the value is not JSON"),
        (
            {"RUNFOLD_MIN_INSYNC_REPLICAS": "2"},
            "error: RUNFOLD_MIN_INSYNC_REPLICAS=2 is more than RUNFOLD_REPLICATION_FACTOR=1",
        ),
    ],
)
async def test_a_wrong_setting_is_one_line_that_names_it(
    command: list[str], settings: dict[str, str], line: str
) -> None:
    ended = await ending(await started(*command, **settings))

    assert ended.code == 2
    assert ended.errors.startswith(line)
    assert ended.errors.count("\n") == 1


@pytest.mark.parametrize("command", [["verify"], ["serve", "api"], ["serve", "projector"]])
async def test_a_refused_password_is_one_line(environment: dict[str, str], command: list[str]) -> None:
    refused = environment["RUNFOLD_MONGO"].replace("mongodb://", "mongodb://somebody:hush@")

    ended = await ending(await started(*command, **environment | {"RUNFOLD_MONGO": refused}))

    assert ended.code == 2
    assert ended.errors.startswith("error: RUNFOLD_MONGO: MongoDB refuses the user or the password")
    assert ended.errors.count("\n") == 1
    assert "hush" not in ended.errors


async def test_a_model_that_cannot_be_used_is_one_line(environment: dict[str, str]) -> None:
    ended = await ending(
        await started("serve", "api", **environment | {"RUNFOLD_GENERATION_MODEL": "nobody:x"}),
        seconds=LOADING_SECONDS,
    )

    assert ended.code == 2
    assert ended.errors.splitlines()[-1].startswith("error: RUNFOLD_GENERATION_MODEL is 'nobody:x'")
    assert "Traceback" not in ended.errors


async def test_more_replicas_than_brokers_is_one_line(environment: dict[str, str]) -> None:
    replicated = environment | {"RUNFOLD_REPLICATION_FACTOR": "30"}
    ended = await ending(await started("tenants", "add", f"t{uuid4().hex[:8]}", **replicated))

    assert ended.code == 2
    assert ended.errors.startswith("error: the replication factor 30 is higher than")
    assert ended.errors.count("\n") == 1


async def test_a_mistyped_variable_is_a_warning_and_no_more() -> None:
    ended = await ending(await started("settings", RUNFOLD_KAFKAA="h:1"))

    assert ended.code == 0
    assert ended.errors == "warning: there is no setting RUNFOLD_KAFKAA: did you mean RUNFOLD_KAFKA?\n"


async def test_a_wrong_port_is_told_as_it_was_given() -> None:
    ended = await ending(await started("serve", "api", "--port=99999"))

    assert ended.code == 2
    assert ended.errors == "error: --port: Input should be less than or equal to 65534\n"


async def test_the_version_is_told() -> None:
    ended = await ending(await executed("--version"))

    assert ended.code == 0
    assert ended.output == f"runfold {version('runfold')}\n"


async def test_a_rebuild_among_projectors_prints_nothing_but_its_own(environment: dict[str, str]) -> None:
    environment |= {"RUNFOLD_RETIRE_SECONDS": "1"}
    ports = [free_port(), free_port()]
    projectors = [await started("serve", "projector", f"--port={port - 1}", **environment) for port in ports]
    try:
        for port in ports:
            async with asyncio.timeout(READY_SECONDS):
                await ready_url(f"http://127.0.0.1:{port}/health/ready")(None)

        ended = await ending(await started("rebuild", **environment))
    finally:
        for process in projectors:
            process.kill()
            await process.communicate()

    assert (ended.code, ended.errors) == (0, "")
    assert len(ended.output.splitlines()) == 2


async def test_a_wrong_option_is_told_with_where_to_find_the_right_ones() -> None:
    ended = await ending(await started("replay", "r", "--jsn"))

    assert ended.code == 2
    assert "No such option: --jsn" in ended.errors
    assert "runfold replay -h" in ended.errors


async def test_settings_are_listed_without_their_secrets() -> None:
    ended = await ending(
        await started(
            "settings",
            RUNFOLD_MONGO="mongodb://runfold:hush@m/?replicaSet=rs0",
            RUNFOLD_KAFKA_OPTIONS='{"security_protocol": "SASL_PLAINTEXT", "sasl_plain_username": "u",'
            ' "sasl_plain_password": "hush"}',
        )
    )

    assert ended.code == 0
    assert "RUNFOLD_MONGO=mongodb://***@m/?replicaSet=rs0" in ended.output
    assert "hush" not in ended.output


async def executed(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    """The program as a shell starts it."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "runfold.cli", *arguments),
        env=os.environ | PLAIN | environment,
        stdout=PIPE,
        stderr=PIPE,
    )


async def started(*arguments: str, **environment: str) -> Forked:
    """The program without its imports, for what it does afterwards."""
    variables = os.environ | PLAIN | environment
    return await runfold_process(*arguments, env=variables, stdout=PIPE, stderr=PIPE)


async def ending(process: asyncio.subprocess.Process | Forked, *, seconds: float = END_SECONDS) -> Ended:
    try:
        async with asyncio.timeout(seconds):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    assert process.returncode is not None
    return Ended(process.returncode, output.decode(), errors.decode())


async def handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler of its own for the signal."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line for line in status if line.startswith("SigCgt")).split()[1]
    return bool(int(caught, 16) >> (number - 1) & 1)
