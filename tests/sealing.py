"""Keys of subjects without Kafka."""

import asyncio
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runfold.encryption import keys as keys_module
from runfold.encryption.cipher import new_key
from runfold.encryption.key_file import KeyFile
from runfold.encryption.key_ring import KeyRing, take_record
from runfold.encryption.keys import SubjectKeys
from runfold.log.settings import LogSettings
from runfold_schemas.codec import Record


class KeysTopic:
    """A topic of keys that each process has read to its end."""

    def __init__(self) -> None:
        self.state = KeyRing()
        self.silent_seconds = 0.0
        self.next_offset = 0
        self.records: list[Record] = []
        self.looks = 0

    async def wait_for(self, offset: int, *, timeout_seconds: float) -> None:
        await asyncio.sleep(0)

    async def append(self, publisher: Any, topic: Any, name: bytes, value: bytes | None) -> int:
        record = Record(self.next_offset, 0, name, (), value)
        self.records.append(record)
        take_record(self.state, record)
        self.next_offset += 1
        return record.offset

    async def end_offset(self, settings: Any, topic: str, leaders: Any) -> int:
        self.looks += 1
        return self.next_offset


def process_of(topic: KeysTopic, path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], SubjectKeys]:
    """Makes the keys as another process has them. The operator's key is in a file at the path."""
    path.write_text(b64encode(new_key()).decode())
    monkeypatch.setattr(keys_module, "append", topic.append)
    monkeypatch.setattr(keys_module, "end_offset", topic.end_offset)

    def process() -> SubjectKeys:
        keys = SubjectKeys(LogSettings(prefix="acme"), KeyFile(str(path)), publisher=object())  # type: ignore[arg-type]
        monkeypatch.setattr(keys, "_followed", topic)
        # Nothing unwraps in the background.
        monkeypatch.setattr(keys, "ready", lambda: asyncio.sleep(0))
        return keys

    return process
