"""Connects a worker with Kafka and MongoDB."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from runfold.client.connection import blob_store_of
from runfold.log.admin import LogAdmin
from runfold.log.clients import LogClients
from runfold.log.ends import LogEnds
from runfold.log.fetch_answer import silent_about
from runfold.log.hot_and_cold import runs_pace
from runfold.log.partition_counts import check_folded
from runfold.log.publisher import Publisher
from runfold.log.tail import Tail
from runfold.log.verdict_log import VerdictLog
from runfold.log.verdicts import Verdicts
from runfold.projector.examination import Examination
from runfold.projector.forwarding import Forwarder
from runfold.projector.key_folds import KeyFolds
from runfold.projector.memories import BanksTopic, MemoriesTopic
from runfold.projector.safeguards import Safeguards
from runfold.projector.segments import RunSegments
from runfold.projector.sessions import SessionsTopic
from runfold.projector.shared import SharedTopics
from runfold.projector.whole_catalog import as_whole, by_group
from runfold.projector.worker import Worker
from runfold.projector.writer import Writer
from runfold.settings import Settings
from runfold.store.database import Database
from runfold.store.edition import Edition
from runfold.store.editions import Editions


@asynccontextmanager
async def connect_worker(
    settings: Settings,
    database: Database,
    edition: str,
    *,
    rebuilt_from: str | None = None,
    clients: LogClients | None = None,
    has_indexes: bool = False,
) -> AsyncIterator[Worker]:
    """A worker of one edition with its connections, open for the length of the block. Its `work`
    starts it.

    `rebuilt_from` is the edition before, in a rebuild. The worker does not publish again the dead
    letters and ends that the owners of that edition have published.

    With `clients`, the worker has the whole catalog and stands on connections that others use too.
    """
    log, stores = settings.log("runfold/projector"), Edition.of(database, edition)
    previous = Edition.of(database, rebuilt_from) if rebuilt_from else None
    async with AsyncExitStack() as stack:
        if clients is not None:
            admin = clients.admin(log)
        else:
            admin = await stack.enter_async_context(LogAdmin.connect(log))
            await admin.check_broker()
        log = await admin.create_shared_topics()
        settings, topics = settings.model_copy(update={"partitions": log.partitions}), log.topics
        if not has_indexes:
            check_folded(topics, await Editions(database).note_partitions(topics.partitions))
            await stores.create_indexes(database)
        if previous:
            # The rebuild then knows the skips before it reads the records.
            await stores.skips.copy_from(previous.skips)
        safeguards = Safeguards.of(
            stores, dead_seconds=settings.session_timeout_seconds, has_keys=admin.look_for_keys
        )
        await safeguards.skips.load()
        stack.enter_context(silent_about(safeguards.skips.of))
        stack.push_async_callback(safeguards.holding.close)
        if clients is not None:
            publisher, leaders = clients.publisher, clients.leaders
            catalog = as_whole(log, leaders, stores.shared_positions)
            ends = clients.ends(log)
        else:
            publisher, leaders = await stack.enter_async_context(Publisher.connect(log)), None
            catalog = by_group(settings, log, edition)
            ends = await stack.enter_async_context(LogEnds.connect(log))
        segments = ends.leaders.segments(topics)
        pace = runs_pace(log.park_seconds)
        tail = await stack.enter_async_context(
            Tail.connect(log, pace=pace, passes_refused=True, leaders=leaders, segments=segments)
        )
        steady = await stack.enter_async_context(Tail.connect(log, leaders=leaders))
        verdicts = Verdicts(log)
        verdict_log = VerdictLog(log, verdicts, admin=admin, publisher=publisher, leaders=ends.leaders)
        if log.effect_keys is not None:
            await verdict_log.require()
        writer = Writer(
            topics,
            publisher,
            stores,
            forwarder=Forwarder(log, publisher, ends, stores),
            safeguards=safeguards,
            effect_keys=log.effect_keys,
            verdicts=verdict_log,
            previous=previous.runs if previous else None,
            has_keys=admin.look_for_keys,
        )
        sessions = SessionsTopic(topics, writer, stores)
        folds = KeyFolds(
            stores.shared_positions,
            {
                topics.sessions: sessions,
                topics.memories: MemoriesTopic(stores),
                topics.banks: BanksTopic(stores),
            },
            safeguards.quarantine,
        )
        shared = SharedTopics(
            log,
            steady,
            writer,
            stores.shared_positions,
            folds,
            safeguards=safeguards,
            previous=previous.shared_positions if previous else None,
        )
        # A forwarder of its own, because a forwarder serves one caller at a time.
        forwarder = Forwarder(log, publisher, ends, stores)
        yield Worker(
            settings,
            admin=admin,
            tail=tail,
            ends=ends,
            writer=writer,
            shared=shared,
            sessions=sessions,
            segments=RunSegments(stores.segments, stores.runs, segments),
            stores=stores,
            safeguards=safeguards,
            verdicts=verdicts,
            examination=Examination(log, stores, writer, forwarder, safeguards=safeguards, segments=segments),
            catalog=catalog,
            blobs=blob_store_of(log),
        )
