"""The contract with producers in other languages, as an AsyncAPI 3.0 document. It describes in
words what Runfold's own client does.

Limits, partitions and fields are taken from the code. Tests compare everything else with what the
client does.
"""

from typing import Any, Final

from runfold_schemas.catalog import Life, Segments
from runfold_schemas.memories import NO_RUN
from runfold_schemas.topics import (
    DEAD_LETTER_BYTES_MAX,
    DEAD_LETTER_MS,
    DEAD_LETTER_SEGMENT_MS,
    ID_BYTES_MAX,
    PARK_SECONDS_MIN,
    PARTITIONS_DEFAULT,
    RECORD_BYTES_MAX,
    TOPIC_BYTES_MAX,
    Topics,
)

EVENT_SCHEMA_FILE: Final = "event.schema.json"

_KAFKA_BINDING_VERSION: Final = "0.5.0"
_JSON_SCHEMA: Final = "application/schema+json;version=draft-2020-12"

_COMMON: Final = {"message.timestamp.type": "LogAppendTime", "compression.type": "uncompressed"}
"""The configuration of every topic."""

_STEPS: Final = f"""\
How a producer without Runfold's library publishes a run. Every step is at the level of Kafka's
protocol. Any Kafka client works that has idempotent producers, record headers, explicit partitions
and topic creation.

1. **Choose the ids.** `run_id` is 1 to {ID_BYTES_MAX} bytes of UTF-8 without NUL, unique among all
   runs (for example a UUID). `log_id` names this life of the run: a UUIDv7 as 32 hexadecimal digits
   in lower case, never used before.
2. **Name the topic**: `{{prefix}}.run.{{run}}.{{log_id}}`. `{{run}}` is `run_id` with each UTF-8
   byte outside `A-Z a-z 0-9 -` written as `_` and two hexadecimal digits in lower case. Kafka
   allows {TOPIC_BYTES_MAX} bytes for a name. Examples are under `x-runfold-vectors`.
3. **Create the topic** with the partitions and the configuration of channel `run`. Replication
   factor and `min.insync.replicas` depend on the deployment. The broker does not create topics by
   itself, because `auto.create.topics.enable` is false. Do not send a request for a topic before it
   exists. If you open many runs, create their topics with one request.
4. **Producer settings**: `enable.idempotence=true`, `acks=all`. Any compression is allowed, because
   the broker unpacks what it stores (`compression.type=uncompressed`, which belongs to the
   configuration of every topic). Unpacked, a record batch has at most {RECORD_BYTES_MAX:,} bytes. If
   the broker refuses a batch, continue with a new producer, because the sequence numbers of the old
   producer have a gap.
5. **Open the run**: the topic's first record, at offset 0, is a `run_opened` event whose
   `data.log_id` is the topic's. Wait for its acknowledgement.
6. **Announce it**: append a `life` record to the catalog, in partition `(murmur2(run_id) &
   0x7fffffff) % partitions`, where `murmur2` is Kafka's (seed 0x9747b28c) over the UTF-8 bytes of
   the bare `run_id`, not of the record's key. Set the partition explicitly. `partitions` is the
   number of partitions of the catalog, which never changes: read it from Kafka's metadata of the
   topic when you connect. It is {PARTITIONS_DEFAULT} unless somebody has configured another number.
   Channels `sessions`, `memories` and `banks` have the same number, so stop with an error if
   one differs: a record in another partition than its key's counts for nothing. Write this record once;
   only projectors write it again. If another producer might open the same `run_id`, read that
   partition to its end afterwards: the first `life` record of the run counts. If it is not yours,
   delete your topic. If its `agent_id` is yours, use the topic that it names.
7. **Publish events**: each record's value is one event as in `{EVENT_SCHEMA_FILE}`, its key is
   `run_id`, its headers are CloudEvents' binary mode. `event_id` is a UUID (preferably v7) in
   lower case. Appending an event again with the same `event_id` is safe: the first copy counts.
   Events in one record batch are accepted together or not at all.
8. **Ring the bell**: projectors stop watching a run that has been quiet. If you have neither opened
   the run, published to it nor rung its bell within the last {PARK_SECONDS_MIN / 2:g} s, append a
   `bell` to the run's catalog partition before you publish. Append a `bell` after a publish if its
   acknowledgement arrives more than {PARK_SECONDS_MIN / 2:g} s after the last of these. Without a
   bell, projectors find the event in their next sweep, seconds later.
9. **End the run** with `run_completed`, `run_failed` or `run_canceled`. Later events are kept and
   marked late; later changes of status are refused.
10. **State** changes by an event's `state_delta`, an object of keys and values. All runs of an
   agent share `app:` keys. All runs of an agent with the same `user_id` share `user:` keys. Keys
   without one of these prefixes belong to the run. For each of the two shared scopes that an event
   changes, append a `state_changed` event to channel `sessions`, with the `event_id`, `run_id` and
   `timestamp` of the event and only the keys of that scope. If you do not, the projectors do it
   later. Do not publish `temp:` keys; readers ignore them.
11. **To create a session**, open a run as above, with `session_id` and `user_id`. Before you
   announce the run, append `session_created` to channel `sessions`, with the `run_id` and `log_id`
   of that run. Then read the partition up to that record. If the session existed before, delete
   your topic. `session_updated` and `session_deleted` name the run of the session; they have no
   effect if the session id belongs to another run meanwhile.
12. **A memory** changes by `memory_created`, `memory_updated`, `memory_deleted` and
   `memory_rolled_back`, on the topic of a run or directly on channel `memories` (with `run_id`
   `{NO_RUN}` if no run caused the change). Only the order on channel `memories` decides. Each event
   carries the whole memory after the change. A change with `based_on` counts only if the event with
   that id is the memory's last change. If you publish a change on the topic of a run, append it to
   channel `memories` too, with the same `event_id`; if you do not, the projectors do it later. Each
   change leaves a revision with the id of the event. The revision expires after 365 days, unless
   `revision_expires_at` names another time. **A bank** is created, changed and deleted in the same
   way, on channel `banks`.
13. **Go on in the next topic.** The log of a run that has ended, or was quiet for long, is sealed
   and archived. A sealed topic refuses every event with `MESSAGE_TOO_LARGE` (error 10), also a
   small one, and is deleted later: then it is unknown. In both cases, read the run's catalog
   partition to its end. Of the records with the key `log:` and the `run_id`, and with your
   `log_id`, the highest `base` names the next topic. If a sealed topic has no record with a higher
   base than its own yet, read on until it comes. If an unknown topic has none, the run was deleted,
   or has ended long ago: stop. `POST /v1/runs` of the HTTP API still opens an ended run, and answers
   with its topic. Create the topic `{{prefix}}.run.{{run}}.{{log_id}}.{{base}}` as in step 3, unless
   it exists, and append a `bell`. If the name has more than {TOPIC_BYTES_MAX} bytes, `__` and the first 32
   hexadecimal digits of the SHA-256 of `run_id` replace `{{run}}`. Send the refused events there in
   their order, with the same `event_id`s, before any later ones. The offset of an event in its run,
   which `expected_offset` names, is `base` plus Kafka's offset. Consumers pass over records with the
   key `sealed` and without a value. Do not write `log:` records.
   Many clients refuse large records themselves with the same error: set their limit to the topic's
   `max.message.bytes`, and refuse larger events before you send them.
   A program that goes on with a run of an earlier process begins with the same look at the catalog,
   and creates the topic of the highest base if there is one.
14. **Transactions** are for the topics of runs alone, which readers read committed. Aborted records
   count for nothing, and keep their offsets. An open transaction holds back what follows it in its
   run, also events of others, so keep it short. Ring the bell after the commit. All other channels
   are read uncommitted. A topic is sealed when no transaction is open in it. If a record of a
   transaction is refused, abort the transaction, and send all its events again in another one, with
   the same `event_id`s.

Records that cannot be decoded, or whose `ce_id` or `ce_type` contradicts the event, go to the dead
letters; the run continues.
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
                "sessions", "Sessions, and the state that runs share", message="sharedEvent"
            ),
            "memories": _shared_channel("memories", "Changes of memories", message="memoryChange"),
            "banks": _shared_channel(
                "banks", "Banks of memories and their configuration", message="bankFact"
            ),
            "deadLetters": _dead_letter_channel(),
        },
        "operations": {
            "publishEvent": _operation("send", "run", "event", "Append an event to its run"),
            "announceLife": _operation("send", "catalog", "life", "Announce that a run was opened"),
            "findNextTopic": _operation(
                "receive", "catalog", "segments", "Read where the log of a sealed topic goes on"
            ),
            "ringBell": _operation("send", "catalog", "bell", "Announce new events of a quiet run"),
            "changeSession": _operation(
                "send", "sessions", "sharedEvent", "Change a session, or state that runs share"
            ),
            "changeMemory": _operation("send", "memories", "memoryChange", "Change a memory"),
            "changeBank": _operation("send", "banks", "bankFact", "Change a bank of memories"),
            "watchDeadLetters": _operation(
                "receive", "deadLetters", "deadLetter", "Read the records that could not be decoded"
            ),
        },
        "components": {
            "messages": {
                "event": _event_message(),
                "life": _life_message(),
                "segments": _segments_message(),
                "bell": _bell_message(),
                "sharedEvent": _shared_message(
                    "session_created, session_updated, session_deleted or state_changed",
                    key="session: and the session_id; app: and the app; or user:, the app, a slash and the"
                    " user",
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
            "description": "run_id, escaped: each byte outside A-Z, a-z, 0-9 and - becomes _ and two"
            " hexadecimal"
            " digits",
            "examples": ["order-17", "a_2fb"],
        },
        "log_id": {
            "description": "this life of the run: a UUIDv7 as 32 hexadecimal digits",
            "examples": ["019c1a2b3c4d7e8f9a0b1c2d3e4f5a6b"],
        },
    }
    return _channel(
        "{prefix}.run.{run}.{log_id}",
        "All events of one life of one run, in a total order",
        messages=["event"],
        parameters=parameters,
        partitions=1,
        configuration={**_everlasting(), "max.message.bytes": RECORD_BYTES_MAX},
    )


def _catalog_channel() -> dict[str, Any]:
    return _channel(
        "{prefix}.runs",
        "Which runs exist, which of them have new events, and where the logs of sealed topics go on: up to"
        " three keys for each run, all in the partition of its run_id",
        messages=["life", "segments", "bell"],
        partitions=PARTITIONS_DEFAULT,
        configuration={
            "cleanup.policy": ["compact"],
            "min.compaction.lag.ms": 24 * 3600 * 1000,
            **_COMMON,
        },
    )


def _shared_channel(name: str, description: str, *, message: str) -> dict[str, Any]:
    return _channel(
        f"{{prefix}}.{name}",
        f"{description}; the order of a key's partition decides which change counts",
        messages=[message],
        partitions=PARTITIONS_DEFAULT,
        configuration={**_everlasting(), "max.message.bytes": RECORD_BYTES_MAX},
    )


def _dead_letter_channel() -> dict[str, Any]:
    return _channel(
        "{prefix}.dead-letters",
        "Records that could not be decoded",
        messages=["deadLetter"],
        partitions=1,
        configuration={
            **_everlasting(),
            "retention.ms": DEAD_LETTER_MS,
            "segment.ms": DEAD_LETTER_SEGMENT_MS,
            "max.message.bytes": DEAD_LETTER_BYTES_MAX,
        },
    )


def _everlasting() -> dict[str, Any]:
    return {
        "cleanup.policy": ["delete"],
        "retention.ms": -1,
        "retention.bytes": -1,
        **_COMMON,
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
        "description": "the prefix of all topics of one installation: 1 to 32 of A-Z, a-z, 0-9 and -",
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
        "summary": "One event of a run",
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
    """The headers repeat fields of the event for routing. Each header that is present must agree
    with the event.
    """
    headers: dict[str, dict[str, Any]] = {
        "ce_specversion": {"const": "1.0"},
        "ce_id": {"description": "the event's event_id"},
        "ce_type": {"description": "the event's type"},
        "ce_source": {"description": "the producer, as a URI reference"},
        "ce_time": {"description": "the event's timestamp", "format": "date-time"},
        "content-type": {"const": "application/json"},
        "traceparent": {
            "description": "optional: the span that caused the event, as W3C's trace context and"
            " CloudEvents' extension for tracing name it. An invalid value is ignored. A run is exported"
            " as a part of the trace that the header of its first event names",
            "examples": ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
        },
    }
    return {
        "type": "object",
        "required": ["ce_specversion", "ce_id", "ce_type", "ce_source"],
        "properties": {name: {"type": "string", **schema} for name, schema in headers.items()},
    }


def _life_message() -> dict[str, Any]:
    return {
        "summary": "One life of a run: its log, its agent and session, and whether it has ended",
        "contentType": "application/json",
        "payload": {"schemaFormat": _JSON_SCHEMA, "schema": Life.model_json_schema()},
        "bindings": _key("life: and the run_id, as in life:order-17"),
    }


def _segments_message() -> dict[str, Any]:
    return {
        "summary": "Where the log of a run lies since its first topic was sealed; the archiver publishes it",
        "contentType": "application/json",
        "payload": {"schemaFormat": _JSON_SCHEMA, "schema": Segments.model_json_schema()},
        "bindings": _key("log: and the run_id, as in log:order-17"),
    }


def _bell_message() -> dict[str, Any]:
    return {
        "summary": "The run has new events; any producer may publish this",
        "description": "A tombstone: the record has no value, so compaction removes bells and never a life.",
        "payload": {"type": "null"},
        "bindings": _key("bell: and the run_id, as in bell:order-17"),
    }


def _shared_message(kinds: str, *, key: str) -> dict[str, Any]:
    return {
        "summary": f"An event whose order on this topic decides: {kinds}",
        "contentType": "application/json",
        "headers": _cloudevents_headers(),
        "payload": {"schemaFormat": _JSON_SCHEMA, "schema": {"$ref": f"./{EVENT_SCHEMA_FILE}"}},
        "bindings": _key(
            f"{key}. If a slash separates two ids, % in an id is written %25 and / is written %2F. The"
            " partition"
            " is (murmur2(key) & 0x7fffffff) % partitions, with the number of partitions of the topic"
        ),
    }


def _dead_letter_message() -> dict[str, Any]:
    headers = {
        "runfold-origin-topic": "the topic of the record (for shared topics: topic-partition)",
        "runfold-origin-offset": "the offset of the record there, in decimal",
        "runfold-reason": "why the record could not be decoded, in one line",
    }
    return {
        "summary": "A record that could not be decoded, with its own headers",
        "description": "If the record is too large to be sent again, its value is cut, its own headers are"
        " left out, and the header runfold-cut is true. With encryption, the value is empty, the record's"
        " own headers are left out, and the header runfold-record-bytes has the size of its value.",
        "headers": {
            "type": "object",
            "required": list(headers),
            "properties": {name: {"type": "string", "description": text} for name, text in headers.items()},
        },
        "payload": {"description": "any bytes"},
        "bindings": _key("origin topic, a colon, origin offset: copies of one dead letter have the same key"),
    }


def _key(description: str) -> dict[str, Any]:
    key = {"type": "string", "description": description}
    return {"kafka": {"key": key, "bindingVersion": _KAFKA_BINDING_VERSION}}


def _vectors() -> list[dict[str, Any]]:
    """The topics and the catalog partition that a producer should compute for some run ids. The
    partitions are written down, because Kafka's hash decides them.
    """
    partitions = {"order-17": 9, "a/b": 6, "run_1": 3, "Größe": 7, "019c1a2b-3c4d-7e8f-9a0b-1c2d3e4f5a6d": 6}
    partitions["ä" * 34] = 3  # whose next topic has a hash in its name
    log_id = "019c1a2b3c4d7e8f9a0b1c2d3e4f5a6b"
    return [
        {
            "run_id": run_id,
            "log_id": log_id,
            "topic": Topics().run(run_id, log_id),
            "base": 2**20 + 5,
            "next_topic": Topics().segment(run_id, log_id, 2**20 + 5),
            "catalog_partition": partition,
        }
        for run_id, partition in partitions.items()
    ]
