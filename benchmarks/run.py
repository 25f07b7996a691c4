"""Runs all measurements and prints one table: `make bench`. README.md explains each of them."""

import argparse
import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import latency
import memories
import providers
import query
import sessions
import throughput
from query import Figures
from rich.console import Console
from rich.logging import RichHandler

from runfold.local import LocalStack
from runfold.settings import Settings

PARTS: dict[str, Callable[[Settings], Awaitable[Figures]]] = {
    "throughput": throughput.throughput,
    "latency": latency.live,
    "ledgers": query.ledgers,
    "large-ledger": query.large_ledger,
    "follow": query.follow,
    "listing": query.listing,
    "idle": latency.idle,
    "encoding": providers.encoding,
    "recording": providers.recording,
    "sessions": sessions.sessions,
    "memories": memories.memories,
}

_log = logging.getLogger(__name__)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measures Runfold on a Kafka and a MongoDB of its own, or on the servers in"
        " RUNFOLD_TEST_KAFKA and RUNFOLD_TEST_MONGO. Prints a Markdown table to stdout, and progress"
        " to stderr."
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=PARTS,
        metavar="NAME",
        help=f"one part, repeatable: {', '.join(PARTS)}",
    )
    names = parser.parse_args().only or list(PARTS)
    handler = RichHandler(console=Console(stderr=True), show_level=False, show_path=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    for talkative in ("aiokafka", "faststream", "httpx"):
        logging.getLogger(talkative).setLevel(logging.CRITICAL)
    print(table(asyncio.run(measure(names))))


async def measure(names: Sequence[str]) -> Figures:
    figures: Figures = []
    async with servers() as (kafka, mongo):
        for name in names:
            _log.info("measuring %s", name)
            # Each part has its own topics and database, so that it sees no runs of another part.
            own = f"bench-{uuid4().hex[:8]}"
            figures += await PARTS[name](Settings(kafka=kafka, mongo=mongo, prefix=own, database=own))
    return figures


@asynccontextmanager
async def servers() -> AsyncIterator[tuple[str, str]]:
    """The addresses of Kafka and MongoDB, running for the length of the block."""
    kafka, mongo = os.environ.get("RUNFOLD_TEST_KAFKA"), os.environ.get("RUNFOLD_TEST_MONGO")
    if kafka and mongo:
        yield kafka, mongo
        return
    with tempfile.TemporaryDirectory(prefix="runfold-bench-", ignore_cleanup_errors=True) as folder:
        # With the default heap the broker spends its time in the garbage collector when thousands
        # of idle runs are open.
        async with LocalStack(data_dir=Path(folder), kafka_heap_mb=2048, progress=_log.info) as stack:
            yield stack.kafka, stack.mongo


def table(figures: Figures) -> str:
    rows = [("figure", "target", "measured"), ("---", "---", "---"), *figures]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    main()
