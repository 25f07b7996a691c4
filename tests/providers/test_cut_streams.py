"""Each stream of the corpus breaks off behind each of its chunks. The repaired ledger is a request
that each of the five providers accepts.
"""

from collections.abc import Iterator, Sequence

import pytest
from tests.builders import events
from tests.provider_types import check
from tests.providers.corpus import Found, corpus, official
from tests.providers.order_rules import assert_in_order

from runfold_projections.endings import has_broken_off
from runfold_projections.ledger import build_messages_from_events, build_messages_from_log
from runfold_projections.providers import encode, recorder, validate
from runfold_projections.repair import repair
from runfold_schemas.data import Data
from runfold_schemas.messages import PROVIDERS, Message

STREAMS = [pytest.param(found, id=str(found)) for found in corpus() if found.case.chunks]


@pytest.mark.parametrize("found", STREAMS)
def test_a_stream_that_is_cut_anywhere_and_repaired_is_accepted_by_every_provider(found: Found):
    for ledger in different(cut_and_repaired(found)):
        # Newer models of three of the providers refuse to continue a message of the assistant.
        assert ledger[-1].role != "assistant"
        for provider in PROVIDERS:
            request = encode(ledger, provider, lossy="drop").body
            check(provider, official(request, found.case.extensions), beta=found.case.beta)
            assert_in_order(provider, request)
            assert [fault for fault in validate(ledger, provider) if fault.rule != "inexpressible"] == [], (
                provider
            )


@pytest.mark.parametrize("found", STREAMS)
def test_what_is_repaired_after_a_process_died_is_a_fault_before(found: Found):
    """Texts are published while they grow, and no event says that the response ended."""
    recording = recorder(found.provider, tool_names=found.case.tool_names)
    said: list[Data] = []
    for chunk in found.case.chunks or []:
        said += [*recording.feed(chunk), *recording.blocks.partial()]
        log = list(enumerate([*found.before(), *found.recorded(said)]))
        messages, broken_off = build_messages_from_log(log), has_broken_off(log)

        faults = [fault for each in PROVIDERS for fault in validate(messages, each, broken_off=broken_off)]

        assert bool(faults) >= bool(repair(log))


@pytest.mark.parametrize("found", STREAMS)
def test_publishing_what_has_arrived_at_every_chunk_changes_no_request(found: Found):
    for end in range(len(found.case.chunks or []) + 1):
        finished = end == len(found.case.chunks or []) and not found.case.broken_off
        at_once = ledger(found, recorded(found, end, finished=finished, partial=False))

        assert ledger(found, recorded(found, end, finished=finished, partial=True)) == at_once


def recorded(found: Found, end: int, *, finished: bool, partial: bool) -> list[Data]:
    """The events of the stream up to this chunk, with growing texts after each chunk if
    `partial`.
    """
    recording = recorder(found.provider, tool_names=found.case.tool_names)
    said: list[Data] = []
    for chunk in (found.case.chunks or [])[:end]:
        said += recording.feed(chunk)
        said += recording.blocks.partial() if partial else []
    return said + recording.blocks.end(finished=finished)


def ledger(found: Found, said: Sequence[Data]) -> list[Message]:
    return build_messages_from_events([*found.before(), *found.recorded(said)])


def cut_and_repaired(found: Found) -> Iterator[list[Message]]:
    """The ledger after each chunk, as if the connection and the agent ended there."""
    for end in range(len(found.case.chunks or []) + 1):
        said = recorded(found, end, finished=False, partial=False)
        log = [*found.before(), *found.recorded(said)]
        yield build_messages_from_events([*log, *events(*repair(list(enumerate(log))))])


def different(ledgers: Iterator[list[Message]]) -> Iterator[list[Message]]:
    """Each ledger once, because many chunks change nothing that is kept."""
    seen: set[str] = set()
    for each in ledgers:
        key = repr(each)
        if key not in seen:
            seen.add(key)
            yield each
