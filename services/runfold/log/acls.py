"""The rights on Kafka of each kind of program, as access control lists (ACLs). Whatever a list does
not name is refused by a broker with an authorizer.
"""

import re
import shlex
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from runfold_schemas.memories import GENERATION_LOG_PREFIX
from runfold_schemas.topics import Topics, escape


class Role(StrEnum):
    """The kinds of programs that connect to Kafka."""

    service = "service"
    """API, projector, and the commands of operators."""
    client = "client"
    """An agent with the client library, which is trusted with the data of all agents."""
    archiver = "archiver"
    """`runfold serve archiver`, which reads, seals and deletes the topics of runs."""
    producer = "producer"
    """A program that appends events to its own runs. It opens them over HTTP. Its events change
    banks, memories and shared state only if the projectors have no keys of effects.
    """


class Resource(StrEnum):
    """What an ACL protects, by the name of the option of `kafka-acls`."""

    cluster = "cluster"
    topic = "topic"
    group = "group"


class Acl(NamedTuple):
    """Allows operations on a resource, or on all whose names begin with `name`."""

    resource: Resource
    name: str
    operations: tuple[str, ...]
    is_prefix: bool = False


CLUSTER: Final = "kafka-cluster"
"""Kafka's name for the cluster as a resource."""

_EVERYTHING: Final = ("All",)

_CHECK_OF_BROKER: Final = Acl(Resource.cluster, CLUSTER, ("DescribeConfigs",))
"""Clients look whether the broker would recreate deleted topics."""


def acls_of(role: Role, topics: Topics, *, runs: str = "", seals: bool = False) -> list[Acl]:
    """The ACLs of a role. A producer has the runs whose ids begin with `runs`. A client that
    `seals` makes keys of users, and so may destroy them.
    """
    match role:
        case Role.service:
            return _acls_of_services(topics)
        case Role.client:
            return _acls_of_clients(topics, seals=seals)
        case Role.archiver:
            return _acls_of_archivers(topics)
        case Role.producer:
            own = topics.run_prefix + escape(runs)
            return [Acl(Resource.topic, own, ("Write", "Describe"), is_prefix=True)]


def includes_made_ids(runs: str) -> bool:
    """Whether runs whose ids Runfold makes may begin with this text: those of sessions, which are
    UUIDs of version 7, and the logs of generations.
    """
    return (
        re.fullmatch(r"0[0-9a-f-]*", runs) is not None
        or runs.startswith(GENERATION_LOG_PREFIX)
        or GENERATION_LOG_PREFIX.startswith(runs)
    )


def _acls_of_services(topics: Topics) -> list[Acl]:
    everything = f"{topics.prefix}."
    return [
        _CHECK_OF_BROKER,
        Acl(Resource.topic, everything, _EVERYTHING, is_prefix=True),
        Acl(Resource.group, everything, _EVERYTHING, is_prefix=True),
    ]


def _acls_of_clients(topics: Topics, *, seals: bool) -> list[Acl]:
    # A client asks for the creation of what it needs, also if that exists.
    common = ("Create", "Describe", "Read", "Write")
    written = (topics.catalog, *topics.shared)
    return [
        _CHECK_OF_BROKER,
        Acl(
            Resource.topic,
            topics.run_prefix,
            ("Create", "Delete", "Describe", "Read", "Write"),
            is_prefix=True,
        ),
        *(Acl(Resource.topic, name, common) for name in written),
        Acl(Resource.topic, topics.dead_letters, ("Create", "Describe")),
        Acl(Resource.topic, topics.verdicts, ("Describe", "Read")),
        # A client without the key looks whether others seal.
        Acl(Resource.topic, topics.keys, common if seals else ("Describe",)),
    ]


def _acls_of_archivers(topics: Topics) -> list[Acl]:
    read = ("Describe", "Read")
    of_runs = ("AlterConfigs", "Delete", "Describe", "DescribeConfigs", "Read", "Write")
    return [
        _CHECK_OF_BROKER,
        Acl(Resource.topic, topics.run_prefix, of_runs, is_prefix=True),
        Acl(Resource.topic, topics.catalog, (*read, "Write")),
        # It looks whether the services have made all topics.
        *(Acl(Resource.topic, name, ("Describe",)) for name in (*topics.shared, topics.dead_letters)),
        Acl(Resource.topic, topics.keys, ("Describe",)),
        # With authentication, it reads who may see its metrics.
        *(Acl(Resource.topic, name, read) for name in (topics.verdicts, topics.api_keys, topics.tenants)),
        Acl(Resource.group, f"{topics.prefix}.archiver", ("Describe", "Read")),
    ]


def commands(acls: list[Acl], *, kafka: str, user: str) -> Iterator[str]:
    """The commands of Kafka's own tool that add the ACLs for a user."""
    for acl in acls:
        named = [] if acl.resource is Resource.cluster else [acl.name]
        pattern = ["--resource-pattern-type", "prefixed" if acl.is_prefix else "literal"]
        yield shlex.join(
            [
                *("kafka-acls.sh", "--bootstrap-server", kafka, "--add", "--allow-principal", f"User:{user}"),
                *(part for operation in acl.operations for part in ("--operation", operation)),
                *(f"--{acl.resource}", *named),
                *(pattern if named else []),
            ]
        )
