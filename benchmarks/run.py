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

import catalog
import encryption
import fitting
import latency
import many
import memories
import opening
import overhead
import query
import sessions
import spans
import tenants_api
import throughput
import workers
import wrong_keys
from query import Figures
from rich.console import Console
from rich.logging import RichHandler

import archiving
import hostile
import providers
import tenants
from runfold.local import LocalStack
from runfold.settings import Settings

PARTS: dict[str, Callable[[Settings], Awaitable[Figures]]] = {
    "throughput": throughput.throughput,
    "workers": workers.workers,
    "rebuild": workers.rebuilding,
    "memory": workers.memory,
    "latency": latency.live,
    "ledgers": query.ledgers,
    "large-ledger": query.large_ledger,
    "follow": query.follow,
    "listing": query.listing,
    "idle": latency.idle,
    "many": many.many,
    "opening": opening.opening,
    "opening-beside": opening.opening_beside,
    "catalog": catalog.catalog,
    "archiving": archiving.archiving,
    "encoding": providers.encoding,
    "encryption": encryption.encryption,
    "fitting": fitting.fitting,
    "recording": providers.recording,
    "sessions": sessions.sessions,
    "spans": spans.spans_of_requests,
    "overhead": overhead.overhead,
    "memories": memories.memories,
    "hostile": hostile.hostile,
    "tenants": tenants.tenants,
    "tenants-api": tenants_api.tenants_api,
    "wrong-keys": wrong_keys.wrong_keys,
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
    for name in names:
        # Each part has servers of its own, because a broker has an open file for each run.
        async with servers() as (kafka, mongo):
            _log.info("measuring %s", name)
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
        # 10,000 open runs would fill the usual heap of a new stack.
        async with LocalStack(data_dir=Path(folder), kafka_heap_mb=4096, progress=_log.info) as stack:
            yield stack.kafka, stack.mongo


def table(figures: Figures) -> str:
    rows = [("figure", "target", "measured"), ("---", "---", "---"), *figures]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    main()
