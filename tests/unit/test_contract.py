"""The contract's files: current, whole, and at one with what our own client does."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.admin import NewTopic
from tests.builders import event
from tests.partitions import partition_of

from runfold.log.admin import LogAdmin
from runfold.log.catalog import bell_record, life_record
from runfold.log.settings import LogSettings
from runfold_schemas import generate
from runfold_schemas.catalog import Life
from runfold_schemas.codec import TYPES, headers
from runfold_schemas.events import UserMessage
from runfold_schemas.topics import Topics


@pytest.fixture(scope="module")
def contract() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((generate.FOLDER / "asyncapi.json").read_text(encoding="utf-8"))
    return document


@pytest.fixture(scope="module")
def event_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((generate.FOLDER / "event.schema.json").read_text(encoding="utf-8"))
    return schema


def test_the_files_are_current():
    assert generate.stale_files() == []


def test_a_stale_and_a_missing_file_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(generate, "FOLDER", tmp_path)

    assert generate.main([]) == 0
    assert len(generate.stale_files(tmp_path)) == 0
    (tmp_path / "event.schema.json").write_text("{}")
    (tmp_path / "asyncapi.json").unlink()

    assert [path.name for path in generate.stale_files(tmp_path)] == ["event.schema.json", "asyncapi.json"]
    assert generate.main(["--chekc"]) == 2
    assert "usage" in capsys.readouterr().err


def test_the_event_schema_has_every_kind_by_its_type(event_schema: dict[str, Any]):
    mapping = event_schema["discriminator"]["mapping"]

    assert set(mapping) == TYPES
    assert {reference["$ref"] for reference in event_schema["oneOf"]} == set(mapping.values())
    for kind, reference in mapping.items():
        definition = resolved(event_schema, reference)
        assert definition["properties"]["type"]["const"] == kind
        assert set(definition["required"]) == {"event_id", "run_id", "timestamp", "type", "data"}


def test_every_reference_of_the_files_leads_somewhere(contract: dict[str, Any], event_schema: dict[str, Any]):
    documents = {"": contract, "./event.schema.json": event_schema}

    for name, document in documents.items():
        found = list(references(document))
        assert found
        for reference in found:
            file, _, pointer = reference.partition("#")
            assert resolved(documents[file or name], f"#{pointer}")


def test_channels_operations_and_messages_fit_together(contract: dict[str, Any]):
    assert contract["asyncapi"] == "3.0.0"
    assert all((contract["channels"], contract["operations"], contract["components"]["messages"]))
    for channel in contract["channels"].values():
        named = {part.split("}")[0] for part in channel["address"].split("{")[1:]}
        assert named == set(channel["parameters"])
    for operation in contract["operations"].values():
        channel = operation["channel"]["$ref"]
        assert operation["action"] in ("send", "receive")
        assert all(message["$ref"].startswith(f"{channel}/messages/") for message in operation["messages"])
    for message in contract["components"]["messages"].values():
        assert message["bindings"]["kafka"]["key"]["type"] == "string"


async def test_topics_are_described_as_our_client_creates_them(contract: dict[str, Any]):
    created = _Created()
    admin = LogAdmin(LogSettings(prefix="p"), created)  # type: ignore[arg-type]  # it only listens

    await admin.create_shared_topics()
    await admin.create_run_topic("p.run.r.l")

    for name, channel in (("p.runs", "catalog"), ("p.dead-letters", "deadLetters"), ("p.run.r.l", "run")):
        binding = contract["channels"][channel]["bindings"]["kafka"]
        topic = created.topics[name]
        described = {option: plain(value) for option, value in binding["topicConfiguration"].items()}
        assert topic.num_partitions == binding["partitions"]
        assert topic.topic_configs == {**described, "min.insync.replicas": "1"}


def test_names_and_partitions_are_those_of_our_client(contract: dict[str, Any]):
    vectors = contract["x-runfold-vectors"]

    assert len(vectors) > 2
    for vector in vectors:
        assert Topics().run(vector["run_id"], vector["log_id"]) == vector["topic"]
        assert partition_of(vector["run_id"]) == vector["catalog_partition"]


def test_records_are_described_as_our_client_writes_them(contract: dict[str, Any]):
    messages = contract["components"]["messages"]
    life = Life(run_id="r", log_id="l", agent_id="a")

    written = headers(event(UserMessage(message="m")), source="s")
    described = messages["event"]["headers"]
    assert set(described["required"]) <= {name for name, _ in written} <= set(described["properties"])
    assert life_record(life).key == b"life:r"
    assert bell_record("r").value is None
    assert messages["life"]["payload"]["schema"] == Life.model_json_schema()


def test_the_examples_are_events(contract: dict[str, Any]):
    examples = contract["components"]["messages"]["event"]["examples"]

    assert examples
    for example in examples:
        decoded = generate.event_adapter().validate_json(json.dumps(example["payload"]))
        assert example["headers"]["ce_id"] == decoded.event_id
        assert example["headers"]["ce_type"] == decoded.type


class _Created:
    """An admin client that keeps what it is asked to create."""

    def __init__(self) -> None:
        self.topics: dict[str, NewTopic] = {}
        cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=1)])
        self._client = SimpleNamespace(cluster=cluster, send=self._metadata)

    async def _metadata(self, *_: object) -> Any:
        topics = [(0, name, False, range(topic.num_partitions)) for name, topic in self.topics.items()]
        return SimpleNamespace(topics=topics)

    async def create_topics(self, topics: list[NewTopic], *, timeout_ms: int) -> Any:
        self.topics |= {topic.name: topic for topic in topics}
        return type("Answer", (), {"topic_errors": []})


def plain(value: Any) -> str:
    """A topic's option as Kafka's protocol has it."""
    return ",".join(value) if isinstance(value, list) else str(value)


def resolved(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    for step in filter(None, reference.removeprefix("#").split("/")):
        found = found[step]
    return found


def references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [reference for each in value for reference in references(each)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [reference for each in value.values() for reference in references(each)]
