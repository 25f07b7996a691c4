"""Logging in to a Kafka that asks for it: passwords, tokens, and what a refusal looks like."""

import json
from asyncio import create_task, gather, wait_for
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import PIPE
from uuid import uuid4

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest
from tests.forking import runfold_process
from tests.processes import environment, projections, reaches, until, working
from tests.secured_kafka import (
    ADMIN,
    PASSWORD,
    USER,
    TokenEndpoint,
    by_password,
    secured_kafka,
    token_endpoint,
)
from tests.tails import Appender, TailReader, create_topics, read_on

from runfold import ConfigurationError, Runfold, UnavailableError
from runfold.log.settings import LogSettings
from runfold.log.tail import Tail
from runfold.projector.connection import connect_worker
from runfold.settings import Settings
from runfold.store.database import connect
from runfold_schemas.events import UserMessage
from runfold_schemas.topics import Partition


def by_token(url: str, secret: str = PASSWORD) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": url,
        "sasl_oauthbearer_client_credentials_client_id": USER,
        "sasl_oauthbearer_client_credentials_client_secret": secret,
        "sasl_oauthbearer_scope": "kafka all",
    }


@pytest.fixture(scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with secured_kafka(tmp_path_factory.mktemp("kafka")) as address:
        yield address


@pytest.fixture(scope="module")
async def endpoint() -> AsyncIterator[TokenEndpoint]:
    async with token_endpoint() as endpoint:
        yield endpoint


async def test_a_token_logs_in_clients_and_projectors(secured: str, mongo: str, endpoint: TokenEndpoint):
    name = f"t{uuid4().hex[:8]}"
    settings = Settings(
        kafka=secured, mongo=mongo, prefix=name, database=name, kafka_options=by_token(endpoint.url)
    )
    async with connect(settings.mongo, settings.database) as database, Runfold.of(settings.log()) as runfold:
        run = await runfold.open_run(agent_id="a")
        await run.publish(UserMessage(message="m"))
        assert len([event async for event in run.events()]) == 2
        async with connect_worker(settings, database, "e1") as worker:
            working = create_task(worker.work())
            await until(lambda: is_folded(worker), what="the projector's fold")
            working.cancel()
            await gather(working, return_exceptions=True)

    assert endpoint.given == 1
    assert endpoint.requests[0] == "grant_type=client_credentials&scope=kafka+all"


async def is_folded(worker) -> bool:
    return worker.events >= 2


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_refused_password_is_an_error_of_the_configuration(secured: str, mechanism: str):
    options = by_password("wrong-password", mechanism)
    with pytest.raises(ConfigurationError, match="Kafka refuses the login") as refused:
        async with Runfold(kafka=secured, kafka_options=options):
            pass
    assert "wrong-password" not in str(refused.value)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_SSL"])
async def test_a_listener_of_another_protocol_is_an_error_that_names_the_option(secured: str, protocol: str):
    login = by_password() if protocol.startswith("SASL") else {}
    with pytest.raises(UnavailableError, match=f"another security_protocol .* than {protocol}"):
        async with Runfold(kafka=secured, kafka_options=login | {"security_protocol": protocol}):
            pass


async def test_a_login_at_a_listener_without_logins_is_an_error_of_the_configuration(kafka: str):
    with pytest.raises(ConfigurationError, match="correct security_protocol"):
        async with Runfold(kafka=kafka, kafka_options=by_password()):
            pass


async def test_the_right_password_logs_in(secured: str):
    async with Runfold(
        kafka=secured, prefix=f"t{uuid4().hex[:8]}", create_topics=True, kafka_options=by_password()
    ) as runfold:
        assert [run async for run in runfold.runs()] == []


async def test_a_refused_client_of_the_token_endpoint_is_an_error_of_the_configuration(
    secured: str, endpoint: TokenEndpoint
):
    with pytest.raises(ConfigurationError, match="the token endpoint answers 401 to client runfold"):
        async with Runfold(kafka=secured, kafka_options=by_token(endpoint.url, "wrong")):
            pass


@pytest.mark.parametrize(
    "command",
    [
        ["serve", "api"],
        ["serve", "projector"],
        ["serve", "query"],
        ["serve", "ingest"],
        ["sessions"],
    ],
)
async def test_commands_and_services_say_in_one_line_that_the_login_is_refused(
    secured: str, mongo: str, command: list[str], tmp_path: Path
):
    name = f"t{uuid4().hex[:8]}"
    settings = Settings(kafka=secured, mongo=mongo, prefix=name, database=name)
    options = {"RUNFOLD_KAFKA_OPTIONS": json.dumps(by_password("wrong-password"))}
    variables = environment(settings) | options
    process = await runfold_process(*command, env=variables, stdout=PIPE, stderr=PIPE)
    _, log = await wait_for(process.communicate(), 60)

    assert process.returncode == 2, log.decode()
    assert log.decode().count("Kafka refuses the login") == 1
    assert "Traceback" not in log.decode()
    assert "wrong-password" not in log.decode()


TOPIC, LITERAL = 2, 3
WRITE, DESCRIBE = 4, 8
ALLOW = 3


async def send_as_admin(secured: str, *requests) -> None:
    """Sends the requests for ACLs as a user for whom none counts."""
    admin = AIOKafkaAdminClient(bootstrap_servers=secured, **by_password() | {"sasl_plain_username": ADMIN})
    await admin.start()
    try:
        for request in requests:
            answer = await admin._send_request(request)  # aiokafka has no method for ACLs
            assert "error_code=0" in str(answer), answer
    finally:
        await admin.close()


@pytest.mark.parametrize("allowed", [(WRITE, DESCRIBE), (WRITE,)])
async def test_a_refused_topic_sets_aside_its_run_and_no_other(
    secured: str, mongo: str, allowed: tuple[int, ...]
):
    name = f"t{uuid4().hex[:8]}"
    settings = Settings(kafka=secured, mongo=mongo, prefix=name, database=name, kafka_options=by_password())
    async with Runfold.of(settings.log()) as runfold, projections(settings) as stored:
        refused, healthy = [await runfold.open_run(agent_id="a") for _ in range(2)]
        topic = runfold.connection.topics.run(refused.run_id, refused.life.log_id)
        async with working(settings, stored.edition) as worker:
            last = await refused.publish(UserMessage(message="m"))
            await until(lambda: reaches(stored, refused, last.offset), what="the fold before the refusal")
            # A topic with an ACL allows nothing else.
            acls = [
                CreateAclsRequest(TOPIC, topic, LITERAL, f"User:{USER}", "*", operation, ALLOW)
                for operation in allowed
            ]
            await send_as_admin(secured, *acls)

            async def is_set_aside() -> bool:
                return worker.quarantine.has_run(refused.run_id)

            await until(is_set_aside, what="the quarantine of the run")
            last = await healthy.publish(UserMessage(message="m"))
            await until(lambda: reaches(stored, healthy, last.offset), what="the fold of the other run")


async def refuse(secured: str, topic: str) -> None:
    """Refuses a topic to the user: an ACL allows it to another one, and so to nobody else."""
    await send_as_admin(secured, CreateAclsRequest(TOPIC, topic, LITERAL, "User:other", "*", WRITE, ALLOW))


@pytest.mark.parametrize("is_followed_before", [True, False])
async def test_a_tail_goes_on_without_the_topics_that_kafka_refuses(secured: str, is_followed_before: bool):
    name, login = f"t{uuid4().hex[:8]}", by_password()
    refused, healthy = Partition(f"{name}.run.refused", 0), Partition(f"{name}.run.healthy", 0)
    await create_topics(secured, [refused.topic, healthy.topic], login=login)
    async with (
        Appender.connect(secured, name, login=login) as appender,
        TailReader.connect(secured, login=login, passes_refused=True) as reader,
    ):
        for at in (healthy, refused) if is_followed_before else (healthy,):
            reader.follow(at)
            await appender.append(at)
            await reader.has({at: 1})
        await refuse(secured, refused.topic)
        if not is_followed_before:
            reader.follow(refused)

        async def is_refused() -> bool:
            return refused.topic in reader.tail.refused

        await until(is_refused, what="the refusal")
        await appender.append(healthy)
        await reader.has({healthy: 2})

    assert "allow the login to read it" in reader.tail.refused[refused.topic]
    assert refused not in reader.tail
    assert healthy in reader.tail


async def test_a_tail_that_may_not_miss_a_topic_ends_with_an_error_that_names_it(secured: str):
    name, login = f"t{uuid4().hex[:8]}", by_password()
    at = Partition(f"{name}.run.refused", 0)
    await create_topics(secured, [at.topic], login=login)
    await refuse(secured, at.topic)
    async with Tail.connect(LogSettings(kafka=secured, kafka_options=login)) as tail:
        tail.follow(at, 0)
        with pytest.raises(UnavailableError, match=f"refuses the topic {at.topic}"):
            await read_on(tail)
