"""The contract with producers in other languages, as an AsyncAPI 3.0 document: what our client
does, said in words.

What the code knows (limits, partitions, fields) is taken from the code; tests compare the rest with
what the client does.
"""

from typing import Any, Final

from runfold_schemas.catalog import Life
from runfold_schemas.memories import NO_RUN
from runfold_schemas.topics import (
    CATALOG_PARTITIONS,
    DEAD_LETTER_BYTES_MAX,
    ID_BYTES_MAX,
    PARK_SECONDS_MIN,
    RECORD_BYTES_MAX,
    TOPIC_BYTES_MAX,
    Topics,
)

EVENT_SCHEMA_FILE: Final = "event.schema.json"

_KAFKA_BINDING_VERSION: Final = "0.5.0"
_JSON_SCHEMA: Final = "application/schema+json;version=draft-2020-12"

_STEPS: Final = f"""\
How a producer without our library publishes a run. Every step is at the level of Kafka's protocol; any client will do
that has idempotent producers, record headers, explicit partitions and topic creation.

1. **Choose the ids.** `run_id` is 1 to {ID_BYTES_MAX} bytes of UTF-8 without NUL, unique among all runs (a UUID, if nothing
   better is at hand). `log_id` names this one life of the run: a UUIDv7 as 32 hexadecimal digits in lower case, never
   used before.
2. **Name the topic**: `{{prefix}}.run.{{run}}.{{log_id}}`. `{{run}}` is `run_id` with each UTF-8 byte outside `A-Z a-z 0-9 -`
   written as `_` and two hexadecimal digits in lower case. A name longer than {TOPIC_BYTES_MAX} bytes is not allowed.
   Examples are under `x-runfold-vectors`.
3. **Create the topic** with the partitions and the configuration of channel `run`; replication factor and
   `min.insync.replicas` are the deployment's. The broker has `auto.create.topics.enable=false`, so nobody else does. Name
   no topic before it exists. Create many runs' topics with one request where you can.
4. **Producer settings**: `enable.idempotence=true`, `acks=all`, compression none or gzip. A record batch has at most
   {RECORD_BYTES_MAX:,} bytes. If the broker refuses a batch, go on with a new producer: the old one's sequence numbers
   have a hole.
5. **Open the run**: the topic's first record, at offset 0, is a `run_opened` event whose `data.log_id` is the topic's. Wait
   for its acknowledgement.
6. **Announce it**: append a `life` record to the catalog, in partition `(murmur2(run_id) & 0x7fffffff) %
   {CATALOG_PARTITIONS}`, where `murmur2` is Kafka's (seed 0x9747b28c) over the UTF-8 bytes of the bare `run_id`, not of the
   record's key. Set the partition explicitly. Write this record once; afterwards it belongs to the projectors.
   If somebody else might open the same `run_id`, read that partition to its end afterwards: the first `life` record of the
   run stands. If it is not yours, delete your topic and use the one that it names, if its `agent_id` is yours.
7. **Publish events**: each record's value is one event as in `{EVENT_SCHEMA_FILE}`, its key is `run_id`, its headers are
   CloudEvents' binary mode. `event_id` is a UUID (v7 by preference) in lower case. Appending an event again with the same
   `event_id` is safe: the first copy counts. Events in one record batch are accepted together or not at all.
8. **Ring the bell**: a run that was quiet is no longer watched. So append a `bell` to the run's catalog partition before you
   publish to a run that you have neither opened, published to nor rung for within the last {PARK_SECONDS_MIN / 2:g} s, and once
   more if an acknowledgement came more than {PARK_SECONDS_MIN / 2:g} s after that. Without a bell an event is found by the next
   sweep, seconds later.
9. **End the run** with `run_completed`, `run_failed` or `run_canceled`. What is published after that is kept as late; changes
   of status are refused.
10. **State** changes by an event's `state_delta`, an object of keys and values. Keys without a scope belong to the run.
   `app:` keys are shared by all runs of the agent, `user:` keys by all runs of the agent that were opened with the same
   `user_id`: for each of the two scopes that an event changes, append to channel `sessions` a `state_changed` event with the
   event's own `event_id`, `run_id` and `timestamp`, and those keys only. If you do not, the projectors will, later. `temp:`
   keys are not to be published; no reader takes them.
11. **A session** is created by opening a run as above, with `session_id` and `user_id`, but before you announce it appending
   `session_created` to channel `sessions`, with that run's `run_id` and `log_id`. Read the partition to that record: if the
   session was there already, delete your topic. `session_updated` and `session_deleted` name the session's run, and mean
   nothing once it is another one's.
12. **A memory** changes by `memory_created`, `memory_updated`, `memory_deleted` and `memory_rolled_back`, on a run's topic or
   straight on channel `memories` (with `run_id` `{NO_RUN}` where no run has caused it). Its order there alone decides. Each
   carries all that the memory holds afterwards; a change with `based_on` counts only if that event was the memory's last
   change. From a run's topic append it to channel `memories` as well, with the same `event_id`; if you do not, the
   projectors will, later. A change leaves a revision with the event's id, for 365 days unless `revision_expires_at` says
   otherwise. **A bank** is created, changed and deleted likewise, on channel `banks`.

What cannot be decoded, or whose `ce_id` or `ce_type` contradicts the event, goes to the dead letters, and the run goes on.
"""


def asyncapi() -> dict[str, Any]:
    """The whole document."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Runfold: publishing to the log",
            "version": "1.0.0",
            "description": _STEPS,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            "run": _run_channel(),
            "catalog": _catalog_channel(),
            "sessions": _shared_channel(
                "sessions", "What runs share of sessions and of state", message="sharedEvent"
            ),
            "memories": _shared_channel("memories", "Changes of memories", message="memoryChange"),
            "banks": _shared_channel(
                "banks", "Banks of memories, and their configuration", message="bankFact"
            ),
            "deadLetters": _dead_letter_channel(),
        },
        "operations": {
            "publishEvent": _operation("send", "run", "event", "Append an event to its run"),
            "announceLife": _operation("send", "catalog", "life", "Say that a run was opened"),
            "ringBell": _operation("send", "catalog", "bell", "Say that a quiet run has something new"),
            "changeSession": _operation(
                "send", "sessions", "sharedEvent", "Change a session, or state that runs share"
            ),
            "changeMemory": _operation("send", "memories", "memoryChange", "Change a memory"),
            "changeBank": _operation("send", "banks", "bankFact", "Change a bank of memories"),
            "watchDeadLetters": _operation(
                "receive", "deadLetters", "deadLetter", "See what was not understood"
            ),
        },
        "components": {
            "messages": {
                "event": _event_message(),
                "life": _life_message(),
                "bell": _bell_message(),
                "sharedEvent": _shared_message(
                    "session_created, session_updated, session_deleted or state_changed",
                    key="session: and the session_id; app: and the app; or user:, the app, a slash and the user",
                ),
                "memoryChange": _shared_message(
                    "memory_created, memory_updated, memory_deleted or memory_rolled_back",
                    key="memory:, the bank_id, a slash and the memory_id",
                ),
                "bankFact": _shared_message(
                    "bank_created, bank_updated or bank_deleted", key="bank: and the bank_id"
                ),
                "deadLetter": _dead_letter_message(),
            }
        },
        "x-runfold-vectors": _vectors(),
    }


def _run_channel() -> dict[str, Any]:
    parameters = {
        "run": {
            "description": "run_id, escaped: a byte outside A-Z, a-z, 0-9 and - is _ and two hexadecimal digits",
            "examples": ["order-17", "a_2fb"],
        },
        "log_id": {
            "description": "this life of the run: a UUIDv7 as 32 hexadecimal digits",
            "examples": ["019c1a2b3c4d7e8f9a0b1c2d3e4f5a6b"],
        },
    }
    return _channel(
        "{prefix}.run.{run}.{log_id}",
        "Everything of one life of one run, totally ordered",
        messages=["event"],
        parameters=parameters,
        partitions=1,
        configuration={**_everlasting(), "max.message.bytes": RECORD_BYTES_MAX},
    )


def _catalog_channel() -> dict[str, Any]:
    return _channel(
        "{prefix}.runs",
        "Which runs there are and which one has something new: two keys a run, both in the partition of its run_id",
        messages=["life", "bell"],
        partitions=CATALOG_PARTITIONS,
        configuration={
            "cleanup.policy": ["compact"],
            "min.compaction.lag.ms": 24 * 3600 * 1000,
            "message.timestamp.type": "LogAppendTime",
        },
    )


def _shared_channel(name: str, description: str, *, message: str) -> dict[str, Any]:
    return _channel(
        f"{{prefix}}.{name}",
        f"{description}, each key in the partition that decides it",
        messages=[message],
        partitions=CATALOG_PARTITIONS,
        configuration={**_everlasting(), "max.message.bytes": RECORD_BYTES_MAX},
    )


def _dead_letter_channel() -> dict[str, Any]:
    return _channel(
        "{prefix}.dead-letters",
        "Records that are no events, as they were",
        messages=["deadLetter"],
        partitions=1,
        configuration={**_everlasting(), "max.message.bytes": DEAD_LETTER_BYTES_MAX},
    )


def _everlasting() -> dict[str, Any]:
    return {
        "cleanup.policy": ["delete"],
        "retention.ms": -1,
        "retention.bytes": -1,
        "message.timestamp.type": "LogAppendTime",
    }


def _channel(
    address: str,
    description: str,
    *,
    messages: list[str],
    partitions: int,
    configuration: dict[str, Any],
    parameters: dict[str, Any] | None = None,
) -> dict[str, Any]:
    prefix = {
        "description": "common to all topics of one Runfold: 1 to 32 of A-Z, a-z, 0-9 and -",
        "default": "runfold",
    }
    return {
        "address": address,
        "description": description,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "parameters": {"prefix": prefix, **(parameters or {})},
        "bindings": {
            "kafka": {
                "partitions": partitions,
                "topicConfiguration": configuration,
                "bindingVersion": _KAFKA_BINDING_VERSION,
            }
        },
    }


def _operation(action: str, channel: str, message: str, summary: str) -> dict[str, Any]:
    return {
        "action": action,
        "summary": summary,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{message}"}],
    }


def _event_message() -> dict[str, Any]:
    event = {
        "event_id": "019c1a2b-3c4d-7e8f-9a0b-1c2d3e4f5a6c",
        "run_id": "order-17",
        "timestamp": "2026-01-02T03:04:05.678Z",
        "type": "run_opened",
        "data": {"agent_id": "support", "log_id": "019c1a2b3c4d7e8f9a0b1c2d3e4f5a6b", "status": "running"},
    }
    return {
        "summary": "One fact, published once",
        "contentType": "application/json",
        "headers": _cloudevents_headers(),
        "payload": {"schemaFormat": _JSON_SCHEMA, "schema": {"$ref": f"./{EVENT_SCHEMA_FILE}"}},
        "bindings": _key("run_id"),
        "examples": [
            {
                "name": "opening",
                "headers": {
                    "ce_specversion": "1.0",
                    "ce_id": event["event_id"],
                    "ce_type": event["type"],
                    "ce_source": "shop/agents",
                    "ce_time": event["timestamp"],
                    "content-type": "application/json",
                },
                "payload": event,
            }
        ],
    }


def _cloudevents_headers() -> dict[str, Any]:
    """All of them are for routing and repeat the event; those that are there have to agree with
    it.
    """
    described = {
        "ce_specversion": {"const": "1.0"},
        "ce_id": {"description": "the event's event_id"},
        "ce_type": {"description": "the event's type"},
        "ce_source": {"description": "the producer, as a URI reference"},
        "ce_time": {"description": "the event's timestamp", "format": "date-time"},
        "content-type": {"const": "application/json"},
        "traceparent": {"description": "W3C trace context, if there is one"},
    }
    return {
        "type": "object",
        "required": ["ce_specversion", "ce_id", "ce_type", "ce_source"],
        "properties": {name: {"type": "string", **schema} for name, schema in described.items()},
    }


def _life_message() -> dict[str, Any]:
    return {
        "summary": "The whole state of one life of a run: where its log is, whose it is, whether it has ended",
        "contentType": "application/json",
        "payload": {"schemaFormat": _JSON_SCHEMA, "schema": Life.model_json_schema()},
        "bindings": _key("life: and the run_id, as in life:order-17"),
    }


def _bell_message() -> dict[str, Any]:
    return {
        "summary": "The run has something new; anybody may say so",
        "description": "A tombstone: the record has no value, so compaction takes it away and never a fact.",
        "payload": {"type": "null"},
        "bindings": _key("bell: and the run_id, as in bell:order-17"),
    }


def _shared_message(kinds: str, *, key: str) -> dict[str, Any]:
    return {
        "summary": f"An event that is decided here: {kinds}",
        "contentType": "application/json",
        "headers": _cloudevents_headers(),
        "payload": {"schemaFormat": _JSON_SCHEMA, "schema": {"$ref": f"./{EVENT_SCHEMA_FILE}"}},
        "bindings": _key(
            f"{key}; where a slash parts two ids, % in them is written %25 and / is written %2F. The partition is"
            f" (murmur2(key) & 0x7fffffff) % {CATALOG_PARTITIONS}"
        ),
    }


def _dead_letter_message() -> dict[str, Any]:
    headers = {
        "runfold-origin-topic": "where it was",
        "runfold-origin-offset": "at which offset, in decimal",
        "runfold-reason": "what is wrong with it, one line",
    }
    return {
        "summary": "A record as it was, its own headers included",
        "description": "One that is too large to be sent again is cut, without its own headers, and says so: runfold-cut.",
        "headers": {
            "type": "object",
            "required": list(headers),
            "properties": {name: {"type": "string", "description": text} for name, text in headers.items()},
        },
        "payload": {"description": "any bytes"},
        "bindings": _key("origin topic, a colon, origin offset: one that is buried twice has one key"),
    }


def _key(description: str) -> dict[str, Any]:
    key = {"type": "string", "description": description}
    return {"kafka": {"key": key, "bindingVersion": _KAFKA_BINDING_VERSION}}


def _vectors() -> list[dict[str, Any]]:
    """What a producer's own code should make of a `run_id`. The partitions are Kafka's to know, so
    they are written down.
    """
    partitions = {"order-17": 9, "a/b": 6, "run_1": 3, "Größe": 7, "019c1a2b-3c4d-7e8f-9a0b-1c2d3e4f5a6d": 6}
    log_id = "019c1a2b3c4d7e8f9a0b1c2d3e4f5a6b"
    return [
        {
            "run_id": run_id,
            "log_id": log_id,
            "topic": Topics().run(run_id, log_id),
            "catalog_partition": partition,
        }
        for run_id, partition in partitions.items()
    ]
