"""A process keeps no key of a subject that another process has destroyed, on a real Kafka."""

import sys
from base64 import b64encode
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.processes import until

from runfold import Runfold, UserMessage
from runfold.encryption.cipher import new_key


async def test_a_destroyed_key_leaves_the_memory_of_other_processes(kafka: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(b64encode(new_key()).decode())
    options: Any = {
        "prefix": f"t{uuid4().hex[:8]}",
        "encryption_key": f"file:{tmp_path / 'key'}",
        "create_topics": True,
    }
    async with Runfold(kafka, **options) as first, Runfold(kafka, **options) as second:
        run = await first.open_run(agent_id="desk")
        subject = f"run:{run.run_id}"
        await run.publish(UserMessage(message="hello"))
        sealing, other = first.connection.sealing, second.connection.sealing
        assert sealing is not None
        assert other is not None
        cipher = (await sealing.keys.of(subject)).cipher
        kept = sys.getrefcount(cipher)
        assert await other.keys.destroy(subject) == 1

        async def is_dropped() -> bool:
            return sys.getrefcount(cipher) == kept - 2

        # The first process seals and reads nothing meanwhile.
        await until(is_dropped, what="the end of the destroyed key")

        await run.publish(UserMessage(message="after"))
