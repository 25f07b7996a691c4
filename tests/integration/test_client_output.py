"""What an agent's terminal shows of what aiokafka has to try again."""

import asyncio
import os
import sys

AGENT = """
import asyncio, logging, sys
from runfold import PlannerNote, Runfold

async def main():
    async with Runfold(sys.argv[1], prefix=sys.argv[2], create_topics=True) as runfold:
        runs = await asyncio.gather(*(runfold.open_run(agent_id="a") for _ in range(30)))
        await asyncio.gather(*(run.publish(PlannerNote(note="n")) for run in runs))

if sys.argv[3] != "none":
    logging.basicConfig(level=sys.argv[3])
asyncio.run(main())
# Of this every restart of Kafka is full.
logging.getLogger("aiokafka.conn").warning("tried again")
"""


async def test_an_agent_that_configures_no_logging_sees_nothing(kafka: str, prefix: str) -> None:
    assert await errors_of("none", kafka, prefix) == ""


async def test_an_agent_that_configures_logging_is_told_but_not_of_topics_that_are_new(
    kafka: str, prefix: str
) -> None:
    assert await errors_of("INFO", kafka, prefix) == "WARNING:aiokafka.conn:tried again\n"


async def errors_of(level: str, kafka: str, prefix: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AGENT, kafka, prefix, level),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ,
    )
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return errors.decode()
