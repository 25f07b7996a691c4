"""A Kafka with a listener that asks for a login, and an OpenID Connect endpoint for its tokens."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from runfold.local import free_port
from runfold.local.kafka import kafka_service
from runfold.local.kafka_classes import kafka_java

USER, PASSWORD = "runfold", "right-password"
ADMIN = "admin"
"""A user with the same password, for whom no ACL counts."""

_MODULES = "org.apache.kafka.common.security"


@asynccontextmanager
async def secured_kafka(
    folder: Path, *, users: Sequence[str] = (USER,), allows_by_default: bool = True
) -> AsyncIterator[str]:
    """The address of the secured listener: PLAIN for the users and the administrator, SCRAM for
    none, OAUTHBEARER for any unsigned token. A topic without ACLs is open to all users, or to none.
    """
    java = await kafka_java(heap_mb=256, progress=print)
    port, secured = free_port(), free_port()
    service = await kafka_service(java, data_dir=folder, port=port, controller_port=free_port())
    properties = folder / "kafka.properties"
    lines = properties.read_text().splitlines()
    added = {
        "listeners": f",SECURED://127.0.0.1:{secured}",
        "advertised.listeners": f",SECURED://127.0.0.1:{secured}",
        "listener.security.protocol.map": ",SECURED:SASL_PLAINTEXT",
    }
    lines = [line + added.get(line.partition("=")[0], "") for line in lines]
    logins_of_users = " ".join(f'user_{user}="{PASSWORD}"' for user in (*users, ADMIN))
    plain = f"plain.PlainLoginModule required {logins_of_users};"
    token = 'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    validator = "oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
    logins = {
        "plain.sasl.jaas.config": plain,
        "scram-sha-256.sasl.jaas.config": "scram.ScramLoginModule required;",
        "oauthbearer.sasl.jaas.config": token,
        "oauthbearer.sasl.server.callback.handler.class": validator,
    }
    lines += [
        "inter.broker.listener.name=PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        f"allow.everyone.if.no.acl.found={str(allows_by_default).lower()}",
        f"super.users=User:ANONYMOUS;User:{ADMIN}",
    ]
    lines += [f"listener.name.secured.{name}={_MODULES}.{value}" for name, value in logins.items()]
    properties.write_text("\n".join(lines))
    await service.start()
    try:
        yield f"127.0.0.1:{secured}"
    finally:
        is_running, log = service.running, service.logged()[-5000:]
        await service.stop()
        assert is_running, f"Kafka has ended by itself:\n{log}"


def by_password(password: str = PASSWORD, mechanism: str = "PLAIN", *, user: str = USER) -> dict[str, str]:
    """The options of a Kafka client that logs in by a password."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


class TokenEndpoint:
    """Gives unsigned tokens to one client. `url` is its address."""

    def __init__(self) -> None:
        self.url = ""
        self.given = 0
        self.requests: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in head.lower().splitlines() if line.startswith("content-length"))
        self.requests.append((await reader.readexactly(int(length.split(":")[1]))).decode())
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        status, body = "401 Unauthorized", '{"error": "invalid_client"}'
        if f"Basic {login}" in head:
            self.given += 1
            status, body = "200 OK", json.dumps({"access_token": unsigned_token(), "expires_in": 600})
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def token_endpoint() -> AsyncIterator[TokenEndpoint]:
    endpoint = TokenEndpoint()
    async with await asyncio.start_server(endpoint.answer, "127.0.0.1", 0) as server:
        endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token"
        yield endpoint


def unsigned_token() -> str:
    """A token without a signature, which Kafka's validator for tests accepts."""
    claims = {"sub": USER, "iat": time.time() - 1, "exp": time.time() + 600}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."
