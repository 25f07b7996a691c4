"""Effects that are refused, because no trusted publisher has signed the event. It counts for its
run alone.
"""

import logging
from collections.abc import Sequence
from typing import Final

from prometheus_client import Counter

from runfold.telemetry.log_limit import LimitedLog
from runfold_projections.state import Forward

_REFUSED: Final = Counter(
    "runfold_refused_effects",
    "Events that this projector did not let change what runs share, because no key has signed them",
)

_SECONDS: Final = 30.0

_LINES_MAX: Final = 5
"""The number of runs that are named in this time."""

_log = logging.getLogger(__name__)


class RefusedEffects:
    """Counts and logs the refusals of one forwarder. One is repeated if its event is read again."""

    def __init__(self) -> None:
        self._lines = LimitedLog(
            _log, "refused effects", level=logging.WARNING, lines_max=_LINES_MAX, seconds=_SECONDS
        )

    def without_refused(self, forwards: Sequence[Forward]) -> list[Forward]:
        """The forwards of events that may have effects beyond their runs."""
        refused = {each.event.event_id: each for each in forwards if not each.is_trusted}
        _REFUSED.inc(len(refused))
        for event_id, each in refused.items():
            run_id = each.event.run_id
            line = f"event {event_id} of run {run_id!r} does not change {each.key}: no key has signed it"
            self._lines.log(run_id, line)
        return [each for each in forwards if each.is_trusted]
